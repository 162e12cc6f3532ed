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

#: They plan, read, compare and draw: all that must work where torch is missing or slow to load.
WITHOUT_TORCH = {
    f"harness.{name}"
    for name in (
        "contract",
        "config",
        "sweep",
        "records",
        "record_file",
        "resume",
        "trust",
        "caveats",
        "turns",
        "stats",
        "compare",
        "serving",
        "report",
        "tables",
        "wording",
        "protocol",
        "timing",
    )
} | {name for path in MODULES if path.parts[0] == "plots" for name in [".".join(path.with_suffix("").parts).removesuffix(".__init__")]}
READERS = {f"harness.{name}" for name in ("records", "stats", "compare", "serving", "trust")}


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


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
    assert "torch" in imports(Path("harness/verify.py"))
    assert chain_to_torch("harness.commands", set())
    assert "harness.commands" in imports(Path("bench.py"))
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
        wrong = {name for name in used if name.split(".")[0] in ("baselines", "kernels", "bench", "tests")}
        if path.name not in ("commands.py", "recording.py", "doctor.py"):
            wrong |= {name for name in used if name.split(".")[0] == "plots"}
    assert wrong == set()


def importers(name: str) -> set[str]:
    return {str(path) for path in SOURCES if name in imports(path)}


def test_every_reader_is_read():
    assert all(any(path.startswith("plots/") for path in importers(name)) for name in READERS)


def test_only_the_commands_drive_a_run():
    assert importers("harness.run") == {"harness/commands.py", "harness/doctor.py", "harness/recording.py", "harness/verification.py"}


def test_only_the_loop_and_its_verification_know_the_worker():
    assert importers("harness.worker") == {"harness/run.py", "harness/auditing.py", "harness/verification.py"}


def test_only_the_command_line_imports_the_commands():
    assert importers("harness.commands") == {"bench.py"}


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
