"""What is found in operator folders and in files of --variants, and one sentence for everything wrong with them."""

import importlib
import re
import sys
import textwrap
from pathlib import Path

import pytest

from spec_decode_bench import bench
from spec_decode_bench.harness.contract import COMPILER, GPU, Variant
from spec_decode_bench.harness.discover import DiscoveryError, discover, import_file, operator_names, unavailable
from spec_decode_bench.harness.import_by_content import ROOT
from spec_decode_bench.harness.records.sentences import of_reason

HEAD = "from spec_decode_bench.harness.contract import variant\n"
BODY = "(point, x, out):\n    '''A made-up one.'''\n    return lambda: None\n"


#: With a variant, in_operator.
OPERATOR = f"""
from spec_decode_bench.harness.contract import Axis, EdgeCase, Operator, variant
from spec_decode_bench.harness.tensors import Tensors
operator = Operator(name="tiny", summary="", axes=(Axis("n", int, 1, ""),), inputs=Tensors, outputs=Tensors,
                    make_inputs=lambda point, seed: None, reference=lambda point, x: None, bytes_moved=None,
                    baseline="in_operator", edge_cases=(EdgeCase("one", {{}}),))
@variant("tiny")
def in_operator{BODY}
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")


def file(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return path


def test_files_add_their_variants_behind_the_others(tmp_path):
    needs = f"{HEAD}@variant('decode_native', requires='nowhere', skip=lambda p: 'never')\ndef mine{BODY}again = mine\n"
    (tmp_path / "other").mkdir()
    file(tmp_path, needs)
    file(tmp_path / "other", f"{HEAD}@variant('decode_native')\ndef from_a_file_of_the_same_name{BODY}")
    catalog = discover(["mine.py", "other/mine.py"])
    before = discover().variants
    assert catalog.variants[: len(before)] == before
    mine, other = catalog.variants[len(before) :]  # the second name is the same function
    assert (mine.id, mine.doc, mine.requires, mine.defect) == (
        "decode_native/mine",
        "A made-up one.",
        ("nowhere",),
        None,
    )
    assert other.name == "from_a_file_of_the_same_name"
    assert of_reason(unavailable(mine, "cpu")) == "needs the Python module nowhere"


def test_a_file_may_define_an_operator(tmp_path):
    catalog = discover(
        [file(tmp_path, f"from spec_decode_bench.baselines.decode_native import operator as decode_native\n{OPERATOR}")]
    )
    assert [v.id for v in catalog.of("tiny")] == ["tiny/in_operator"]


@pytest.mark.parametrize("name", operator_names())
def test_one_operator_alone_has_the_variants_and_consumers_that_it_has_among_all(name):
    alone, among_all = discover(operators=[name]), discover()
    assert alone.variants == among_all.of(name)
    assert alone.consumers == [one for one in among_all.consumers if one.operator == name]
    assert alone.broken == {}


def test_files_bring_the_operators_of_their_variants(tmp_path):
    text = f"{HEAD}@variant('decode_native')\ndef flat_view{BODY}"  # the name of one that is there
    with pytest.raises(DiscoveryError, match="decode_native/flat_view is defined already"):
        discover([file(tmp_path, text)], operators=["decode_flatten"])
    catalog = discover([file(tmp_path, text.replace("flat_view", "mine"))], operators=["decode_flatten"])
    assert list(catalog.operators) == ["decode_flatten", "decode_native"]
    assert catalog.variants[-1].id == "decode_native/mine"


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("edge_cases=(EdgeCase('B = 2', {'n': 2}), EdgeCase('B = 3', {'k': 3}))", "edge case 'B = 3'"),
        ("sequences={'big-small': ({'n': 2}, {'k': 1})}", "sequence 'big-small'"),
    ],
)
def test_edge_cases_and_sequences_set_axes_that_the_operator_has(tmp_path, field, place):
    text = OPERATOR.replace('edge_cases=(EdgeCase("one", {}),)', field)
    with pytest.raises(DiscoveryError) as caught:
        discover([file(tmp_path, text)])
    assert re.fullmatch(rf".*mine\.py: tiny: {place} has no axis 'k' to set; valid are n", str(caught.value))


FAULTS = {
    "raises": ("x = 1\n\nraise ValueError('boom')\n", "ValueError: boom (mine.py, line 3)"),
    "syntax": ("x = 1\ndef f(:\n    pass\n", "SyntaxError: invalid syntax (mine.py, line 2)"),
    "misspelt operator": (
        f"{HEAD}@variant('decode_nativ')\ndef mine{BODY}",
        "unknown operator 'decode_nativ'; did you mean decode_native?",
    ),
    "one function name for two operators": (
        f"{HEAD}@variant('decode_native')\ndef mine{BODY}\n@variant('decode_flatten')\ndef mine{BODY}",
        "decode_native/mine and decode_flatten/mine are one function name in this file",
    ),
    "misspelt keyword": (
        f"{HEAD}@variant('decode_native', require='cuda')\ndef mine{BODY}",
        "unexpected keyword argument 'require' (mine.py, line 2)",
    ),
    "a class": (
        f"{HEAD}@variant('decode_native')\nclass Mine:\n    pass\n",
        "marks a function (point, x, out) -> launch, not <class",
    ),
    "nothing in it": ("x = 1\n", "no variant"),
    "ends the process": ("import os\nos._exit(0)\n", "the process that imported it ended with exit code 0"),
    "segfaults": ("import ctypes\nctypes.string_at(0)\n", "the process that imported it was killed by SIGSEGV"),
    "closes stdout": (
        f"{HEAD}import os\nos.close(1)\n@variant('decode_native')\ndef mine{BODY}",
        "its import closes standard output or standard error",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_file_is_one_sentence_and_exit_code_2(case, tmp_path, capsys):
    text, words = FAULTS[case]
    (tmp_path / "mine.py").write_text(text)
    assert bench.main(["list", "--variants", "mine.py"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"error: .*mine\.py: ", err)
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from harness.contract import (\n    variant,\n)\n", "harness.contract"),
        ("from harness import cuda\n", "harness.cuda"),
        ("import baselines.decode_native.chains as chains\n", "baselines.decode_native.chains"),
    ],
)
def test_an_import_without_the_name_of_the_suite_is_told_what_to_write(text, name, tmp_path, outside):
    with pytest.raises(DiscoveryError) as caught:
        import_file(file(tmp_path, text))
    hint = f"{name}: write spec_decode_bench.{name}, or from spec_decode_bench import variant"
    assert str(caught.value) == f"--variants {tmp_path / 'mine.py'}: cannot be imported: {hint}"


@pytest.fixture
def outside(monkeypatch):
    """As bench.py leaves it: the folders of the suite have no top-level name."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() != ROOT])


def module_with(name):
    return f"{HEAD}@variant('tiny')\ndef {name}{BODY}"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A function that writes files of an operator ``tiny`` into folders that are found beside those of the suite."""

    from spec_decode_bench import baselines, kernels
    from spec_decode_bench.harness import discover as discovery

    monkeypatch.setattr(discovery, "ROOT", tmp_path)
    for package in (baselines, kernels):
        folder = tmp_path / package.__name__.rpartition(".")[2]
        folder.mkdir()
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])

    def write(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        importlib.invalidate_caches()
        return discover()

    yield write
    for name in [name for name in sys.modules if ".tiny" in name]:
        del sys.modules[name]


def test_a_broken_file_costs_only_its_own_variants(tiny):
    files = {"baselines/tiny/operator.py": OPERATOR, "kernels/tiny/triton.py": "x = 1\n1 / 0\n"}
    files |= {"kernels/tiny/cuda.py": module_with("cuda"), "kernels/tiny/left.py": "import sys\nsys.exit(1)\n"}
    catalog = tiny(files)
    assert [v.name for v in catalog.variants] == ["in_operator", "cuda"]
    assert catalog.broken == {
        "kernels/tiny/triton.py": "ZeroDivisionError: division by zero (triton.py, line 2)",
        "kernels/tiny/left.py": "SystemExit: 1 (left.py, line 2)",
    }


def test_a_folder_without_its_operator_is_listed_with_the_reason(tiny):
    catalog = tiny({"baselines/tiny/operator.py": "1 / 0\n", "kernels/tiny/triton.py": module_with("fused")})
    assert catalog.variants == []
    assert list(catalog.broken) == ["baselines/tiny/operator.py", "kernels/tiny/triton.py"]
    assert catalog.broken["kernels/tiny/triton.py"] == "fused: unknown operator 'tiny'"


EXAMPLE = Path(bench.__file__).parent / "examples" / "cu_seqlens.py"
CU_SEQLENS = "name: c\noperators: [cu_seqlens]\nsweep: [{batch_size: 3}]\n"
#: What a sweep refuses of the operator in examples/cu_seqlens.py: (text there, its replacement, the sentence).
INCOMPLETE = {
    "no edge cases": ("edge_cases=", "edge_cases=() and ", "mine.py: cu_seqlens has no edge_cases, so"),
    "no baseline": (
        'baseline="padded_cumsum"',
        'baseline="padded_cumsm"',
        "mine.py: the baseline of cu_seqlens, 'padded_cumsm', is no variant; did you mean padded_cumsum?",
    ),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_an_incomplete_operator_is_refused_with_its_file(case, tmp_path, capsys):
    before, after, said = INCOMPLETE[case]
    text = EXAMPLE.read_text().replace(before, after)
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "c.yaml").write_text(CU_SEQLENS)
    assert bench.main(["c.yaml", "--variants", "mine.py", "--plan"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1


def test_a_reference_that_forgets_an_output_is_found_by_the_verifier(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text().replace("    return {", "    return {} and {"))
    (tmp_path / "c.yaml").write_text(CU_SEQLENS)
    assert bench.main(["c.yaml", "--variants", "mine.py", "--plan"]) == 0
    assert bench.main(["verify", "c.yaml", "--variants", "mine.py", "--device", "cpu"]) == 1
    assert "the reference of cu_seqlens has no answer for 'cu_seqlens'" in " ".join(capsys.readouterr().out.split())


def test_availability_says_what_is_missing(monkeypatch, tmp_path):
    def needing(*requires):
        return Variant("op", "v", lambda *_: None, "", "test", requires=requires)

    assert unavailable(needing(), "cpu") is None
    assert of_reason(unavailable(needing(GPU), "cpu")) == "needs a GPU"
    assert unavailable(needing(GPU), "cuda") is None
    assert of_reason(unavailable(needing("json", "nowhere"), "cpu")) == "needs the Python module nowhere"
    assert of_reason(unavailable(needing("nowhere.inner"), "cpu")) == "needs the Python module nowhere.inner"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert of_reason(unavailable(needing(COMPILER), "cpu")).startswith("needs a C++ compiler")


def test_a_broken_file_of_an_operator_in_the_run_is_refused(tiny, tmp_path, capsys):
    config = tmp_path / "tiny.yaml"
    config.write_text("name: t\noperators: [tiny]\nsweep: [{}]\n")
    tiny(
        {
            "baselines/tiny/operator.py": OPERATOR,
            "kernels/tiny/triton.py": "def f(:\n",
            "kernels/tiny/cuda.py": "1 / 0\n",
        }
    )
    assert bench.main([str(config), "--plan", "--only", "tiny/triton*"]) == 2
    said = "error: kernels/tiny/triton.py cannot be used: SyntaxError: invalid syntax (triton.py, line 1)\n"
    assert capsys.readouterr().err == said
