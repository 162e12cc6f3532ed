"""What follows from the declaration of an operator's tensors."""

from __future__ import annotations

import pytest
import torch

from spec_decode_bench.harness.bundle import bundle_type, cuda_struct
from spec_decode_bench.harness.contract import Axis, Operator, Point
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.tensors import I32, I64, U8, Bool, Tensors, field, no_dimension, view_of, wrong_with

POINT = Point({"rows": 3, "columns": 5, "penalties": "off", "memory": "device"})
AXES = list(POINT)


def with_penalties(point):
    return point.penalties == "on"


def shape(point):
    return point.rows, 2


class Inputs(Tensors):
    lens: I32["rows + 1"]
    table: I32["rows", "columns"] = field(strided="columns + 2")
    bins: I64[shape] = field(where=with_penalties)
    lens_cpu: I32["rows + 1"] = field(host=True)
    count: int = 0


class Outputs(Tensors):
    buffer: I32["rows * columns + 4"]
    flat: I32[2, "rows"] = view_of("buffer")
    tokens: U8["columns", "rows"] = field(read=(2, "rows - 1"))
    counts: I64["rows"] = field(read=0)
    mask_device: Bool["rows"] = field(where=lambda point: point.memory == "device")
    mask_host: Bool["rows"] = field(uva=True, where=lambda point: point.memory == "uva")


class Wider(Outputs):
    last: I32["rows"]


def made(**changes):
    tensors = {
        "lens": torch.zeros(4, dtype=torch.int32),
        "table": torch.zeros(3, 7, dtype=torch.int32)[:, :5],
        "lens_cpu": torch.zeros(4, dtype=torch.int32),
    }
    return Inputs(**tensors | changes)


def tensor_bytes(made):
    """Of the storage of all its tensors."""
    return sum(t.untyped_storage().nbytes() for t in vars(made).values() if isinstance(t, torch.Tensor))


def test_buffers_and_bytes_are_as_declared():
    out = Wider.empty(POINT)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in vars(out).items() if t is not None} == {
        "buffer": (torch.int32, (19,)),
        "tokens": (torch.uint8, (5, 3)),
        "counts": (torch.int64, (3,)),
        "mask_device": (torch.bool, (3,)),
        "last": (torch.int32, (3,)),
    }
    assert Wider.nbytes(POINT) == tensor_bytes(out)
    assert Inputs.nbytes(POINT) == tensor_bytes(made())


def test_views_are_what_consumers_read():
    out = Outputs.empty(POINT)
    seen = out.views(POINT)
    assert {name: tuple(view.shape) for name, view in seen.items()} == {"flat": (2, 3), "tokens": (2, 2), "mask": (3,)}
    assert seen["flat"].data_ptr() == out.buffer.data_ptr()
    assert seen["tokens"].stride() == (3, 1)
    with pytest.raises(AttributeError, match=r"flat is a view of buffer; operator\.views\(point, out\) has it"):
        _ = out.flat


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, None),
        ({"lens": torch.zeros(4)}, "lens must be int32 [4], not float32 [4]"),
        ({"table": torch.zeros(5, 3, dtype=torch.int32)}, "table must be int32 [3, 5], not int32 [5, 3]"),
        ({"lens_cpu": None}, "lens_cpu must be int32 [4], not None"),
        ({"bins": torch.zeros(3, 2, dtype=torch.int64)}, "bins must be None, not int64 [3, 2]"),
    ],
)
def test_inputs_that_are_not_as_declared(changes, wrong):
    assert wrong_with(made(**changes), POINT) == wrong
    axes = [Axis(name, str, value, "") for name, value in POINT.items()]
    make = lambda point, seed: made(**changes)  # noqa: E731
    operator = Operator("mine", "", axes, Inputs, Outputs, make, None, None, "")
    if wrong is None:
        assert isinstance(operator.make_inputs(POINT, 0), Inputs)
    else:
        with pytest.raises(ValueError, match=r"^make_inputs of mine: ") as caught:
            operator.make_inputs(POINT, 0)
        assert str(caught.value) == f"make_inputs of mine: {wrong}"


def test_a_dimension_that_is_none():
    class Misspelt(Tensors):
        lens: I32["row + 1"]

    class Divided(Tensors):
        lens: I32["columns"] = field(read="columns // 2")

    assert no_dimension(Inputs, AXES) is no_dimension(Outputs, AXES) is None
    assert no_dimension(Misspelt, AXES) == "Misspelt.lens: 'row + 1' names no axis; did you mean rows?"
    assert no_dimension(Divided, AXES) == "Divided.lens: 'columns // 2' is no sum or product of axes and whole numbers"


def test_structs_have_the_declared_types():
    assert cuda_struct(bundle_type(Inputs), {}) == (
        "struct Inputs { const int* lens; const int* table; const long long* bins; int count; };"
    )
    assert cuda_struct(bundle_type(Outputs, "mask", "buffer"), {}) == "struct Outputs { bool* mask; int* buffer; };"
    with pytest.raises(AttributeError, match=r"Outputs has no field 'bufer'; did you mean buffer\?"):
        bundle_type(Outputs, "bufer")


@pytest.mark.parametrize("name", sorted(discover().operators))
def test_an_operator_tells_its_bytes(name):
    """But for the padding behind the last row of a table among its inputs."""
    operator = discover().operators[name]
    for case in operator.edge_cases:
        point = operator.complete(case.point)
        x = operator.make_inputs(point, 0)
        padding = 4 * point.get("table_padding", 0)
        assert 0 <= operator.inputs.nbytes(point) - tensor_bytes(x) <= padding
        assert operator.outputs.nbytes(point) == tensor_bytes(operator.outputs.empty(point))
