"""Write the measured parts of *.md and docs/*.md from the records in results/reference/:

    python -m tools.splice            rewrite every block
    python -m tools.splice --check    change nothing; exit code 1 if a block is out of date

A block stands between the lines ``<!-- splice:NAME ARGUMENT -->`` and ``<!-- /splice -->``. NAME is a key of BLOCKS.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path

from msgspec import structs

from spec_decode_bench import bench
from spec_decode_bench.decode_loop.tables import itl_table
from spec_decode_bench.decode_loop.tables import overview_table as loop_overview_table
from spec_decode_bench.engine_plugin.tables import engine_tables
from spec_decode_bench.harness import registry
from spec_decode_bench.harness.analysis.code_changes import code_changes, files_of_variants, timed_variants
from spec_decode_bench.harness.analysis.stats import median_us
from spec_decode_bench.harness.analysis.warnings import doubted_cells
from spec_decode_bench.harness.discover import ROOT, discover
from spec_decode_bench.harness.errors import UsageError, did_you_mean
from spec_decode_bench.harness.records.differences import NOTED, REFUSED, USES
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Environment, Run, split_key
from spec_decode_bench.harness.records.select import chosen
from spec_decode_bench.harness.report import overview
from spec_decode_bench.harness.report.listing import defined
from spec_decode_bench.harness.report.table import Table, as_text, markdown, markdown_rows
from spec_decode_bench.harness.report.tables import result_tables
from spec_decode_bench.profiler.records import PROFILE, Profile, read_document
from spec_decode_bench.profiler.tables import profile_tables
from tools import compare_timers, error_rates, mutate, pairs
from tools import predicted as prediction

registry.load((*bench.ROOMS.values(), *bench.REGISTRATIONS))

REFERENCE = ROOT / "results" / "reference"
BLOCK = re.compile(r"^<!-- splice:(\S+)(?: (\S+))? -->\n(.*?)^<!-- /splice -->$", re.DOTALL | re.MULTILINE)
MARKER = "<!-- splice:"
H200, H100 = "nvidia-h200", "nvidia-h100"
#: Rows of the README's table and of a GPU's results: (operator, record, point, what sets it apart). Where engines have
#: kernels of their own, points that these were timed at.
USUAL = "batch_size=128,context_len=uniform(4096;8192)"
SUMMARY = (
    ("decode_flatten", "upstream", USUAL, ""),
    ("decode_native", "full", USUAL, ""),
    ("paged_mqa_schedule", "upstream", USUAL, ""),
    ("paged_mqa_schedule", "upstream", f"{USUAL},lens_layout=1d,remainder=back", "128 rows of one token"),
    ("mla_tile_schedule", "upstream", f"{USUAL},layout=old", "old layout, 128 heads"),
    ("mla_tile_schedule", "upstream", f"{USUAL},num_heads_q=64", "new layout, 64 heads"),
    ("k_quant_gather", "upstream", "batch_size=128,seq_lens=uniform", "32K prefill tokens, equal sequences"),
    ("mamba_spec_metadata", "upstream", f"{USUAL},cache_mode=align,max_num_seqs=1024", "mode align"),
    *((name, "upstream_step", USUAL, "") for name in ("decode_step", "step_prologue", "step_epilogue", "draft_passes")),
)
#: What sets a row of it apart of which there is no record of an H100.
NOT_ON_H100 = "new layout, 64 heads"
#: What only the H200 has records of: drafts in one pass, DeepSeek-V4, SGLang's tables, a rank of context parallelism.
SEVEN_DRAFTS = "batch_size=128,next_n=8,context_len=uniform(4096;8192)"
RANK = f"{USUAL},cp_size=8,cp_rank=last,cp_interleave=64"
DRAFTERS = (
    ("block_draft_inputs", "block_draft", f"{SEVEN_DRAFTS},num_groups=2", "seven drafts in one pass, two groups"),
    ("draft_budget", "draft_budget", "batch_size=128", "vLLM's rule"),
    ("draft_budget", "draft_budget", "rule=sglang,batch_size=128,padding=0.1,token_padding=16", "SGLang's rule"),
    ("window_tables", "block_draft", SEVEN_DRAFTS, "seven drafts"),
    ("token_requests", "step", "batch_size=128", ""),
    ("gdn_split", "step", "batch_size=128,decode_len=ragged,*prefills=2*", "beside two prefill chunks"),
    ("staged_writes", "step", USUAL, ""),
    ("chain_step", "chain_step", USUAL, "SGLang's EAGLE step"),
    ("gather_block_tables", "token_tables", f"{USUAL},entries=token", "a table entry per token"),
    ("compute_slot_mappings", "dcp", RANK, "a rank of eight"),
    ("decode_flatten", "dcp", RANK, "a rank of eight"),
    ("draft_passes", "dcp", RANK, "a rank of eight"),
    ("decode_step", "dcp", f"{RANK},num_heads_q=16", "a rank of eight"),
)
#: Of docs/decode-loop.md, and the model step at which they are shown.
LOOPS = ("decode_loop_whole_step", "decode_loop_whole_step_mamba", "decode_loop", "decode_loop_mamba")
MODEL_STEP_US = 9000


@cache
def record(name: str) -> Run:
    """name: GPU/RECORD, as in ``nvidia-h200/decode_tables``. Raises RecordError."""
    return read_run(REFERENCE / f"{name}.jsonl")


def changed(*runs: Run, rows: Iterable[overview.AtPoint] = ()) -> list[str]:
    """Below times: which variants of the runs, or of the rows of an overview, have changed since."""
    of_rows = ((row.run.header, cell.variant_id) for row in rows for cell in overview.shown(row))
    return in_italics(code_changes([*(one for run in runs for one in timed_variants(run)), *of_rows]))


def in_italics(sentences: Iterable[str]) -> list[str]:
    return [line for sentence in sentences for line in ("", f"*{as_text(sentence)}.*")]


def machine(e: Environment, packages: bool = True) -> str:
    versions = [f"driver {e.driver}", f"torch {e.torch}", f"Triton {e.triton}"]
    return f"{e.gpu}, {', '.join(versions + [f'{name} {e.package(name)}' for name in e.packages if packages])}."


# --- blocks -----------------------------------------------------------------------------------------------------------


def drafters(gpu: str) -> list[str]:
    return summary(gpu, of=DRAFTERS)


def summary(
    gpu: str,
    table: Callable[[list[overview.AtPoint]], Table] = overview.overview_table,
    of: Sequence[tuple[str, str, str, str]] = SUMMARY,
) -> list[str]:
    rows = []
    for operator, name, point, what in (row for row in of if gpu != H100 or row[-1] != NOT_ON_H100):
        (row,) = overview.rows_at([record(f"{gpu}/{name}")], point, operator)
        rows.append(row._replace(what=what))
    return [*markdown_rows(table(rows)), *changed(rows=rows)]


def records(gpu: str) -> list[str]:
    runs = [record(f"{gpu}/{path.stem}") for path in sorted((REFERENCE / gpu).glob("*.jsonl"))]
    lines = ["| record | date | commit | seed | timed | in doubt |", "| --- | --- | --- | --- | ---: | ---: |"]
    for run in runs:
        header, timed = run.header, [cell for cell in run.cells if median_us(cell, "gpu_us")]
        texts = (Path(run.path).stem, header.started[:10], header.environment.commit, str(header.seed))
        lines.append(f"| {' | '.join(texts)} | {len(timed) or ''} | {len(doubted_cells(run, timed)) or ''} |")
    return [*lines, "", *dict.fromkeys(machine(run.header.environment, packages=False) for run in runs)]


def engines() -> list[str]:
    """Kernels of engines beside the fused ones, at the points without padding where one was timed."""
    run = chosen(record(f"{H200}/upstream"), ["!*padding=0.*"])
    points = {cell.point_key for cell in run.cells if overview.is_engine(cell) and cell.metrics}
    beside = [cell for cell in run.cells if overview.is_engine(cell) or cell.variant.endswith("_fused")]
    run = structs.replace(run, cells=[cell for cell in beside if cell.point_key in points])
    tables = [table for table in result_tables(run) if table.kind == "measured"]
    return [*markdown(tables).splitlines(), "", machine(run.header.environment), *changed(run)]


def vllm_step(name: str) -> list[str]:
    """vLLM's kernels of a step, and its functions around them, beside ours: each operator's first point of 128."""
    run, columns = record(f"{H200}/{name}"), ("vllm", "vllm_call", "triton_fused", "cuda_fused")
    first = {row.operator: row for row in reversed(overview.rows_at([run], "*batch_size=128*"))}
    rows = [row._replace(what="") for row in reversed(first.values())]
    table = overview.overview_table(rows, {name: overview.named(name) for name in columns})
    return [*markdown_rows(table), "", machine(run.header.environment), *changed(rows=rows)]


def loop_overview() -> list[str]:
    runs = [at_model_step(record(f"{gpu}/{name}")) for name in LOOPS for gpu in (H200, H100)]
    return [*markdown_rows(loop_overview_table(runs)), *changed(*runs)]


def loop(name: str) -> list[str]:
    """What stacks of today's variants change in the ITL, at one model step and the largest batch."""
    run, known = at_model_step(record(name)), files_of_variants().keys()
    largest = max(loop.axes["concurrency"] for loop in run.others)
    loops = [loop for loop in run.others if known >= {"/".join(one) for one in loop.operators.items()}]
    before = {"reference": "vllm_call"} if any(loop.stack == "vllm_call" for loop in loops) else {}
    kept = [structs.replace(loop, **before) for loop in loops if loop.axes["concurrency"] == largest]
    return [*markdown_rows(itl_table(structs.replace(run, others=kept))), *changed(run)]


def at_model_step(run: Run) -> Run:
    return structs.replace(run, others=[loop for loop in run.others if loop.axes["model_step_us"] == MODEL_STEP_US])


def engine(given: str) -> list[str]:
    """given: ``KIND:RECORD,...``, tables of one kind of records from engines."""
    kind, _, names = given.partition(":")
    lines, table, runs = [], None, [record(f"{H200}/{name}") for name in names.split(",")]
    for name, run in zip(names.split(","), runs, strict=True):
        table = next(one for one in engine_tables(run) if one.kind == kind)
        lines += [f"`{name}`:", "", *markdown_rows(table), ""]
    below = (f"{as_text(note)}  " for note in table.notes)
    return [*lines, *below, machine(runs[-1].header.environment), *changed(*runs)]


def predicted(given: str) -> list[str]:
    """given: ``LOOP:ENGINE,...``, records of the decode loop and of the servers whose change it predicts."""
    pairs = [[record(f"{H200}/{name}") for name in pair.split(":")] for pair in given.split(",")]
    rows = [row for loop, server in pairs for row in prediction.predictions(server, loop)]
    return markdown_rows(prediction.table(rows))


def profile(given: str) -> list[str]:
    """given: ``TOOL:OPERATOR``, the tables of one operator of a profile."""
    tool, _, operator = given.partition(":")
    found = read_document(REFERENCE / H100 / "profiles" / tool / PROFILE, Profile)
    of = [[row for row in rows if split_key(row.cell)[0] == operator] for rows in (found.rows, found.counters)]
    shown = structs.replace(found, rows=of[0], counters=of[1])
    variants = ((found.session, f"{operator}/{one.variant}") for one in found.session.cells if one.operator == operator)
    below = f"{machine(found.session.environment)} {tool} {found.tool_version}."
    return [*markdown(profile_tables(shown)).splitlines(), "", below, *in_italics(code_changes(variants))]


def mutants(gpu: str) -> list[str]:
    return mutate.documented(json.loads((REFERENCE / gpu / "mutants.json").read_text(encoding="utf-8")))


def same_in_both() -> list[str]:
    fields = {text: ", ".join(f"`{name}`" for name in sorted((REFUSED | NOTED)[use])) for use, text in USES.items()}
    return ["| records that | have the same |", "| --- | --- |", *(f"| {text} | {of} |" for text, of in fields.items())]


def operators() -> list[str]:
    return ["", *(line for operator in discover().operators.values() for line in defined(operator))]


def source(name: str) -> list[str]:
    """name: a file, or ``FILE:FUNCTION`` with ``Class.method`` for a method."""
    path, _, function = name.partition(":")
    text = (ROOT / path).read_text(encoding="utf-8")
    if function:
        module = importlib.import_module(f"spec_decode_bench.{path.removesuffix('.py').replace('/', '.')}")
        text = textwrap.dedent(inspect.getsource(attrgetter(function)(module)))
    return ["```python", *text.rstrip().splitlines(), "```"]


def of_tool(tool: object, path: Path) -> Callable[..., list[str]]:
    """The table that a tool makes of what it wrote."""
    return lambda *argument: tool.documented(json.loads(path.read_text(encoding="utf-8")), *argument)


FUNCTIONS = (
    *(summary, drafters, records, engines, vllm_step, loop_overview, loop),
    *(engine, predicted, profile, mutants, same_in_both),
)
BLOCKS = {function.__name__.replace("_", "-"): function for function in (*FUNCTIONS, operators, source)} | {
    "headline": lambda: summary(H200, overview.speedup_table),
    "timers": of_tool(compare_timers, REFERENCE / H200 / "compare_timers.json"),
    "error-rates": of_tool(error_rates, REFERENCE / "error_rates.json"),
    "pairs": of_tool(pairs, ROOT / "docs" / "pairs.json"),
}


def spliced(path: Path) -> str:
    """The text of a document with its blocks as the records have them. Raises UsageError."""
    text = path.read_text(encoding="utf-8")

    def block(found: re.Match[str]) -> str:
        name, argument, content = found.groups()
        try:
            if MARKER in content:
                raise UsageError(f"the block {name!r} has no <!-- /splice -->")
            if name not in BLOCKS:
                raise UsageError(f"no block is called {name!r}{did_you_mean(name, list(BLOCKS))}")
            lines = BLOCKS[name](*filter(None, [argument]))
        except (UsageError, AttributeError) as error:
            raise UsageError(f"{path.name}, line {text.count(chr(10), 0, found.start()) + 1}: {error}") from None
        return "\n".join([found[0].partition("\n")[0], *lines, "<!-- /splice -->"])

    done = BLOCK.sub(block, text)
    opened = re.findall(rf"^{MARKER}(\S+)", text, re.MULTILINE)
    if len(opened) != len(BLOCK.findall(text)):
        raise UsageError(f"{path.name}: the block {opened[-1]!r} has no <!-- /splice -->")
    return done


def documents() -> list[Path]:
    return [path for folder in (ROOT, ROOT / "docs") for path in sorted(folder.glob("*.md"))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.splice", description="Write measured metrics into the documents.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a block is out of date")
    options = parser.parse_args(arguments)
    try:
        texts = {path: text for path in documents() if (text := spliced(path)) != path.read_text(encoding="utf-8")}
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path, text in texts.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {'out of date' if options.check else 'rewritten'}")
    return 1 if texts and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
