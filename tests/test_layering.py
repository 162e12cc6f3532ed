"""Who may import whom, and that the harness knows no operator by name."""

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.processes import run_python

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "baselines", "kernels", "peers", "plots")
MODULES = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SOURCES = [Path("bench.py"), *MODULES]
OPERATORS = sorted(path.parent.name for path in (ROOT / "baselines").glob("*/operator.py"))

#: Package of the harness -> packages it may import, beside itself and the modules at the top of harness/.
PACKAGES = {
    "records": set(),
    "analysis": {"records"},
    "config": {"analysis", "records"},
    "decode_loop": {"config", "records", "verify"},
    "report": {"analysis", "records"},
    "verify": set(),
    "timing": {"analysis", "records"},
    "profiling": {"config", "records", "timing", "verify"},
    "runner": {"analysis", "config", "decode_loop", "records", "timing", "verify"},
    "cli": {"analysis", "config", "profiling", "records", "report", "runner", "timing", "verify"},
}
#: What an operator's files may import beside those of their own folder.
OF_OPERATORS = {"harness.contract", "harness.cuda", "harness.launch", "baselines.workloads"}
#: The operators that are made of others.
COMPOSED = {"decode_step", "step_prologue", "step_epilogue", "draft_passes"}


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


#: They plan, read, compare and draw: all that must work where torch is missing or slow to load.
WITHOUT_TORCH = {
    module_name(path)
    for path in MODULES
    if path.parts[0] == "plots"
    or path.parts[1] in ("config", "records", "analysis", "report")
    or (path.parts[1] == "profiling" and path.stem != "workload")
} | {"harness.contract", "harness.wording", "harness.runner.protocol", "harness.timing.rounds"}


def is_module(name: str) -> bool:
    stem = ROOT.joinpath(*name.split("."))
    return stem.with_suffix(".py").is_file() or (stem / "__init__.py").is_file()


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules a file imports at any depth, inside functions too; what only a type checker sees does not count."""
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if is_module(name) else node.module for name in inner)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path)))
    return frozenset(found)


def ours(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] in (*FOLDERS, "bench", "tests", "tools")}


def path_of(name: str) -> Path:
    stem = Path(*name.split("."))
    return stem / "__init__.py" if (ROOT / stem).is_dir() else stem.with_suffix(".py")


def chain_to_torch(name: str, seen: set[str]) -> list[str] | None:
    """How a module gets at torch through imports of this project; None where it does not."""
    seen.add(name)
    for imported in sorted(imports(path_of(name))):
        if imported.split(".")[0] in ("torch", "triton"):
            return [name, imported]
        if imported.split(".")[0] in FOLDERS and imported not in seen and (rest := chain_to_torch(imported, seen)):
            return [name, *rest]
    return None


def test_the_walk_sees_what_it_is_meant_to_see():
    """Of a module known to import torch, of one that reaches it through another, of an import inside a function."""
    assert "torch" in imports(Path("harness/verify/fixture.py"))
    assert chain_to_torch("harness.cli.commands", set())
    assert "harness.cli.commands" in imports(Path("bench.py"))
    assert "torch" not in imports(Path("harness/contract.py"))  # there it stands under TYPE_CHECKING
    assert len(MODULES) > 30


@pytest.mark.parametrize("name", sorted(WITHOUT_TORCH))
def test_planning_reading_and_drawing_never_import_torch(name):
    chain = chain_to_torch(name, set())
    assert chain is None, " imports ".join(chain)


def test_planning_reading_and_drawing_run_without_torch():
    names = sorted(WITHOUT_TORCH)
    program = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; sys.exit('torch' in sys.modules)"
    done = run_python(program)
    assert done.returncode == 0, done.stderr


def test_what_takes_long_to_import_is_not_loaded_before_the_first_cell():
    """By the process that plans and by the one that measures."""
    slow = ("scipy.stats", "matplotlib", "hypothesis", "torch._inductor", "torch._dynamo")
    loaded = "import harness.cli.run, harness.runner.evaluator, harness.discover as d; d.discover()"
    program = f"import sys; {loaded}; print(*({set(slow)} & set(sys.modules)))"
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def package_of(name: str) -> str | None:
    """The package of harness/ that a module belongs to; None for what stands at the top of it, or elsewhere."""
    first, *inner = name.split(".")
    return inner[0] if first == "harness" and inner and inner[0] in PACKAGES else None


def is_allowed_to_operators(name: str) -> bool:
    return name in OF_OPERATORS or name.startswith("baselines.workloads.")


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] == "baselines"], ids=str)
def test_baselines_import_their_own_folder_and_the_workloads(path):
    operator = path.parts[1]
    allowed = [operator] if operator not in COMPOSED else OPERATORS
    own = tuple(f"baselines.{name}" for name in allowed)
    wrong = {name for name in ours(path) if not is_allowed_to_operators(name) and not name.startswith(own)}
    assert wrong == set()


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] == "kernels"], ids=str)
def test_kernels_import_their_own_folder_and_the_types_of_their_operator(path):
    """Types and pure helpers of baselines/<operator>/operator.py; no chain, no defect, no case."""
    operator = path.parts[1]
    allowed = [operator] if operator not in COMPOSED else OPERATORS
    own = (*(f"kernels.{name}" for name in allowed), *(f"baselines.{name}.operator" for name in allowed))
    wrong = {name for name in ours(path) if not is_allowed_to_operators(name) and not name.startswith(own)}
    assert wrong == set()


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] == "peers"], ids=str)
def test_peers_import_the_types_of_operators_and_each_other(path):
    allowed = {f"baselines.{name}.operator" for name in OPERATORS} | {"harness.packages"}
    wrong = {name for name in ours(path) if not is_allowed_to_operators(name) and name not in allowed}
    assert {name for name in wrong if not name.startswith("peers.")} == set()


@pytest.mark.parametrize("folder", ["baselines", "kernels"])
def test_few_arrows_between_operators(folder):
    arrows = {
        (path.parts[1], name.split(".")[1])
        for path in MODULES
        if path.parts[0] == folder and len(path.parts) > 2 and path.parts[1] != "workloads"
        for name in ours(path)
        if name.split(".")[0] == folder and name.split(".")[1] in OPERATORS and name.split(".")[1] != path.parts[1]
    }
    assert {source for source, _ in arrows} <= COMPOSED


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] in ("kernels", "peers")], ids=str)
def test_no_kernel_uses_a_reference(path):
    """A variant that called the reference would agree with it whatever it computed."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert "reference" not in names


@pytest.mark.parametrize("path", [p for p in MODULES if p.name == "operator.py"], ids=str)
def test_a_reference_imports_no_variant(path):
    """Nothing that operator.py imports defines a variant; the reference in it stands on plain loops alone."""

    def defines_variants(module: Path) -> bool:
        tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
        calls = [d for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for d in node.decorator_list]
        return any(isinstance(d, ast.Call) and ast.unparse(d.func) == "variant" for d in calls)

    local = {name for name in ours(path) if name.startswith("baselines.") and is_module(name)}
    assert {name for name in local if defines_variants(path_of(name))} == set()
    # A small operator may hold its variants beside the reference; there the functions are told apart.
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    variants = {
        name for name, node in functions.items() if any("variant" in ast.unparse(d) for d in node.decorator_list)
    }
    called, waiting = set(), ["reference"]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in called:
            called.add(name)
            waiting += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    assert "reference" in called
    assert not called & variants


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] == "plots"], ids=str)
def test_plots_read_records_and_their_analysis(path):
    def allowed(name: str) -> bool:
        return name.split(".")[0] == "plots" or package_of(name) in ("records", "analysis") or name == "harness.wording"

    assert {name for name in ours(path) if not allowed(name)} == set()


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] == "harness"], ids=str)
def test_layers_of_the_harness(path):
    used, package = ours(path), package_of(module_name(path))
    wrong = {
        name for name in used if name.split(".")[0] in ("baselines", "kernels", "peers", "bench", "tests", "tools")
    }
    # What engine and requests are, not what any operator does.
    wrong -= {name for name in wrong if name.startswith("baselines.workloads.")}
    wrong |= {name for name in used if package_of(name) not in (None, package, *PACKAGES.get(package, ()))}
    if package != "cli":
        wrong |= {name for name in used if name.split(".")[0] == "plots"}
    assert wrong == set()


def test_every_package_has_its_rule():
    assert set(PACKAGES) == {path.parts[1] for path in MODULES if path.parts[0] == "harness" and len(path.parts) > 2}


def importers(name: str) -> set[str]:
    return {str(path) for path in SOURCES if name in imports(path)}


def test_only_the_command_line_imports_the_commands():
    assert importers("harness.cli.commands") == {"bench.py"}


def test_nobody_imports_the_command_line():
    assert importers("bench") == set()


def test_the_command_line_answers_help_without_loading_anything():
    tree = ast.parse((ROOT / "bench.py").read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


HARNESS = sorted(
    p.relative_to(ROOT) for p in (ROOT / "harness").rglob("*") if p.is_file() and "__pycache__" not in p.parts
)


@pytest.mark.parametrize("path", HARNESS, ids=str)
def test_the_harness_knows_no_operator_by_name(path):
    assert {"decode_native", "decode_flatten"} <= set(OPERATORS)
    text = (ROOT / path).read_text(encoding="utf-8")
    assert [name for name in OPERATORS if name in text] == []


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_names_say_what_is_inside(path):
    words = {word for part in path.with_suffix("").parts for word in part.strip("_").split("_")}
    assert not words & {"utils", "util", "manager", "impl", "helpers", "misc", "common"}


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="needs ruff: pip install ruff")
@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_is_content(command):
    run = [sys.executable, "-m", "ruff", *command, "--no-cache", "."]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
