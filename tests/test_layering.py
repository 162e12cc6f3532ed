"""Who may import whom, how long a module may be, and that the engine knows no operator by name."""

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("harness", "baselines", "kernels", "plots")
MODULES = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SOURCES = [Path("bench.py"), *MODULES]
LONGEST = 265

#: Package of the engine -> those it may import beside itself and the modules at the top of harness/, which import none of them.
PACKAGES = {
    "results": set(),
    "plan": {"results"},
    "report": {"results"},
    "proof": set(),
    "ruler": {"proof", "results"},
    "engine": {"plan", "proof", "results", "ruler"},
    "cli": {"engine", "plan", "proof", "report", "results", "ruler"},
}
READERS = {f"harness.results.{name}" for name in ("records", "stats", "compare", "serving", "trust")} | {"harness.wording"}


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


#: They plan, read, compare and draw: all that must work where torch is missing or slow to load.
WITHOUT_TORCH = {
    module_name(path) for path in MODULES if path.parts[0] == "plots" or path.parts[1] in ("plan", "results", "report")
} | {"harness.contract", "harness.wording", "harness.engine.protocol", "harness.ruler.timing"}


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
    return {name for name in imports(path) if name.split(".")[0] in (*FOLDERS, "bench", "tests")}


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
    assert "torch" in imports(Path("harness/proof/verify.py"))
    assert chain_to_torch("harness.cli.commands", set())
    assert "harness.cli.commands" in imports(Path("bench.py"))
    assert "torch" not in imports(Path("harness/contract.py"))  # there it stands under TYPE_CHECKING
    assert len(MODULES) > 30


@pytest.mark.parametrize("name", sorted(WITHOUT_TORCH))
def test_planning_reading_and_drawing_never_import_torch(name):
    chain = chain_to_torch(name, set())
    assert chain is None, " imports ".join(chain)


def test_planning_reading_and_drawing_run_without_torch():
    program = f"import importlib, sys; [importlib.import_module(n) for n in {sorted(WITHOUT_TORCH)}]; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_layers(path):
    folder, used = path.parts[0], ours(path)
    if folder == "kernels":
        allowed = {"harness.contract", "harness.cuda"}
        wrong = {name for name in used if name not in allowed and not name.startswith("kernels._")}
    elif folder == "baselines":
        allowed = {"harness.contract", "harness.cuda"}
        wrong = {name for name in used if name not in allowed and not name.startswith("baselines._")}
    elif folder == "plots":
        wrong = {name for name in used if name not in READERS and name.split(".")[0] != "plots"}
    else:
        package = package_of(module_name(path))
        wrong = {name for name in used if name.split(".")[0] in ("baselines", "kernels", "bench", "tests")}
        wrong |= {name for name in used if package_of(name) not in (None, package, *PACKAGES.get(package, ()))}
        if package != "cli":
            wrong |= {name for name in used if name.split(".")[0] == "plots"}
    assert wrong == set()


def package_of(name: str) -> str | None:
    """The package of harness/ that a module belongs to; None for what stands at the top of it, or elsewhere."""
    first, *inner = name.split(".")
    return inner[0] if first == "harness" and inner and inner[0] in PACKAGES else None


def test_every_package_has_its_rule():
    assert set(PACKAGES) == {path.parts[1] for path in MODULES if path.parts[0] == "harness" and len(path.parts) > 2}


def importers(name: str) -> set[str]:
    return {str(path) for path in SOURCES if name in imports(path)}


def test_every_reader_is_read():
    assert all(any(path.startswith("plots/") for path in importers(name)) for name in READERS)


def test_only_the_commands_drive_a_run():
    names = ("commands", "doctor", "recording", "verification")
    assert importers("harness.engine.run") == {f"harness/cli/{name}.py" for name in names}


def test_only_the_loop_and_its_verification_know_the_worker():
    assert importers("harness.engine.worker") == {"harness/engine/run.py", "harness/engine/auditing.py", "harness/cli/verification.py"}


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


def operator_names() -> set[str]:
    """From the files of baselines/ and from the calls of Operator in them."""
    names = {path.stem for path in MODULES if path.parts[0] == "baselines" and not path.stem.startswith("_")}
    for path in (path for path in MODULES if path.parts[0] == "baselines"):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Operator":
                names |= {k.value.value for k in node.keywords if k.arg == "name" and isinstance(k.value, ast.Constant)}
    return names


ENGINE = sorted(p.relative_to(ROOT) for p in (ROOT / "harness").rglob("*") if p.is_file() and "__pycache__" not in p.parts)


@pytest.mark.parametrize("path", ENGINE, ids=str)
def test_the_engine_knows_no_operator_by_name(path):
    names = operator_names()
    assert {"decode_native", "decode_flatten"} <= names
    text = (ROOT / path).read_text(encoding="utf-8")
    assert [name for name in sorted(names) if name in text] == []


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_module_grows_too_long(path):
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{path} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_names_say_what_is_inside(path):
    words = set(path.stem.strip("_").split("_"))
    assert not words & {"utils", "util", "manager", "impl", "helpers", "misc", "common"}


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="needs ruff: pip install ruff")
def test_ruff_is_content():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
