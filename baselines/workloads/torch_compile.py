"""torch.compile of operator chains, such that the code which runs at a point does not depend on earlier points.

Dynamo specialises on the first sizes it sees and treats equal sizes as one symbol, and Inductor picks tiles from them.
Of all compiled versions whose guards hold, the one that ran last is chosen. The process that times a variant and the
process that counts its launches visit different points, so they could run different code under one name. Here every
process compiles for the same examples first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from spec_decode_bench.harness.contract import Operator, Point

#: Limit of compiled versions: sizes 0 and 1, branches and host constants each get one, more than Dynamo's default of 8.
#: Past it Dynamo would silently run the eager operators, which must not be timed as compiled code; so it must raise.
RECOMPILE_LIMIT = 64

#: Bytes of an example tensor's storage before its first element. Equal to the harness's guard width, because Dynamo
#: treats a storage offset like any other size.
MARGIN = 16384

#: Requests of the general examples: Inductor tunes for the batch it compiles first, an engine's largest.
BUSY_BATCH = 200

#: Launches by which a tiling is timed, and cycles in which the host can queue them: 20 ms at 2 GHz.
TUNING_LAUNCHES, QUEUEING_CYCLES = 50, 40_000_000

_functions: dict[tuple[Callable, torch.device], Callable] = {}


def compiled(
    chain: Callable,
    setup: Callable[[Point, Any, Any, Callable], Callable[[], Any]],
    operator: Operator,
    examples: Sequence[Mapping[str, Any]],
    device: torch.device,
) -> Callable:
    """torch.compile (Inductor, dynamic shapes) of ``chain``: one function per process and device, as in an engine.

    setup:    (point, x, out, chain) -> launch; the launch must run the chain it was given.
    examples: points of ``operator`` to compile for, in this order, before the function is returned. The first is
              general: no two sizes are equal and none is 0 or 1. The others cover what is compiled separately anyway,
              such as rows with and without space between them.

    Raises what Dynamo raises, also in a later call if more than RECOMPILE_LIMIT versions are needed.
    """
    key = (chain, device)
    if key not in _functions:
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        function = torch.compile(chain, dynamic=True)
        # The default stance also where a run leaves out what would compile.
        with torch.compiler.set_stance("default"), _tuned_by_device_time(device):
            for example in examples:
                point = operator.complete(example)
                x, out = operator.make_inputs(point, 0), operator.outputs.empty(point)
                setup(point, _placed(x, device), _placed(out, device), function)()
        _functions[key] = function
    return _functions[key]


@contextmanager
def _tuned_by_device_time(device: torch.device) -> Iterator[None]:
    """Inductor keeps the fastest of a kernel's tilings when it first runs. Its own timer does not queue launches ahead:
    for kernels of a few microseconds it measures how long the host takes to launch them, and chooses by chance.
    """
    if device.type != "cuda":
        yield
        return
    from torch._inductor.runtime.benchmarking import benchmarker  # takes two seconds

    def device_ms(launch: Callable[[], Any], **_: Any) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        launch()
        torch.cuda._sleep(QUEUEING_CYCLES)
        start.record()
        for _ in range(TUNING_LAUNCHES):
            launch()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / TUNING_LAUNCHES

    before, benchmarker.benchmark_gpu = benchmarker.benchmark_gpu, device_ms
    try:
        yield
    finally:
        benchmarker.benchmark_gpu = before


def row_of(starts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """int64 with the shape of ``tokens``: the row that each lies in, or the number of rows for one behind the last.

    starts: [rows + 1], where each row starts and the last one ends; no token lies before the first.

    Inductor before torch 2.13 searches a slice from the start of its storage (pytorch #182343), and removes a copy.
    """
    if torch.compiler.is_compiling():
        return torch.searchsorted(starts, tokens, right=True) - 1
    return torch.searchsorted(starts[1:], tokens, right=True)


def _placed(tensors: Any, device: torch.device) -> Any:
    """The dataclass with its tensors on the device, strides kept, each a view into a larger storage.

    The harness passes such views, and Dynamo distinguishes them from tensors that own their storage. Host tensors stay.
    """
    return dataclasses.replace(
        tensors,
        **{
            field.name: _view(value, device)
            for field in dataclasses.fields(tensors)
            if isinstance(value := getattr(tensors, field.name), torch.Tensor) and not field.metadata.get("host")
        },
    )


def _view(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    reach = sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)) + 1
    storage = torch.zeros(MARGIN + reach * source.element_size(), dtype=torch.uint8, device=device).view(source.dtype)
    return storage.as_strided(source.shape, source.stride(), MARGIN // source.element_size()).copy_(source)
