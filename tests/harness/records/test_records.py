"""Records survive a round trip and a killed run, and say in one sentence what is wrong with a file."""

import json
import os
import re
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.warnings import unknown_line_warnings
from spec_decode_bench.harness.checks import Difference
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.file import Writer, read_run, write_run
from spec_decode_bench.harness.records.schema import (
    SCHEMA_VERSION,
    Cell,
    Code,
    Metrics,
    Reason,
    RecordError,
    UnknownLine,
)
from tests import factory
from tests.tier import examples


@dataclass(frozen=True)
class Written:
    path: object
    content: bytes
    cells: list[Cell]


@pytest.fixture
def written(tmp_path) -> Written:
    run = factory.sweep_run(batch_sizes=(1,))
    path = factory.write(run, tmp_path / "run.jsonl")
    return Written(path, path.read_bytes(), run.cells)


def refused(path) -> str:
    with pytest.raises(RecordError) as caught:
        read_run(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert "Traceback" not in message
    return message


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reason=st.text(alphabet=st.characters(exclude_categories=())),
    times=st.dictionaries(st.integers(1, 64), st.lists(st.floats(0, 1e9), min_size=1, max_size=4), max_size=4),
)
def test_any_reason_and_any_sample_come_back(tmp_path_factory, reason, times):
    cell = factory.cell("decode_native", "flat_view", {"batch_size": 1})
    why = Reason(code=Code.NOT_APPLICABLE, detail=reason)
    cell = replace(cell, reason=why, metrics=Metrics(bytes_moved=1, graph_us=times))
    made = factory.run(factory.gpu_environment(), [cell])
    path = factory.write(made, tmp_path_factory.mktemp("record") / "run.jsonl")
    read = read_run(path)
    assert (msgspec.to_builtins(read.header), read.path) == (msgspec.to_builtins(made.header), str(path))
    assert not read.truncated
    assert read.cells == [replace(cell, reason=replace(why, detail=printable(reason)))]


def test_a_torn_last_record_is_dropped_and_reported(tmp_path):
    """Cut anywhere inside the last line, or inside a character of it: every record before it is kept."""
    cells = [factory.cell("o", "v", {"n": i}, status="failed", reason="größer") for i in range(2)]
    path = factory.write(factory.run(factory.gpu_environment(), cells), tmp_path / "run.jsonl")
    content = path.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(content) + 1):
        path.write_bytes(content[:end])
        run, whole = read_run(path), end >= len(content) - 1
        assert run.truncated == (end > last and not whole)
        assert run.cells == (cells if whole else cells[:-1])


NO_RECORDS = [b"", b"\n", b"not json\n", b"\xff\xfe\x00", b"[]\n", b'{"line": "other"}\n', b'{"line":"header","sch']


@pytest.mark.parametrize("content", [*NO_RECORDS, pytest.param(b"[" * 10_000, id="deep")])
def test_what_is_no_record_is_refused(tmp_path, content):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    refused(path)


def test_a_file_without_header_or_of_another_schema_is_refused(written):
    written.path.write_bytes(written.content.split(b"\n", 1)[1])
    assert "header" in refused(written.path)
    ours = f'"schema":{SCHEMA_VERSION}'.encode()
    written.path.write_bytes(factory.resealed(written.content.replace(ours, b'"schema":99', 1)))
    assert "99" in refused(written.path)
    for older in (3, 4):
        written.path.write_bytes(factory.resealed(written.content.replace(ours, f'"schema":{older}'.encode(), 1)))
        assert read_run(written.path).cells == written.cells


def test_a_finding_of_an_older_schema_has_its_difference(written):
    """Whose fields were its own, before or after a text with brackets."""
    difference = {"tensor": "out", "index": [1, 2], "expected": 3, "got": 4, "wrong": 1, "elements": ["[1, 2]"]}
    finding = {"status": "mismatch", "place": "point", "name": "n=1", "message": "{a}", "check": "exact"} | difference
    header, first, *rest = written.content.split(b"\n")
    line = json.loads(first) | {"status": "mismatch", "finding": finding}
    del line["crc32"]
    edited = json.dumps(line, separators=(",", ":")).encode()
    written.path.write_bytes(factory.resealed(b"\n".join([header, edited, *rest])))
    read = read_run(written.path).cells[0].finding
    assert read.difference == msgspec.convert(difference, Difference)
    assert (read.check, read.message) == ("exact", "{a}")


def test_a_record_survives_a_power_cut(tmp_path, monkeypatch):
    """Each line is synced to the disk, with all of its bytes, before write returns, of which a whole record is made."""
    on_disk, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: fsync(file) or on_disk.append(os.fstat(file).st_size))
    run = factory.run(factory.gpu_environment(), [factory.cell("o", "v", {"n": n}, gpu=1.0) for n in range(3)])
    writer = Writer(tmp_path / "run.jsonl")
    for line in (run.header, *run.cells):
        writer.write(line)
        assert on_disk[-1:] == [writer.path.stat().st_size]
    writer.close()
    assert read_run(writer.path).cells == run.cells


# --- damage -----------------------------------------------------------------------------------------------------------


def test_no_flipped_bit_is_read_silently(tmp_path):
    """Of every byte one bit: it is refused, or the last line is dropped and that is said, or nothing has changed."""
    cells = [factory.cell("decode_native", "flat_view", {"batch_size": n}, cpu=5.0, rounds=2) for n in (1, 2)]
    path = factory.write(factory.run(factory.cpu_environment(), cells), tmp_path / "run.jsonl")
    content, whole = path.read_bytes(), read_run(path)
    silent = []
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            run = read_run(path)
        except RecordError:
            continue
        if not run.truncated and (run.header, run.cells) != (whole.header, whole.cells):
            silent.append(place)
    assert silent == []


def test_a_byte_that_is_no_utf_8_is_refused_wherever_it_stands(written):
    content = written.content
    for place in range(0, content.rfind(b"\n", 0, -1), 401):
        if content[place : place + 1] != b"\n":
            written.path.write_bytes(factory.resealed(content[:place] + b"\xff" + content[place + 1 :]))
            refused(written.path)


def test_a_line_that_is_cut_or_without_its_checksum_is_refused(written):
    lines = written.content.split(b"\n")
    written.path.write_bytes(b"\n".join([*lines[:2], lines[2][: len(lines[2]) // 2], *lines[3:]]))
    assert f"{written.path}:3:" in refused(written.path)
    lines[3] = re.sub(rb',"crc32":"[0-9a-f]{8}"', b"", lines[3])
    written.path.write_bytes(b"\n".join(lines))
    assert f"{written.path}:4: no checksum" in refused(written.path)


def test_a_second_header_is_refused(written):
    written.path.write_bytes(written.content + written.content)
    line = written.content.count(b"\n") + 1
    assert f"{written.path}:{line}: a second header; " in refused(written.path)


def test_a_line_of_an_unknown_kind_is_kept_and_counted(written, tmp_path):
    """As of a newer version, or of a room that is missing here."""
    writer = Writer(written.path, resume=True)
    writer.write(UnknownLine("engine_step", b'{"line":"engine_step","us":[1.5]}'))
    writer.close()
    run = read_run(written.path)
    assert run.cells == written.cells
    assert unknown_line_warnings(run) == [f"{written.path} holds 1 line of kind 'engine_step', unknown here"]
    write_run(run, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == written.path.read_bytes()
