"""The file format: what is written is read, whatever is cut off behind, and what is damaged is told."""

import numpy as np
import pytest
import torch

from spec_decode_bench.harness.captures import (
    _LENGTH,
    MAGIC,
    CaptureWriter,
    Omitted,
    Used,
    _framed,
    read_capture,
)
from spec_decode_bench.harness.errors import CaptureError
from tests import captured

TABLE = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
OWNED = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=bool)
FIELDS = {
    "lens": torch.tensor([3, 0, 2**31 - 1], dtype=torch.int32),
    "ids": torch.tensor([[2**40, -1]], dtype=torch.int64),
    "flags": torch.tensor([True, False]),
    "counts": np.array([-3, 9], dtype=np.int16),
    "none_long": torch.zeros(0, 3, dtype=torch.int32),
    "scalar": torch.tensor(7, dtype=torch.int32),
    "columns": torch.arange(12, dtype=torch.int32).view(3, 4)[:, 1:3],
    "table": Used(TABLE, OWNED, fill=77),
    "nothing_used": Used(TABLE, np.zeros_like(OWNED)),
    "history": Omitted((2, 3), "int32"),
    "tokens": 12,
    "absent": None,
}
READ = {
    **{name: np.asarray(FIELDS[name]) for name in list(FIELDS)[:7]},
    "table": np.where(OWNED, TABLE, 77).astype(np.int32),
    "nothing_used": np.zeros((3, 4), np.int32),
    "history": np.zeros((2, 3), np.int32),
    "tokens": 12,
    "absent": None,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made.capture"


def same(values, expected):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert (values[name].dtype, values[name].shape) == (value.dtype, value.shape), name
            np.testing.assert_array_equal(values[name], value, name)
        else:
            assert values[name] == value, name
    return True


def test_what_is_written_is_read(path):
    captured.write(path, [(5, "op", {"batch_size": 3, "on": True}, FIELDS), (6, "other", {}, {})])
    capture = read_capture(path)
    assert (capture.header, capture.problems) == (captured.HEADER, [])
    first, second = capture.entries
    assert (first.step, first.operator, first.axes) == (5, "op", {"batch_size": 3, "on": True})
    assert same(first.values, READ)
    assert (second.step, second.operator, second.axes, second.values) == (6, "other", {}, {})


def test_what_is_there_already_unused_or_omitted_takes_no_bytes(path):
    table = torch.randint(0, 2**30, (100, 100), dtype=torch.int32)
    used = torch.arange(100)[None] < torch.arange(100)[:, None] // 20
    writer = CaptureWriter(path, captured.HEADER)
    first, second = writer.add(0, "op", {}, {"table": table}), writer.add(1, "op", {}, {"table": table, "same": table})
    third = writer.add(2, "op", {}, {"table": table + 1})
    assert second < 500 < min(first, third)
    assert writer.add(3, "op", {}, {"table": Used(table, used), "history": Omitted((2**20, 2**10), "int64")}) < 2000
    with pytest.raises(ValueError, match="must be bool, of the same shape"):
        writer.add(4, "op", {}, {"table": Used(TABLE, OWNED[:2])})
    entries = read_capture(path).entries  # it is on disk when add returns, as of an engine that is killed afterwards
    assert [entry.step for entry in entries] == [0, 1, 2, 3]
    for entry, expected in zip(entries[:3], (table, table, table + 1), strict=True):
        np.testing.assert_array_equal(entry.values["table"], expected)


def test_a_file_is_never_overwritten(path):
    captured.write(path, [])
    with pytest.raises(CaptureError, match=r"made.capture: cannot be written: File exists"):
        CaptureWriter(path, captured.HEADER)


def written(path, steps):
    """(content of a file with an entry for each step, where its header ends, where each of its entries does)."""
    writer, ends = CaptureWriter(path, captured.HEADER), [path.stat().st_size]
    for step in range(steps):
        writer.add(step, "op", {"batch_size": step}, {"lens": FIELDS["lens"] - step})
        ends.append(path.stat().st_size)
    writer.close()
    return path.read_bytes(), ends


def check_entries(capture, steps):
    assert [entry.step for entry in capture.entries] == steps
    for entry in capture.entries:
        np.testing.assert_array_equal(entry.values["lens"], FIELDS["lens"] - entry.step)


def test_whatever_is_cut_off_what_is_before_is_read(path):
    """At every byte of a file of two entries."""
    content, ends = written(path, 2)
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        if size < ends[0]:
            with pytest.raises(CaptureError, match=r"not a capture file|its header is incomplete"):
                read_capture(path)
            continue
        capture, complete = read_capture(path), sum(end <= size for end in ends[1:])
        check_entries(capture, list(range(complete)))
        assert len(capture.problems) == (size not in ends)
        assert all(one.startswith(f"entry {complete}, the last one, is incomplete") for one in capture.problems)


def test_whichever_bit_is_wrong_it_is_noticed(path):
    """In every byte behind the header; the other entries are read."""
    content, ends = written(path, 2)
    for place in range(ends[0], len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        capture = read_capture(path)
        assert len(capture.problems) >= 1, place
        check_entries(capture, [entry.step for entry in capture.entries])
    assert capture.problems == ["entry 1 (op, step 1) has a wrong checksum and is left out"]
    assert len(capture.entries) == 1


def test_sound_frames_of_another_writer_are_told_apart_from_damage(path):
    """The header lacks the engine or is not an object; the axes of an entry are a number."""
    content, _ = written(path, 1)
    for header in (b'{"schema":1,"model":"m"}', b"[1]", b"{"):
        path.write_bytes(MAGIC + _framed(header))
        with pytest.raises(CaptureError, match="its header cannot be read"):
            read_capture(path)
    fields = b'{"step":1,"operator":"op","axes":3}'
    path.write_bytes(content + _framed(_LENGTH.pack(len(fields)) + fields))
    assert read_capture(path).problems == ["entry 1 cannot be decoded and is left out"]


def test_an_array_in_a_damaged_entry_is_not_found(path):
    big = np.arange(1000, dtype=np.int32)
    captured.write(path, [(4, "op", {}, {"a": big}), (9, "op", {}, {"b": big})])
    content = path.read_bytes()
    place = content.index(b'"operator"')
    path.write_bytes(content[:place] + b"X" + content[place + 1 :])
    (entry,) = read_capture(path).entries
    with pytest.raises(CaptureError, match="b of entry 1 is in entry 0, which is damaged"):
        _ = entry.values


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not a capture file"), (b'{"line":"header"}\n', "not a capture file"), (MAGIC, "its header is incomplete")],
)
def test_another_file_is_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=f"made.capture: {message}"):
        read_capture(path)


def test_another_schema_is_refused(path, monkeypatch):
    monkeypatch.setattr("spec_decode_bench.harness.captures.SCHEMA", 99)
    captured.write(path, [])
    with pytest.raises(CaptureError, match="schema 1, this suite reads 99"):
        read_capture(path)
