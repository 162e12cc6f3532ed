"""Write the measured parts of README.md, CONTRIBUTING.md and docs/*.md from the records in results/reference/:

    python -m tools.splice            rewrite every block
    python -m tools.splice --check    change nothing; exit code 1 if a block is out of date

A block begins with a line ``<!-- splice:NAME -->`` and ends with a line ``<!-- /splice -->``. NAME is a key of BLOCKS,
or GPU/RECORD for all tables of results/reference/GPU/RECORD.jsonl. Exit code 2: no such block, an unclosed block, or a
record that is missing or cannot be read.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import inspect
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from spec_decode_bench import bench
from spec_decode_bench.decode_loop.analysis import alone, delta, reference_of, value
from spec_decode_bench.decode_loop.analysis import by_point as loops_by_point
from spec_decode_bench.decode_loop.records import Loop
from spec_decode_bench.decode_loop.tables import interval_text, percent_text
from spec_decode_bench.engine_plugin.analysis import all_compared
from spec_decode_bench.engine_plugin.records import blocks_of
from spec_decode_bench.engine_plugin.tables import HEADS as ENGINE_HEADS
from spec_decode_bench.engine_plugin.tables import arm_rows, engine_tables
from spec_decode_bench.harness import registry
from spec_decode_bench.harness.analysis.across_gpus import across_gpus
from spec_decode_bench.harness.analysis.estimators import estimates
from spec_decode_bench.harness.analysis.seconds import ACTIVITIES, seconds_of
from spec_decode_bench.harness.analysis.stats import (
    copy_bound_us,
    median_us,
    slopes,
)
from spec_decode_bench.harness.analysis.warnings import KNOWN_FAILURES, known_failure_warnings
from spec_decode_bench.harness.contract import Operator
from spec_decode_bench.harness.dependencies import DIGITS, dependencies, file_hash, variant_files
from spec_decode_bench.harness.discover import ROOT, discover
from spec_decode_bench.harness.import_by_content import SUITE
from spec_decode_bench.harness.records.differences import NOTED, REFUSED
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Cell, Header, RecordError, Run, Status
from spec_decode_bench.harness.report.across_gpus import summary_table
from spec_decode_bench.harness.report.escape import as_code, as_text
from spec_decode_bench.harness.report.table import markdown, untitled
from spec_decode_bench.harness.session.measure import measure
from spec_decode_bench.harness.tensors import Dimension, Tensors, tensors
from spec_decode_bench.harness.wording import counted, did_you_mean, signed, significant
from spec_decode_bench.profiler.records import PROFILE, Profile, Session, read_document
from spec_decode_bench.profiler.tables import profile_tables
from spec_decode_bench.profiler.tables import summary as summary_of
from tools.mutate import all_cases, tally

registry.load(bench.REGISTRATIONS)

REFERENCE = Path("results", "reference")
BLOCK = re.compile(r"^<!-- splice:(\S+) -->\n(.*?)^<!-- /splice -->$", re.DOTALL | re.MULTILINE)
MARKER = "<!-- splice:"

GPU, H100 = "nvidia-h200", "nvidia-h100"
#: Names of the profilers.
TOOLS = {"nsys": "Nsight Systems", "ncu": "Nsight Compute", "torch": "torch.profiler"}
#: The records of docs/results-h200.md and docs/results-h100.md.
_NAMES = ("mtp3", "full", "step", "whole_step", "mamba_copy", "cold")
_NAMES += ("mtp1", "mtp5", "ragged", "native", "k_gather", "mamba_spec", "smoke", "upstream", "upstream_step")
RECORDS, H100_RECORDS = ([f"{gpu}/{name}" for name in _NAMES] for gpu in (GPU, H100))
#: The decode loops at the top of docs/decode-loop.md, and what they are called there.
LOOPS = {
    f"{H100}/decode_loop_whole_step": "whole step, DeepSeek-V3.2",
    f"{H100}/decode_loop_whole_step_mamba": "whole step, hybrid",
    f"{GPU}/decode_loop_whole_step": "whole step, DeepSeek-V3.2",
    f"{GPU}/decode_loop_whole_step_mamba": "whole step, hybrid",
    f"{GPU}/decode_loop": "four operators, DeepSeek-V3.2",
    f"{H100}/decode_loop": "four operators, DeepSeek-V3.2",
    f"{H100}/decode_loop_mamba": "Mamba operators, hybrid",
    f"{GPU}/decode_loop_mamba": "Mamba operators, hybrid",
}
#: All that docs/decode-loop-results.md shows.
LOOP_RECORDS = (*LOOPS, f"{GPU}/decode_loop_mtp1_azure", f"{GPU}/decode_loop_mtp3_mooncake")
#: The model step in the table of LOOPS.
LOOP_MODEL_STEP_US = 9000
#: Servers in which the arms of a plan were measured, and what they are called in docs/in-vllm.md.
ENGINES = {
    f"{GPU}/engine_llama": "Llama, 16 layers, EAGLE",
    f"{GPU}/engine_llama_4_layers": "Llama, 4 layers, EAGLE",
    f"{GPU}/engine_deepseek": "DeepSeek-V3.2, 4 layers, MTP",
}
#: Variants of upstream/ -> the engine or library in the documents.
UPSTREAM = {
    "deep_gemm": "DeepGEMM",
    "flash_mla_fp8": "FlashMLA",
    "flash_mla": "FlashMLA",
    "flash_mla_sgl": "FlashMLA",
    "sglang_dsa_triton": "SGLang",
    "vllm_cuda": "vLLM",
    "vllm_triton": "vLLM",
    "vllm_varlen": "vLLM",
    "vllm_align": "vLLM",
    "vllm": "vLLM",
    "vllm_call": "vLLM",
    "sglang_cuda": "SGLang",
}
#: Of the table by batch size; the rest of an operator's points in it, where it is another one.
BATCHES = (1, 32, 128, 256, 1024)
BATCH_POINTS = {
    "k_quant_gather": "seq_lens=uniform",
    "mamba_state_copy": "context_len=lognormal(8192;1),crossing=0.1,num_layers=4",
}
FUSED = ("triton_fused", "cuda_fused")
SUMMARY_POINT = "batch_size=128,context_len=uniform(4096;8192)"


class Row(NamedTuple):
    """Of the README's table, and of the first one of a GPU's results."""

    operator: str
    records: tuple[str, ...]  # the first that a GPU has is shown
    point: str = SUMMARY_POINT
    what: str = ""  # what sets the point apart from SUMMARY_POINT

    @property
    def label(self) -> str:
        return f"`{self.operator}`" + (f", {self.what}" if self.what else "")


#: Where engines have kernels of their own, points that these were timed at: one for each layout that Hopper uses.
SUMMARY = (
    Row("decode_flatten", ("upstream",)),
    Row("decode_native", ("full",)),
    Row("paged_mqa_schedule", ("upstream",)),
    Row("paged_mqa_schedule", ("upstream",), f"{SUMMARY_POINT},lens_layout=1d,remainder=back", "128 rows of one token"),
    Row("mla_tile_schedule", ("upstream",), f"{SUMMARY_POINT},layout=old", "old layout, 128 heads"),
    Row("k_quant_gather", ("upstream",), "batch_size=128,seq_lens=uniform", "32K prefill tokens, equal sequences"),
    Row("mamba_spec_metadata", ("upstream",), f"{SUMMARY_POINT},cache_mode=align,max_num_seqs=1024", "mode `align`"),
    Row("decode_step", ("upstream_step", "full")),
    Row("step_prologue", ("upstream_step", "whole_step")),
    Row("step_epilogue", ("upstream_step", "whole_step")),
    Row("draft_passes", ("upstream_step", "whole_step")),
)
#: In the order of docs/operators.md.
OPERATORS = (
    "decode_flatten",
    "decode_native",
    "paged_mqa_schedule",
    "mla_tile_schedule",
    "decode_step",
    "k_quant_gather",
    "mamba_spec_metadata",
    "mamba_state_gather",
    "mamba_state_copy",
    "seq_lens_update",
    "step_inputs",
    "gather_block_tables",
    "compute_slot_mappings",
    "post_update",
    "draft_inputs",
    "mamba_align_step",
    "step_prologue",
    "step_epilogue",
    "draft_passes",
)


class SpliceError(Exception):
    """A document cannot be spliced; the message is one sentence."""


@cache
def record(name: str) -> Run:
    """name: GPU/RECORD, as in ``nvidia-h200/mtp3``. Raises SpliceError."""
    path = REFERENCE / f"{name}.jsonl"
    if not (ROOT / path).is_file():
        there = [
            str(known.relative_to(ROOT / REFERENCE).with_suffix("")) for known in (ROOT / REFERENCE).rglob("*.jsonl")
        ]
        raise SpliceError(f"there is no record {path}{did_you_mean(name, sorted(there))}")
    try:
        return read_run(ROOT / path)
    except RecordError as error:
        raise SpliceError(str(error)) from None


def markdown_table(head: list[str], rows: list[list[str]], texts: int = 1) -> list[str]:
    """The first ``texts`` columns hold words, the others metrics."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Lines that GitHub shows when the reader clicks on the summary, which is HTML."""
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "", "</details>", ""]


def copy_bound_of(run: Run, cell: Cell) -> float:
    return copy_bound_us(run.calibration_of(cell), cell.metrics.bytes_moved)


def is_doubted(run: Run, cell: Cell) -> bool:
    found = estimates(cell.metrics, run.calibration_of(cell))
    return found is not None and found.is_doubted


def entry(run: Run, cell: Cell | None, fastest: bool, with_ratio: bool) -> str:
    """``GPU µs · launches · host µs · ratio to the copy bound``, with the marks *, ?, ! and † behind the GPU time."""
    if cell is None or cell.status == "skipped":
        return "–"
    if cell.status != "passed":
        return cell.status
    gpu, host = median_us(cell, "gpu_us"), median_us(cell, "host_us")
    if gpu is None:
        return f"no graph · {significant(host)}"
    marks = "\\*" * fastest + "?" * is_doubted(run, cell) + "!" * bool(cell.metrics.disturbed)
    marks += KNOWN_FAILURES * bool(cell.known_failures)
    parts = [f"{significant(gpu)}{marks}", str(cell.metrics.launches), significant(host)]
    return " · ".join([*parts, f"{significant(gpu / copy_bound_of(run, cell))}×"] if with_ratio else parts)


def row_of(run: Run, cells: dict[str, Cell], variants: list[str], with_ratio: bool = True) -> list[str]:
    """An entry for each of these variants, then the copy bound."""
    timed = ((name, median_us(cells[name], "gpu_us")) for name in variants if name in cells)
    times = {name: found for name, found in timed if found}
    fastest = min(times, key=times.get) if len(times) > 1 else None
    bounds = [significant(copy_bound_of(run, cells[name])) for name in times][:1] or ["–"]
    return [entry(run, cells.get(name), name == fastest, with_ratio) for name in variants] + bounds


def by_point(run: Run, operator: str) -> dict[str, dict[str, Cell]]:
    points: dict[str, dict[str, Cell]] = {}
    for cell in run.in_order:
        if cell.operator == operator:
            points.setdefault(cell.point, {})[cell.variant] = cell
    return points


def gpu_and_versions(run: Run) -> str:
    found = run.header.environment
    return f"{found.gpu}, driver {found.driver}, torch {found.torch}, Triton {found.triton}"


def short_name(name: str) -> str:
    """Of a record, in code; with its folder only where that is another GPU's."""
    return f"`{name.removeprefix(f'{GPU}/')}`"


def packages_of(run: Run) -> str:
    environment = run.header.environment
    return ", ".join(f"{name} {environment.package(name)}" for name in environment.packages)


#: Where the code of kernels lies.
KERNELS = ("kernels", "upstream")
#: More names of changed kernels are not written out.
MOST_NAMES = 4


@cache
def code_of_variants() -> dict[str, dict[str, set[str]]]:
    """Id of a variant -> the files that make it, by name -> their hashes: of a kernel with those of its package, of
    PyTorch operators the file itself.
    """
    code = {}
    for name, own in variant_files(ROOT).items():
        is_kernel = own.relative_to(ROOT).parts[0] in KERNELS
        made_of = dependencies([own], ROOT, KERNELS) if is_kernel else {own}
        code[name] = {str(path.relative_to(ROOT)): {file_hash(path)} | _without_import_name(path) for path in made_of}
    return code


@cache
def _without_import_name(path: Path) -> set[str]:
    """Hashes that a file had before the suite had one import name, which changes no code: of its text with imports
    wrapped as they are, and with those that fit on one line.
    """

    def joined(wrapped: re.Match[str]) -> str:
        line = f"from {wrapped[1]} import {' '.join(wrapped[2].split()).removesuffix(',')}\n"
        return line if len(line) <= 121 else wrapped[0]

    text = path.read_text(encoding="utf-8").replace("spec_decode_bench.", "")
    texts = text, re.sub(r"^from (\S+) import \(\n([^)]*)\)\n", joined, text, flags=re.MULTILINE)
    return {hashlib.sha256(text.encode()).hexdigest()[:DIGITS] for text in texts}


def changed_since(sources: dict[str, str], variant_id: str) -> bool | None:
    """Whether a variant's code is another one than that of a record; None for one that is not there any more."""
    files = code_of_variants().get(variant_id)
    return files and any(sources.get(name) not in hashes for name, hashes in files.items())


def stale(shown: Iterable[tuple[Header | Session, str]]) -> list[str]:
    """A line for each GPU below times of variants whose code has changed since; nothing where none has.

    shown: (of the record or the profile, variant id).
    """
    by_gpu: dict[str, list[tuple[Header | Session, str]]] = {}
    for header, name in shown:
        by_gpu.setdefault(_short(header), []).append((header, name))
    lines = []
    for gpu, of_gpu in by_gpu.items():
        records, variants = {header.name for header, _ in of_gpu}, {}
        for header, name in of_gpu:
            if (changed := changed_since(header.sources, name)) is not None:
                variants[name] = variants.get(name, False) or changed
        if names := [as_code(name) for name, changed in variants.items() if changed]:
            verb, these = "has" if len(names) == 1 else "have", "this record" if len(records) == 1 else "these records"
            which = f": {', '.join(names)}" if len(names) <= MOST_NAMES else ""
            where = f"{gpu}: " if len(by_gpu) > 1 else ""
            text = f"{len(names)} of {counted(len(variants), 'variant')} {verb} changed since {these}"
            lines += ["", f"*{where}{text}*{which}."]
    return lines


def _short(header: Header | Session) -> str:
    """The GPU without its vendor and memory, such as H100."""
    return header.environment.gpu.removeprefix("NVIDIA ").partition(" ")[0]


def timed_in(*runs: Run) -> Iterator[tuple[Header, str]]:
    """(header, variant id) of what the runs hold times of; of decode loops all variants of their stacks."""
    for run in runs:
        timed = run.header.variants if run.others else (cell.variant_id for cell in run.in_order if cell.metrics)
        yield from ((run.header, name) for name in dict.fromkeys(timed))


# --- blocks -----------------------------------------------------------------------------------------------------------


def environment(names: Sequence[str] = RECORDS) -> list[str]:
    """One line per machine and software."""
    where: dict[str, list[str]] = {}
    for name in names:
        where.setdefault(gpu_and_versions(record(name)), []).append(short_name(name))
    return [f"{', '.join(of_records)}: {text}.  " for text, of_records in where.items()]


def kind_of(variant: str) -> str:
    """``engine``, ``fused`` (our kernels) or ``PyTorch``; ``gone`` where a record is older than its removal."""
    if variant in UPSTREAM:
        return "engine"
    if variant not in _names():
        return "gone"
    return "fused" if variant.startswith(("triton_", "cuda_")) else "PyTorch"


@cache
def _names() -> set[str]:
    return {variant.name for variant in discover().variants}


def fastest(cells: Mapping[str, Cell], kind: str) -> str | None:
    """Of the variants of this kind at a point; None where none was timed."""
    times = {name: median_us(cell, "gpu_us") for name, cell in cells.items() if kind_of(name) == kind}
    return min((name for name, time in times.items() if time), key=times.get, default=None)


def engines_in(cells: Mapping[str, Cell]) -> list[str]:
    """The kernels of engines that were timed at a point."""
    return [name for name in UPSTREAM if name in cells and median_us(cells[name], "gpu_us")]


def summary_cells(gpu: str) -> Iterator[tuple[Row, Run, dict[str, Cell]]]:
    """(row, run, variant -> cell) of the two tables below. Raises SpliceError."""
    for row in SUMMARY:
        there = (name for name in row.records if (ROOT / REFERENCE / gpu / f"{name}.jsonl").is_file())
        run = record(f"{gpu}/{next(there, row.records[-1])}")
        cells = by_point(run, row.operator).get(row.point)
        if not cells:
            raise SpliceError(f"{run.path} has no cells of {row.operator} at {row.point}")
        yield row, run, cells


def headline() -> list[str]:
    """The README's table: the fastest kernel of an engine, or where none has one the fastest PyTorch operators, and the
    faster fused kernel.
    """
    rows, shown = [], []
    for row, run, cells in summary_cells(GPU):
        before = fastest(cells, "engine") or fastest(cells, "PyTorch")
        label = UPSTREAM.get(before, f"PyTorch `{before}`")
        times = {name: median_us(cells[name], "gpu_us") for name in (before, "triton_fused", "cuda_fused")}
        fused = min(("triton_fused", "cuda_fused"), key=times.__getitem__)
        launches = [cells[name].metrics.launches for name in (before, fused)]
        speed_up = f"{significant(times[before] / times[fused], 2)}×"
        microseconds = [f"{significant(times[name])}{'?' * is_doubted(run, cells[name])}" for name in (before, fused)]
        rows.append([row.label, f"{label} {microseconds[0]}", microseconds[1], speed_up, "{} → {}".format(*launches)])
        shown += [(run, cells[name]) for name in (before, fused)]
    table = markdown_table(["", "before, µs", "fused, µs", "speed-up", "launches"], rows)
    return [*table, *stale((run.header, cell.variant_id) for run, cell in shown)]


def summary(gpu: str = GPU) -> list[str]:
    """The fastest of the engines' kernels and of the PyTorch variants beside the fused kernels, 128 requests each."""
    rows, timed = [], []
    for row, run, cells in summary_cells(gpu):
        engine, chain = fastest(cells, "engine"), fastest(cells, "PyTorch")
        shown = [engine or "", chain or "", "triton_fused", "cuda_fused"]
        entries = row_of(run, cells, shown, with_ratio=False)
        names = [f"{UPSTREAM[engine]}: " if engine else "", f"`{chain}`: " if chain else ""]
        rows.append([row.label, *(name + text for name, text in zip(names, entries[:2], strict=True)), *entries[2:]])
        timed += [(run, cells[name]) for name in shown if name in cells]
    run = record(f"{gpu}/upstream")
    records = ", ".join(f"`{name}`" for name in dict.fromkeys(one.header.name for one, _ in timed))
    note = f"{gpu_and_versions(run)}, {packages_of(run)}. Records {records}."
    head = ["", "engine", "PyTorch operators", "Triton", "CUDA C++", "copy bound"]
    old = stale((one.header, cell.variant_id) for one, cell in timed)
    return [*markdown_table(head, rows), "", note, *old]


def loop_overview() -> list[str]:
    """Of every recorded decode loop the largest batch: the ITL with vLLM's functions, or of the reference, and what the
    last stack changes.
    """
    rows = []
    for name, what in LOOPS.items():
        run = record(name)
        gpu = _short(run.header)
        largest = max(loop.axes["concurrency"] for loop in run.others)
        for loops in sorted(loops_by_point(run).values(), key=_most_drafts_then_sync):
            axes, after = loops[0].axes, loops[-1]
            before = _before(loops)
            if (axes["concurrency"], axes["model_step_us"]) != (largest, LOOP_MODEL_STEP_US) or before is None:
                continue
            change = delta(before, after, "itl_us")
            rows.append(
                [
                    f"{what}, {gpu}",
                    f"`{before.stack}` → `{after.stack}`",
                    str(axes["next_n"] - 1),
                    axes["scheduling"],
                    f"{value(before, 'itl_us') / 1000:.2f}",
                    f"{signed(change.us.median)} {as_text(interval_text(change.us))}",
                    percent_text(change),
                    " → ".join(str(one.alone.launches) for one in (before, after)),
                    " → ".join(significant(alone(one, "host_us")) for one in (before, after)),
                ]
            )
    head = [
        "operators, GPU",
        "stacks",
        "drafts",
        "scheduling",
        "ITL before, ms",
        "change, µs",
        "change",
        "launches",
        "host µs",
    ]
    note = (
        f"{largest} requests, model step {LOOP_MODEL_STEP_US / 1000:g} ms; 95 % intervals. Launches, host µs: of a "
        "step's metadata, and the host's time to submit it."
    )
    return [*markdown_table(head, rows, 2), "", note, *stale(timed_in(*map(record, LOOPS)))]


def _before(loops: Sequence[Loop]) -> Loop | None:
    """The stack that the documents compare with: vLLM's functions, else the reference."""
    return next((loop for loop in loops if loop.stack == "vllm_call"), reference_of(loops))


def engine_arms() -> list[str]:
    """Of each server in which arms were measured: ITL, TPOT and the host's time of the replaced part."""
    rows, runs = [], [record(name) for name in ENGINES]
    for what, run in zip(ENGINES.values(), runs, strict=True):
        for batch, arm, *others in arm_rows(all_compared(blocks_of(run))):
            rows.append([what, batch, as_code(arm), *map(as_text, others)])
    return [
        *markdown_table(["server", *ENGINE_HEADS], rows, 3),
        "",
        f"{gpu_and_versions(runs[0])}, {packages_of(runs[0])}.",
    ]


def engine_notes(kind: str, names: Sequence[str]) -> list[str]:
    """Tables of one kind, of records from engines."""
    lines = []
    for name in names:
        table = next(table for table in engine_tables(record(name)) if table.kind == kind)
        lines += [f"{short_name(name)}:", "", *untitled(table), ""]
    return lines[:-1]


def loop_changes(run: Run) -> list[str]:
    """What stacks of today's variants change in the ITL, at one model step and the two largest batches."""
    loops = [ones for ones in loops_by_point(run).values() if ones[0].axes["model_step_us"] == LOOP_MODEL_STEP_US]
    largest = sorted({ones[0].axes["concurrency"] for ones in loops})[-2:]
    loops = [ones for ones in loops if ones[0].axes["concurrency"] in largest]
    today = (loop for ones in loops for loop in ones if _names().issuperset(loop.operators.values()))
    stacks = sorted(dict.fromkeys(loop.stack for loop in today), key=_before(loops[0]).stack.__ne__)
    varying = [axis for axis in ("concurrency", "next_n", "scheduling", "graph")
               if len({ones[0].axes[axis] for ones in loops}) > 1]  # fmt: skip
    rows = []
    for ones in loops:
        reference, by_stack = _before(ones), {loop.stack: loop for loop in ones}
        row = [str(ones[0].axes[axis]) for axis in varying]
        for stack in stacks:
            loop = by_stack.get(stack)
            change = delta(reference, loop, "itl_us") if reference and loop and loop is not reference else None
            if loop is reference and loop is not None:
                row.append(f"{value(loop, 'itl_us') / 1000:.2f} ms")
            else:
                row.append(f"{signed(change.us.median)} {as_text(interval_text(change.us))}" if change else "–")
        rows.append(row)
    head = [*(axis.replace("_", " ") for axis in varying), *(f"`{stack}`" for stack in stacks)]
    return [*markdown_table(head, rows, len(varying)), *stale(timed_in(run))]


def _most_drafts_then_sync(loops: Sequence[Loop]) -> tuple[int, bool]:
    axes = loops[0].axes
    return -axes["next_n"], axes["scheduling"] != "sync"


def engines() -> list[str]:
    """Kernels of engines beside the fused kernels, at the points of ``upstream`` at which they were timed. Those with
    padding are only in the record.
    """
    run, rows, limited, timed = record(f"{GPU}/upstream"), [], [], []
    for operator in dict.fromkeys(cell.operator for cell in run.in_order):
        for label, cells in by_point(run, operator).items():
            for engine in engines_in(cells):
                limited.append(cells[engine])
                if "padding=" not in label:
                    names = [engine, "triton_fused", "cuda_fused"]
                    rows.append([f"`{operator}`", f"`{engine}`", as_text(label), *row_of(run, cells, names)])
                    timed += [(run, cells[name]) for name in names if name in cells]
    notes = [
        f"{gpu_and_versions(run)}; {packages_of(run)}. Record `{run.header.name}`.",
        *map(as_text, known_failure_warnings(limited)),
    ]
    head = ["", "engine's kernel", "point", "engine", "Triton", "CUDA C++", "copy bound"]
    below = [line for note in notes for line in ("", note)]
    return [*markdown_table(head, rows, 3), *below, *stale(timed_in(run))]


def vllm_step() -> list[str]:
    """vLLM's kernels of a step, and its functions around them, beside the fused kernels: the first point of 128
    requests of each operator, and at how many points of the record vLLM's results were exact.
    """
    run, rows, timed = record(f"{GPU}/upstream_step"), [], []
    for operator in dict.fromkeys(cell.operator for cell in run.in_order):
        points = by_point(run, operator)
        label = SUMMARY_POINT if SUMMARY_POINT in points else next(one for one in points if "batch_size=128" in one)
        exact = [counted_passed(points, name) for name in ("vllm", "vllm_call")]
        names = ["vllm", "vllm_call", "triton_fused", "cuda_fused"]
        rows.append([f"`{operator}`", " · ".join(exact), *row_of(run, points[label], names)])
        timed += [(run, points[label][name]) for name in names if name in points[label]]
    head = ["", "exact", "`vllm`", "`vllm_call`", "Triton", "CUDA C++", "copy bound"]
    notes = f"{gpu_and_versions(run)}; {packages_of(run)}. Record `{run.header.name}`."
    return [*markdown_table(head, rows, 2), "", notes, *stale(timed_in(run))]


def counted_passed(points: Mapping[str, Mapping[str, Cell]], variant: str) -> str:
    """At how many of the points that it does not skip a variant passed."""
    statuses = [cells[variant].status for cells in points.values() if variant in cells]
    return f"{statuses.count(Status.PASSED)} of {sum(status is not Status.SKIPPED for status in statuses)}"


def example() -> list[str]:
    text = (ROOT / "examples" / "my_decode_native.py").read_text(encoding="utf-8")
    return ["```python", *text.rstrip().splitlines(), "```"]


def batches(gpu: str = GPU) -> list[str]:
    """Operators by batch size: the fastest of an engine's kernels, or where none was timed of the PyTorch operators,
    and of the fused kernels.
    """
    rows, timed = [], []
    runs = [
        record(f"{gpu}/{name}") for name in ("upstream_step", "upstream", "full", "step", "whole_step", "mamba_copy")
    ]
    for operator in OPERATORS:
        entries = []
        for size in BATCHES:
            found = [(run, cells) for run in runs if (cells := _at_batch(run, operator, size))]
            entries.append(_before_and_fused(found, timed))
        rows.append([f"`{operator}`", *entries])
    head = ["before → fused, µs", *map(str, BATCHES)]
    return [*markdown_table(head, rows), *stale((run.header, cell.variant_id) for run, cell in timed)]


def _at_batch(run: Run, operator: str, size: int) -> dict[str, Cell]:
    """The cells of an operator at the point of the table with this batch size, by variant."""
    rest = BATCH_POINTS.get(operator, "context_len=uniform(4096;8192)")
    points = by_point(run, operator).items()
    return next((cells for label, cells in points if label in (rest, f"batch_size={size},{rest}")
                 and next(iter(cells.values())).axes["batch_size"] == size), {})  # fmt: skip


def _before_and_fused(found: Sequence[tuple[Run, dict[str, Cell]]], timed: list[tuple[Run, Cell]]) -> str:
    """Of the first record that has both; one with an engine's kernel comes first. timed: gets the cells shown."""
    for run, cells in sorted(found, key=lambda one: fastest(one[1], "engine") is None):
        before = fastest(cells, "engine") or fastest(cells, "PyTorch")
        fused = fastest({name: cell for name, cell in cells.items() if name in FUSED}, "fused")
        if before and fused:
            timed += [(run, cells[before]), (run, cells[fused])]
            us = [f"{significant(median_us(cells[name], 'gpu_us'))}" for name in (before, fused)]
            return f"{UPSTREAM.get(before, 'PyTorch')} {us[0]} → {us[1]}"
    return "–"


def runs(names: Sequence[str] = RECORDS) -> list[str]:
    """What the records were made with, and in how many of their cells the GPU time is in doubt."""
    rows = []
    for name in names:
        run = record(name)
        timed = [found for cell in run.cells if (found := estimates(cell.metrics, run.calibration_of(cell)))]
        made = [run.header.started[:10], run.header.environment.commit, str(run.header.seed)]
        rows.append([short_name(name), *made, str(len(timed)), str(sum(one.is_doubted for one in timed))])
    return markdown_table(["record", "date", "commit", "seed", "timed", "in doubt"], rows, 4)


def seconds() -> list[str]:
    """Where the seconds of two configurations went, on the GPUs whose records tell."""
    names = (f"{gpu}/{name}" for gpu in (GPU, H100) for name in ("mtp3", "full"))
    by_record = {name: spent for name in names if (spent := seconds_of(record(name)))}
    rows = [
        [activity, meaning, *(significant(s[activity]) if activity in s else "" for s in by_record.values())]
        for activity, meaning in ACTIVITIES.items()
    ]
    return markdown_table(["activity", "seconds of", *map(short_name, by_record)], rows, 2)


#: Hot records with cells of 128 requests.
PLACEMENT_RECORDS = ("full", "mtp3", "mtp1", "mtp5", "native", "step", "whole_step", "mamba_spec")


@cache
def placements() -> list[str]:
    """Fused variants at 128 requests x (gpu_us, the median on the fastest and on the slowest set of buffers, how far
    these are apart, and how far samples on one set are).

    A variant with one sample on a set is left out: nothing would tell the set from the sample.
    """
    rows: dict[str, list[str]] = {}
    shown = []
    records = (record(f"{GPU}/{name}") for name in PLACEMENT_RECORDS)
    cells = [(run, cell) for run in records for cell in run.in_order]
    for run, cell in cells:
        gpu, count = median_us(cell, "gpu_us"), cell.metrics.placements if cell.metrics else 1
        if not (gpu and count > 1 and cell.variant.endswith("_fused") and cell.axes["batch_size"] == 128):
            continue
        times = slopes(cell.metrics.graph_us)
        sets = [sorted(times[first::count]) for first in range(count)]
        if min(map(len, sets)) < 2:
            continue
        medians = [statistics.median(samples) for samples in sets]
        between = 100 * (max(medians) / min(medians) - 1)
        within = statistics.median(100 * (samples[-1] / samples[0] - 1) for samples in sets)
        name = f"`{cell.operator}/{cell.variant}`"
        numbers = map(significant, (gpu, min(medians), max(medians)))
        if name not in rows:
            rows[name] = [name, *numbers, f"{between:.1f}", f"{within:.1f}"]
            shown.append((run.header, cell.variant_id))
    head = ["variant", "gpu_us", "fastest set", "slowest set", "between sets, %", "on one set, %"]
    versions = gpu_and_versions(record(f"{GPU}/full"))
    return [*markdown_table(head, list(rows.values())), "", f"{versions}.", *stale(shown)]


def read_json(name: str) -> Any:
    """name: a file in results/reference. Raises SpliceError."""
    path = REFERENCE / name
    try:
        return json.loads((ROOT / path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpliceError(f"{path} cannot be read: {error}") from None


def timers() -> list[str]:
    """The timers of tools/compare_timers.py on kernels of known duration."""
    found = read_json(f"{GPU}/compare_timers.json")
    rows = []
    for name, measured_us in found["measured_us"].items():
        differences = [measured - true for true, measured in zip(found["true_us"], measured_us, strict=True)]
        constant = statistics.median(differences)
        worst = max((difference - constant for difference in differences), key=abs)
        rows.append(
            [f"`{name}`", *(f"{us:.3f}" for us in measured_us), f"{constant:.3f}", f"{signed(1000 * worst, '.0f')} ns"]
        )
    head = ["timer", *(f"{us:.3f}" for us in found["true_us"]), "constant", "largest residual"]
    versions = f"{found['gpu']}, driver {found['driver']}, torch {found['torch']}, Triton {found['triton']}."
    return [*markdown_table(head, rows), "", versions]


def mutants() -> list[str]:
    """tools/mutate.py: operators x (mutants, rejected by each part of verify, survived, equivalent); the survivors."""
    results = read_json(f"{H100}/mutants.json")
    tried = results["mutants"]
    counts = tally(tried)
    heads = {"edge case": "edge cases", "array": "array", "random": "random"}
    heads |= {"sweep": "sweep", "no_crash": "crash"}
    parts = [part for part in heads if counts[part]]

    def row(name: str, mine: list[dict]) -> list[str]:
        counts = tally(mine)
        return [name, *map(str, (len(mine), *(counts[one] for one in (*parts, "survived", "equivalent"))))]

    operators = dict.fromkeys(mutant["operator"] for mutant in tried)
    rows = [row(f"`{name}`", [one for one in tried if one["operator"] == name]) for name in sorted(operators)]
    head = ["operator", "mutants", *(heads[part] for part in parts), "survived", "equivalent"]
    survivors = [
        f"* `{one['operator']}/{one['variant']}`: {as_text(one['breaks'])}"
        for one in tried
        if one["outcome"] == "survived" and one["expected"] != "equivalent"
    ]
    lines = [
        *markdown_table(head, [*rows, row("all", tried)]),
        "",
        f"{results['machine']}, seed {results['seed']}. Listed and not tried: {len(all_cases()) - len(tried)}.",
    ]
    return lines + (["", "Survivors:", "", *survivors] if survivors else [])


def pairs() -> list[str]:
    """tools/pairs.py: operators x (points of the covering array, pairs of values that meet there)."""
    found = json.loads((ROOT / "docs" / "pairs.json").read_text())
    rows = [[f"`{name}`", f"{one['points']:,}", f"{one['pairs']:,}", f"{one['MiB']:,}"] for name, one in found.items()]
    sums = [f"{sum(one[key] for one in found.values()):,}" for key in ("points", "pairs", "MiB")]
    return markdown_table(["operator", "points", "pairs", "MiB"], [*rows, ["all", *sums]])


#: Written by tools/error_rates.py.
ERROR_RATES = "error_rates.json"
#: Rule of tools/error_rates.py -> what the documents call it.
RULES = {
    "suite": "**this suite**",
    "bootstrap": "bootstrap of one process a side, 2 % and 0.1 µs",
    "mann_whitney": "Mann-Whitney at 0.05",
    "criterion": "as Criterion.rs",
    "best_of_five": "best of five, ±5 %",
    "nvbench": "as nvbench-compare, robust",
}
#: Slow-downs in the tables, per cent.
SLOWED = ("1", "2", "3", "5", "10")


def _mean(rows: Iterable[Mapping[str, Any]], name: str, digits: int = 1) -> str:
    """Mean of a share over machines or models, in per cent."""
    return f"{100 * statistics.mean(row[name] for row in rows):.{digits}f}"


def _rates(rule: str, kind: str = "recorded") -> list[dict[str, Any]]:
    """The rows of a rule: this suite's with 4 processes a side, another one's with as many as it looks at."""
    rows = [row for row in read_json(ERROR_RATES)["rows"] if row["rule"] == rule and row["kind"] == kind]
    return [row for row in rows if rule != "suite" or row["processes"] == 4]


def error_rates_of_rules() -> list[str]:
    """All rules on the recorded processes, the mean over the machines."""
    rows = []
    for rule, name in RULES.items():
        found = _rates(rule)
        failed = _mean(found, "exit_1")
        rows.append([name, failed, _mean(found, "exit_0"), *(_mean(found, f"found_{share}", 0) for share in SLOWED)])
    head = ["rule", "unchanged: fails, %", "unchanged: passes, %", *(f"+{share} % found, %" for share in SLOWED)]
    return markdown_table(head, rows, 1)


def error_rates_by_processes() -> list[str]:
    """This suite by machine and by the number of processes."""
    rows = []
    for row in (row for row in read_json(ERROR_RATES)["rows"] if row["rule"] == "suite" and row["kind"] == "recorded"):
        rates = [_mean([row], name) for name in ("exit_1", "exit_0", "exit_3")]
        found = [_mean([row], f"found_{share}", 0) for share in SLOWED]
        rows.append([row["corpus"], f"{row['processes']} + {row['processes']}", *rates, *found])
    head = ["machine", "processes", "unchanged: exit 1, %", "exit 0, %", "exit 3, %"]
    return markdown_table([*head, *(f"+{share} % found, %" for share in SLOWED)], rows, 2)


def error_rates_of_models() -> list[str]:
    """Unchanged comparisons that fail under made-up noise, and 5 % found, by rule."""
    models = dict.fromkeys(row["corpus"] for row in read_json(ERROR_RATES)["rows"] if row["kind"] == "model")
    rows = []
    for rule, name in RULES.items():
        found = {row["corpus"]: row for row in _rates(rule, "model")}
        rows.append(
            [name, *(f"{_mean([found[one]], 'exit_1')} · {_mean([found[one]], 'found_5', 0)}" for one in models)]
        )
    return markdown_table(["fails unchanged, % · +5 % found, %", *models], rows, 1)


def error_rate_machines() -> list[str]:
    """The records that the rates come from."""
    found = read_json(ERROR_RATES)
    rows = [
        [name, one["gpu"], str(one["processes"]), str(one["cells"]), f"{100 * one['median_sd']:.2f}",
         f"{100 * one['greatest_sd']:.2f}"]
        for name, one in found["machines"].items()
    ]  # fmt: skip
    head = ["machine", "GPU", "processes", "cells", "deviation between processes, median cell, %", "worst cell, %"]
    lines = markdown_table(head, rows, 2)
    for row in (row for row in found["rows"] if row["kind"] == "two machines"):
        lines += [
            "",
            f"One side on each of {row['corpus']}, {row['processes']} + {row['processes']} processes, with the wider "
            f"band: unchanged comparisons fail in {_mean([row], 'exit_1')} % and pass in {_mean([row], 'exit_0')} %; "
            f"+10 % is found in {_mean([row], 'found_10', 0)} %.",
        ]
    return [*lines, "", f"{found['comparisons']} comparisons a row."]


def profile(tool: str) -> list[str]:
    """The tables of a profile, and what was attributed."""
    path = REFERENCE / H100 / "profiles" / tool / PROFILE
    try:
        found = read_document(ROOT / path, Profile)
    except RecordError as error:
        raise SpliceError(str(error)) from None
    e = found.session.environment
    where = f"{e.gpu}, driver {e.driver}, torch {e.torch}, {TOOLS[found.tool]} {found.tool_version}, commit {e.commit}."
    return [
        *markdown(profile_tables(found)).splitlines(),
        "",
        *(f"{as_text(line)}  " for line in summary_of(found)),
        where,
        *stale((found.session, f"{cell.operator}/{cell.variant}") for cell in found.session.cells),
    ]


def gpus() -> list[str]:
    """A column for each GPU model that ``full`` was recorded on."""
    paths = sorted((ROOT / REFERENCE).glob("*/full.jsonl"), key=lambda path: (path.parent.name != GPU, path))
    of_each = [record(f"{path.parent.name}/full") for path in paths]
    table = summary_table(across_gpus(of_each, "gpu_us"))
    rows = [
        [f"`{operator.text}`", f"`{variant.text}`", *(entry.text for entry in entries)]
        for operator, variant, *entries in table.rows
    ]
    below = f"{as_text(table.title)}. {as_text('; '.join(table.notes))}."
    return [*markdown_table(list(table.heads), rows, texts=2), "", below, *stale(timed_in(*of_each))]


def same_in_both() -> list[str]:
    """What two records are to be -> what must not differ then."""
    words = {
        "compare": "are compared",
        "any_config": "are compared with `--any-config`",
        "side": "are one side of a comparison",
        "history": "make one `history`",
        "state": "share a place on its time axis; else they get two",
        "merge": "are merged as shards",
        "one_record": "come from the GPUs of one run, or from a run and its `--resume`",
    }
    rows = [[text, ", ".join(f"`{name}`" for name in sorted((REFUSED | NOTED)[use]))] for use, text in words.items()]
    return markdown_table(["records that", "have the same"], rows, 2)


def operators() -> list[str]:
    """A section per operator from its module's docstring, its tensors, docstrings of its variants, and its defects."""
    catalog, lines = discover(), []
    for name in OPERATORS:
        variants = [one for one in catalog.of(name) if not one.is_upstream]
        specification = inspect.getdoc(importlib.import_module(f"spec_decode_bench.baselines.{name}.operator")) or ""
        summary = _prose(catalog.operators[name].summary)
        lines += ["", f"## {name}", "", f"{summary[0].upper()}{summary[1:]}.", ""]
        for paragraph in specification.split("\n\n")[1:]:
            lines += [paragraph if paragraph.startswith("    ") else _prose(paragraph), ""]
        lines += [f"<details><summary>Tensors of {name}</summary>", ""]
        lines += [*markdown_table(["tensor", "", ""], _tensors(catalog.operators[name]), 3), "", "</details>", ""]
        rows = [[f"`{one.name}`", _prose(one.doc)] for one in variants if one.defect is None]
        lines += [f"<details><summary>Variants of {name}, and bugs kept as defects</summary>", ""]
        lines += [*markdown_table(["variant", ""], rows, 2), ""]
        lines += [f"* {_prose(one.defect)}" for one in variants if one.defect is not None]
        lines += ["", f"Code: [baselines](../baselines/{name}), [kernels](../kernels/{name}).", "", "</details>"]
    return [*lines, ""]


def _tensors(operator: Operator) -> list[list[str]]:
    """Rows of a table: name as kernels have it, dtype and dimensions, what else is declared of it."""
    rows, module = [], importlib.import_module(f"spec_decode_bench.baselines.{operator.name}.operator")
    of_parts = (
        [_comments(part.module.Outputs) for part in vars(module)["PARTS"].parts] if "PARTS" in vars(module) else []
    )
    for bundle, kind in (("x", operator.inputs), ("out", operator.outputs)):
        comments = dict(item for one in (*of_parts, _comments(kind)) for item in one.items())
        for spec in tensors(kind).values():
            special, dims = spec.special, [_dimension(one) for one in spec.typed.dims]
            condition = special.where.__name__
            notes = [
                "on the CPU" if special.host and not special.uva else "",
                "in pinned memory of the host" if special.uva else "",
                "rows may lie apart" if special.strided else "",
                f"view of `{special.buffer}`" if special.buffer else "",
                f"consumers read `[{', '.join(f':{_dimension(one)}' for one in special.read)}]`"
                if special.read
                else "",
                f"only where `{condition.strip('_')}`" if condition != "<lambda>" else "",
                _prose(comments.get(spec.name, "")),
            ]
            shape = f"{spec.dtype.name} `[{', '.join(dims)}]`"
            rows.append([f"`{bundle}.{spec.name}`", shape, "; ".join(filter(None, notes))])
    return rows


def _dimension(dimension: Dimension) -> str:
    return dimension.__name__.strip("_") if callable(dimension) else str(dimension)


def _comments(kind: type[Tensors]) -> dict[str, str]:
    """Field -> the comment behind or above its declaration."""
    found = {}
    for cls in (
        cls for cls in reversed(kind.__mro__) if issubclass(cls, Tensors) and "<locals>" not in cls.__qualname__
    ):
        text = inspect.getsource(cls) if cls.__module__.startswith(f"{SUITE}.baselines") else ""
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                behind, above = (
                    lines[node.end_lineno - 1][node.end_col_offset :].strip(),
                    lines[node.lineno - 2].strip(),
                )
                found[node.target.id] = (behind or (above if above.startswith("#") else "")).lstrip("# ")
    return found


def _prose(paragraph: str) -> str:
    """A paragraph of a docstring, ``code`` in it, as Markdown."""
    parts = re.split(r"( ?)``(.+?)``( ?)", " ".join(paragraph.split()))  # text, space, code, space, text, ...
    kinds = (as_text, str, as_code, str)
    return "".join(kinds[i % 4](part) for i, part in enumerate(parts))


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "environment": environment,
    "loop-environment": lambda: environment(LOOP_RECORDS),
    "headline": headline,
    "summary": summary,
    "batches": batches,
    "loop-overview": loop_overview,
    "engine-arms": engine_arms,
    "engine-checks": lambda: engine_notes("checks", [f"{GPU}/engine_llama_check", f"{GPU}/engine_deepseek_check"]),
    "engine-captures": lambda: engine_notes(
        "captured", [f"{GPU}/engine_llama_capture", f"{GPU}/engine_deepseek_capture"]
    ),
    "example": example,
    "engines": engines,
    "vllm-step": vllm_step,
    "operators": operators,
    "gpus": gpus,
    "runs": runs,
    "seconds": seconds,
    "h100-environment": lambda: environment(H100_RECORDS),
    "h100-summary": lambda: summary(H100),
    "h100-batches": lambda: batches(H100),
    "h100-runs": lambda: runs(H100_RECORDS),
    "placements": placements,
    "timers": timers,
    "mutants": mutants,
    "pairs": pairs,
    "error-rates": error_rates_of_rules,
    "error-rates-by-processes": error_rates_by_processes,
    "error-rates-of-models": error_rates_of_models,
    "error-rate-machines": error_rate_machines,
    "same-in-both": same_in_both,
    "measure": lambda: ["```python", *inspect.getsource(measure).splitlines(), "```"],
    "profile-nsys": lambda: profile("nsys"),
    "profile-ncu": lambda: profile("ncu"),
}


def lines_of(name: str) -> list[str]:
    """The lines of a block. Raises SpliceError."""
    if name in BLOCKS:
        return BLOCKS[name]()
    if "/" in name:
        return loop_changes(record(name))
    raise SpliceError(f"no block is called {name!r}{did_you_mean(name, [*BLOCKS, *RECORDS])}")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def spliced(path: Path) -> str:
    """The text of a document with its blocks as the records have them. Raises SpliceError."""
    text, short = path.read_text(encoding="utf-8"), shown(path)

    def block(found: re.Match[str]) -> str:
        name, content = found.groups()
        line = text.count("\n", 0, found.start()) + 1
        if MARKER in content:
            raise SpliceError(f"{short}, line {line}: the block {name!r} has no <!-- /splice -->")
        try:
            return "\n".join([f"{MARKER}{name} -->", *lines_of(name), "<!-- /splice -->"])
        except SpliceError as error:
            raise SpliceError(f"{short}, line {line}: {error}") from None

    done = BLOCK.sub(block, text)
    opened = re.findall(rf"^{MARKER}(\S+) -->", text, re.MULTILINE)
    if len(opened) != len(BLOCK.findall(text)):
        raise SpliceError(f"{short}: the block {opened[-1]!r} has no <!-- /splice -->")
    return done


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.splice", description="Write measured metrics into the documents.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a block is out of date")
    options = parser.parse_args(arguments)
    try:
        changed = {path: text for path in documents() if (text := spliced(path)) != path.read_text(encoding="utf-8")}
    except SpliceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path, text in changed.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        print(f"{shown(path)}: {'out of date' if options.check else 'rewritten'}")
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
