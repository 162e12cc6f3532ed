"""Who may import whom, and that the harness knows no operator by name."""

import ast
import re
from functools import cache
from pathlib import Path

from spec_decode_bench.harness.import_by_content import OPERATORS as FOLDERS_OF_OPERATORS
from spec_decode_bench.harness.import_by_content import PACKAGES, SUITE
from tests.processes import run_python
from tests.tier import full

ROOT = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(ROOT) for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))
SOURCES = [Path("bench.py"), *MODULES]
OPERATORS = sorted(path.parent.name for path in (ROOT / "baselines").glob("*/operator.py"))

# --- the folders ------------------------------------------------------------------------------------------------------

ROOMS = [folder for folder in PACKAGES if folder not in (*FOLDERS_OF_OPERATORS, "harness", "plots")]
#: Folder, or file -> what it may import beside itself. A room is no other room's.
MAY_IMPORT = {room: {"plots", "harness"} for room in ROOMS} | {
    "bench.py": {*ROOMS, "plots", "harness"},
    "plots": {"harness"},
    "harness": set(),
    "upstream": {"kernels", "baselines", "harness"},
    "kernels": {"baselines", "harness"},
    "baselines": {"harness"},
}
#: What a kernel or a room may know of baselines/: types and pure helpers of operators, and what these share. No chain,
#: no defect, no case.
OF_BASELINES = re.compile(r"baselines\.(workloads(\.\w+)*|\w+\.operator)")
#: The rooms that run operators as an engine would.
OPERATE = {"decode_loop", "engine_plugin"}
#: Of a module of this suite.
NAME = re.compile(rf"{SUITE}(\.\w+)+")


def may_import(path: Path, name: str) -> bool:
    """name: of a module of this suite, without spec_decode_bench."""
    own, folder = path.parts[0], top(name)
    if folder == "baselines" and own != folder:
        return own in {"kernels", "upstream"} | OPERATE and OF_BASELINES.fullmatch(name) is not None
    return folder == own or folder in MAY_IMPORT[own]


def test_imports_go_one_way():
    wrong = [f"{path} imports {name}" for path in SOURCES for name in sorted(ours(path)) if not may_import(path, name)]
    assert not wrong, "\n".join(wrong)


def test_no_other_folder_is_imported():
    """Tests and tools import the suite, not the other way round; each module by its one name."""
    others = {"tests", "tools", "bench", *PACKAGES} - {"kernels"}  # which is also a package of Hugging Face
    assert {str(path): names for path in SOURCES if (names := {top(name) for name in imports(path)} & others)} == {}


def file_of(name: str) -> Path | None:
    """Of a module without spec_decode_bench."""
    stem = Path(*name.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if (ROOT / path).is_file()), None)


def top(name: str) -> str:
    return name.partition(".")[0]


def ours_of(name: str) -> str:
    return name.removeprefix(f"{SUITE}.")


class WithoutTypeChecking(ast.NodeTransformer):
    def visit_If(self, node):
        is_it = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        return node.orelse if is_it else self.generic_visit(node)


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules a file imports at any depth, inside functions too, or names in a string for import_module; what only a
    type checker sees does not count.
    """
    found = set()
    for node in ast.walk(WithoutTypeChecking().visit(ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path)))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if file_of(ours_of(name)) else node.module for name in inner)
        elif isinstance(node, ast.Constant) and NAME.fullmatch(str(node.value)) and file_of(ours_of(node.value)):
            found.add(node.value)
    return frozenset(found)


def ours(path: Path) -> set[str]:
    """Modules of this suite that a file imports, without spec_decode_bench."""
    return {ours_of(name) for name in imports(path) if name.startswith(f"{SUITE}.")}


# --- torch ------------------------------------------------------------------------------------------------------------

#: They plan, read, compare and draw: all that must work where torch is missing or slow to load. Names of folders and of
#: modules, in every room.
WORDS = {"plots", "config", "configuration", "records", "analysis", "report", "tables"}
WORDS |= {"comparison", "history", "attribution"}
OTHERS = (
    "harness/contract.py",
    "harness/errors.py",
    "harness/numbers.py",
    "harness/session/messages.py",
    "harness/timing/rounds.py",
)
WITHOUT_TORCH = [
    path
    for path in MODULES
    if (WORDS & set(path.with_suffix("").parts) and "commands" not in path.parts) or str(path) in OTHERS
]


def test_planning_reading_and_drawing_run_without_torch():
    registrations = [path for path in MODULES if path.stem == "registration"]
    names = [".".join((SUITE, *path.with_suffix("").parts)) for path in (*WITHOUT_TORCH, *registrations)]
    program = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; sys.exit('torch' in sys.modules)"
    done = run_python(program)
    assert done.returncode == 0, done.stderr


def test_commands_that_measure_nothing_do_not_load_torch():
    commands = [["list"], ["configs/full.yaml", "--plan"], ["configs/decode_loop.yaml", "--plan"], ["no.yaml"]]
    program = (
        "from spec_decode_bench import bench; import sys; "
        f"print([bench.main(one) for one in {commands}], 'torch' in sys.modules)"
    )
    done = run_python(program)
    assert done.stdout.endswith("[0, 0, 0, 2] False\n"), done.stderr


@full
def test_what_takes_long_to_import_is_not_loaded_before_the_first_cell():
    """By the process that plans and by the one that measures."""
    slow = ("scipy.stats", "matplotlib", "hypothesis", "torch._inductor", "torch._dynamo")
    program = (
        "import sys, spec_decode_bench.cli.run, spec_decode_bench.harness.session.evaluator; "
        "from spec_decode_bench.harness.discover import discover; "
        f"discover(); print(*({set(slow)} & set(sys.modules)))"
    )
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


# --- references and variants ------------------------------------------------------------------------------------------


def test_no_kernel_uses_a_reference():
    """A variant that called the reference would agree with it whatever it computed."""

    def names(path: Path) -> set[str]:
        nodes = list(ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))))
        imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        return imported | {node.id for node in nodes if isinstance(node, ast.Name)}

    paths = [path for path in MODULES if path.parts[0] in ("kernels", "upstream")]
    assert [str(path) for path in paths if "reference" in names(path)] == []


@cache
def variants_in(path: Path) -> set[str]:
    """Functions of a module that define a variant."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    is_variant = lambda d: isinstance(d, ast.Call) and ast.unparse(d.func) == "variant"  # noqa: E731
    return {node.name for node in functions if any(map(is_variant, node.decorator_list))}


def test_a_reference_imports_no_variant():
    """Nothing that operator.py imports defines a variant."""
    paths = [path for path in MODULES if path.name == "operator.py"]
    imported = {path: [name for name in ours(path) if top(name) == "baselines" and file_of(name)] for path in paths}
    assert any(imported.values())
    assert [(str(path), name) for path in paths for name in imported[path] if variants_in(file_of(name))] == []


# --- names and lines --------------------------------------------------------------------------------------------------

HARNESS = sorted(
    p.relative_to(ROOT) for p in (ROOT / "harness").rglob("*") if p.is_file() and "__pycache__" not in p.parts
)


def test_the_harness_knows_no_operator_by_name():
    assert {"decode_native", "decode_flatten"} <= set(OPERATORS)
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in HARNESS}
    assert [(str(path), name) for path, text in texts.items() for name in OPERATORS if name in text] == []
