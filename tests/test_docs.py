"""The documents: measured parts are those of the records, links lead somewhere, the example runs."""

import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from spec_decode_bench import bench
from spec_decode_bench.harness.discover import discover
from tests import factory
from tests.cli.test_cli import call
from tests.tier import full
from tools import splice

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*splice.documents(), ROOT / "CONTRIBUTING.md"]
EXAMPLE = ROOT / "examples" / "my_decode_native.py"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(path):
    """Of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@full
def test_splicing_changes_nothing(capsys):
    assert splice.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    broken = []
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        file = path.parent / target if target else path
        if "://" not in link and (not file.exists() or (anchor and anchor not in anchors(file))):
            broken.append(link)
    assert broken == []


COMMAND = re.compile(r"^ *python bench\.py (\S[^`\n]*)$", re.MULTILINE)
SHOWN = [*DOCUMENTS, ROOT / ".github" / "workflows" / "gate.yml"]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_commands_shown_are_understood(path):
    """Lines that are a whole command: their flags exist."""
    for shown in COMMAND.findall(path.read_text(encoding="utf-8").replace("\\\n", " ")):
        words = shlex.split(shown.split(" || ")[0].split(" > ")[0], comments=True)
        words = words if words[0] in bench.commands() or words[0].startswith("-") else ["run", *words]
        if "--help" not in words:
            bench.parser().parse_args(words)


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160


def test_the_example_of_the_readme_is_a_variant():
    """Verified as its first line is run, without the times."""
    assert "<!-- splice:example -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    only = ["--only", "decode_native/mine/*", "--variants", EXAMPLE, "--device", "cpu"]
    code, out, err = call("verify", ROOT / "configs" / "smoke.yaml", *only, "--no-array", "--random", 5)
    assert code == 0, out + err
    assert "decode_native/mine" in out


@pytest.mark.parametrize(
    ("block", "place", "error"),
    [
        ("<!-- splice:sumary -->\n<!-- /splice -->", "page.md, line 3", "did you mean summary?"),
        (
            "<!-- splice:nvidia-h200/mtp1x -->\n<!-- /splice -->",
            "page.md, line 3",
            "no record results/reference/nvidia-h200/mtp1x.jsonl; did you mean nvidia-h200/mtp1?",
        ),
        ("<!-- splice:runs -->", "page.md", "'runs' has no <!-- /splice -->"),
        (
            "<!-- splice:runs -->\n<!-- splice:summary -->\n<!-- /splice -->",
            "page.md, line 3",
            "'runs' has no <!-- /splice -->",
        ),
    ],
    ids=["unknown block", "missing record", "unclosed", "unclosed before another"],
)
def test_a_block_that_cannot_be_written_is_one_sentence(block, place, error, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{block}\n")
    monkeypatch.setattr(splice, "documents", lambda: [page])
    assert splice.main([]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {place}: ")
    assert error in err
    assert err.count("\n") == 1
    assert page.read_text() == f"# Page\n\n{block}\n"


def test_an_outdated_block_is_reported_and_rewritten(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    outdated = "before\n<!-- splice:environment -->\noutdated\n<!-- /splice -->\nafter\n"
    page.write_text(outdated)
    monkeypatch.setattr(splice, "documents", lambda: [page])
    assert splice.main(["--check"]) == 1
    assert page.read_text() == outdated
    assert splice.main([]) == 0
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == ["out of date", "rewritten"]
    assert page.read_text() == outdated.replace("outdated", "\n".join(splice.environment()))
    assert splice.main(["--check"]) == 0


def test_the_engines_are_shown_beside_the_rest(monkeypatch):
    """From a made-up record, as the block is in a document only once there is one of a GPU."""
    speeds = {"op_chain": 40.0, "triton_fused": 2.2, "cuda_fused": 1.5, "deep_gemm": 4.8}
    cells = [factory.cell("paged_mqa_schedule", name, {"batch_size": 128}, gpu=us) for name, us in speeds.items()]
    cells[-1] = replace(cells[-1], known_failures={"negative lengths*": "engines clamp them"})
    cells.append(factory.cell("decode_native", "chain_clamp", {"batch_size": 128}, gpu=5.0))
    environment = factory.gpu_environment(packages={"deep_gemm": "2.5.0"})
    monkeypatch.setattr(splice, "record", lambda name: factory.run(environment, cells))
    text = "\n".join(splice.engines())
    assert "| `paged_mqa_schedule` | `deep_gemm` | batch_size=128 | 4.80† · 1 · " in text
    assert "deep_gemm 2.5.0" in text
    assert "does not support" in text
    assert "decode_native" not in text


def run_at(point, speeds):
    """A made-up record of cells at one point. speeds: operator -> variant -> GPU time."""
    cells = [
        factory.cell(operator, name, point, gpu=us) for operator, all_ in speeds.items() for name, us in all_.items()
    ]
    return factory.run(factory.gpu_environment(), cells)


def test_the_readme_compares_with_the_fastest_opponent(monkeypatch):
    """An engine's kernel, else PyTorch operators; never a slower one of the same kind, nor a kernel of ours."""
    speeds = {
        "k_quant_gather": {"op_chain": 2.9, "vllm_cuda": 6.0, "sglang_dsa_triton": 3.0, "gone": 2.5},
        "decode_native": {"chain_clamp": 6.0, "flat_view": 3.0, "triton_sequence": 2.5},
    }
    run = run_at(
        {"batch_size": 128}, {name: all_ | {"triton_fused": 2.0, "cuda_fused": 1.5} for name, all_ in speeds.items()}
    )
    monkeypatch.setattr(splice, "record", lambda name: run)
    monkeypatch.setattr(splice, "SUMMARY", [splice.Row(name, ("upstream",), "batch_size=128") for name in speeds])
    assert [line.split(" | ")[:4] for line in splice.headline()[2:4]] == [
        ["| `k_quant_gather`", "SGLang 3.00", "1.50", "2.0×"],
        ["| `decode_native`", "PyTorch `flat_view` 3.00", "1.50", "2.0×"],
    ]


def test_every_kernel_of_an_engine_counts_as_one():
    assert {one.name for one in discover().variants if one.is_upstream} == set(splice.UPSTREAM)


@full
def test_the_readme_compares_with_an_engine_where_it_has_a_kernel():
    operators = {row.operator: splice.fastest(cells, "engine") for row, _, cells in splice.summary_cells(splice.GPU)}
    timed = (cell for name in ("upstream", "upstream_step") for cell in splice.record(f"{splice.GPU}/{name}").cells)
    with_kernel = {cell.operator for cell in timed if cell.metrics and splice.kind_of(cell.variant) == "engine"}
    assert [name for name, engine in operators.items() if engine is None and name in with_kernel] == []


def sources_today(*variants, changed=()):
    """As a record of today's code has them, but for the files ``changed``."""
    files = {name: min(now) for one in variants for name, now in splice.code_of_variants()[one].items()}
    return files | dict.fromkeys(changed, "0" * 16)


TRITON, CUDA, CHAIN = "decode_native/triton_fused", "decode_native/cuda_fused", "decode_native/chain_clamp"
HEADER, CHAINS = "kernels/decode_native/decode_native.cuh", "baselines/decode_native/chains.py"


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ((), None),
        ([HEADER], f"1 of 3 variants has changed since this record*: `{CUDA}`"),
        ([CHAINS], f"1 of 3 variants has changed since this record*: `{CHAIN}`"),
    ],
    ids=["none", "a header", "a chain"],
)
def test_variants_that_changed_since_their_record_are_named(changed, line):
    cells = [factory.cell(*name.split("/"), {"batch_size": 8}, gpu=2.0) for name in (TRITON, CUDA, CHAIN)]
    run = factory.run(factory.gpu_environment(), cells)
    header = replace(run.header, sources=sources_today(TRITON, CUDA, CHAIN, changed=changed))
    text = "\n".join(splice.stale(splice.timed_in(replace(run, header=header))))
    assert line in text if line else "changed since" not in text
