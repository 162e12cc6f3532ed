"""Who may import whom, and that the harness knows no operator by name."""

import ast
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tests.processes import run_python
from tests.tier import full

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "baselines", "kernels", "upstream", "plots")
MODULES = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
SOURCES = [Path("bench.py"), *MODULES]
OPERATORS = sorted(path.parent.name for path in (ROOT / "baselines").glob("*/operator.py"))

#: Package of the harness -> packages it may import, beside itself and the modules at the top of harness/ (None).
PACKAGES = {
    None: {"records"},
    "records": set(),
    "analysis": {"records"},
    "config": {"analysis", "records"},
    "decode_loop": {"config", "records", "verify"},
    "report": {"analysis", "records"},
    "verify": {"records"},
    "timing": {"analysis", "records"},
    "profiling": {"config", "records", "timing", "verify"},
    "session": {"analysis", "config", "decode_loop", "records", "timing", "verify"},
    "cli": {"analysis", "config", "profiling", "records", "report", "session", "timing", "verify"},
}
#: What an operator's files may import beside those of their own folder.
OF_OPERATORS = {"harness.bundle", "harness.contract", "harness.cuda", "harness.launch", "baselines.workloads"}
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
} | {"harness.contract", "harness.wording", "harness.session.messages", "harness.timing.rounds"}


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


def test_planning_reading_and_drawing_never_import_torch():
    chains = [chain for name in sorted(WITHOUT_TORCH) if (chain := chain_to_torch(name, set()))]
    assert not chains, [" imports ".join(chain) for chain in chains]


def test_planning_reading_and_drawing_run_without_torch():
    names = sorted(WITHOUT_TORCH)
    program = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; sys.exit('torch' in sys.modules)"
    done = run_python(program)
    assert done.returncode == 0, done.stderr


def test_commands_that_measure_nothing_do_not_load_torch():
    commands = [["list"], ["configs/full.yaml", "--plan"], ["configs/decode_loop.yaml", "--plan"], ["no.yaml"]]
    program = f"import bench, sys; print([bench.main(one) for one in {commands}], 'torch' in sys.modules)"
    done = run_python(program)
    assert done.stdout.endswith("[0, 0, 0, 2] False\n"), done.stderr


@full
def test_what_takes_long_to_import_is_not_loaded_before_the_first_cell():
    """By the process that plans and by the one that measures."""
    slow = ("scipy.stats", "matplotlib", "hypothesis", "torch._inductor", "torch._dynamo")
    loaded = "import spec_decode_bench.cli.run, harness.session.evaluator, harness.discover as d; d.discover()"
    program = f"import sys; {loaded}; print(*({set(slow)} & set(sys.modules)))"
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def package_of(name: str) -> str | None:
    """The package of harness/ that a module belongs to; None for what stands at the top of it, or elsewhere."""
    first, *inner = name.split(".")
    return inner[0] if first == "harness" and inner and inner[0] in PACKAGES else None


def is_allowed_to_operators(name: str) -> bool:
    return name in OF_OPERATORS or name.startswith("baselines.workloads.")


def modules(folder: str) -> list[Path]:
    return [path for path in MODULES if path.parts[0] == folder]


def offenders(paths: Iterable[Path], is_allowed: Callable[[Path, str], bool]) -> dict[str, set[str]]:
    """Module -> what it imports of this project and must not."""
    wrong = {str(path): {name for name in ours(path) if not is_allowed(path, name)} for path in paths}
    return {path: names for path, names in wrong.items() if names}


def operators_of(path: Path) -> Iterable[str]:
    """The operators whose files a file of baselines/ or kernels/ may import."""
    return OPERATORS if path.parts[1] in COMPOSED else [path.parts[1]]


def test_baselines_import_their_own_folder_and_the_workloads():
    def is_allowed(path: Path, name: str) -> bool:
        return is_allowed_to_operators(name) or name.startswith(tuple(f"baselines.{one}" for one in operators_of(path)))

    assert offenders(modules("baselines"), is_allowed) == {}


def test_kernels_import_their_own_folder_and_the_types_of_their_operator():
    """Types and pure helpers of baselines/<operator>/operator.py; no chain, no defect, no case."""

    def is_allowed(path: Path, name: str) -> bool:
        own = (prefix for one in operators_of(path) for prefix in (f"kernels.{one}", f"baselines.{one}.operator"))
        return is_allowed_to_operators(name) or name.startswith(tuple(own))

    assert offenders(modules("kernels"), is_allowed) == {}


def test_upstream_variants_import_the_types_of_operators_and_each_other():
    """And kernels of the suite's own for tables that the engine does not build alone."""
    allowed = {f"baselines.{name}.operator" for name in OPERATORS}
    allowed |= {"harness.engine_launch", "harness.packages"}
    allowed |= {f"kernels.{name}.triton" for name in ("mla_tile_schedule", "paged_mqa_schedule")}

    def is_allowed(path: Path, name: str) -> bool:
        return is_allowed_to_operators(name) or name in allowed or name.startswith("upstream.")

    assert offenders(modules("upstream"), is_allowed) == {}


def test_no_kernel_uses_a_reference():
    """A variant that called the reference would agree with it whatever it computed."""

    def names(path: Path) -> set[str]:
        nodes = list(ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))))
        imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
        return imported | {node.id for node in nodes if isinstance(node, ast.Name)}

    assert [str(path) for path in modules("kernels") + modules("upstream") if "reference" in names(path)] == []


@cache
def variants_in(path: Path) -> set[str]:
    """Functions of a module that define a variant."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    is_variant = lambda d: isinstance(d, ast.Call) and ast.unparse(d.func) == "variant"  # noqa: E731
    return {node.name for node in functions if any(map(is_variant, node.decorator_list))}


def called_by_reference(path: Path) -> set[str]:
    """Functions of the module that its reference calls, itself included."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    called, waiting = set(), ["reference"]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in called:
            called.add(name)
            waiting += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    return called


def test_a_reference_imports_no_variant():
    """Nothing that operator.py imports defines a variant; the reference in it stands on plain loops alone."""
    paths = [path for path in MODULES if path.name == "operator.py"]
    defines_variants = lambda name: name.startswith("baselines.") and is_module(name) and variants_in(path_of(name))  # noqa: E731
    assert offenders(paths, lambda _, name: not defines_variants(name)) == {}
    # A small operator may hold its variants beside the reference.
    is_composed = lambda path: "reference, bytes_moved = PARTS.reference" in (ROOT / path).read_text(encoding="utf-8")  # noqa: E731
    called = {path: called_by_reference(path) for path in paths if not is_composed(path)}
    assert all("reference" in names for names in called.values())
    assert [str(path) for path, names in called.items() if names & variants_in(path)] == []


def test_plots_read_records_and_their_analysis():
    def is_allowed(_: Path, name: str) -> bool:
        return name.split(".")[0] == "plots" or package_of(name) in ("records", "analysis") or name == "harness.wording"

    assert offenders(modules("plots"), is_allowed) == {}


def test_layers_of_the_harness():
    def is_allowed(path: Path, name: str) -> bool:
        package, folder = package_of(module_name(path)), name.split(".")[0]
        if folder == "plots":
            return package == "cli"
        if folder in ("baselines", "kernels", "upstream", "bench", "tests", "tools"):
            return name.startswith("baselines.workloads.")  # what engine and requests are, not what any operator does
        return package_of(name) in (None, package, *PACKAGES.get(package, ()))

    assert offenders(modules("harness"), is_allowed) == {}


def test_every_package_has_its_rule():
    assert set(PACKAGES) - {None} == {
        path.parts[1] for path in MODULES if path.parts[0] == "harness" and len(path.parts) > 2
    }


def test_the_command_line_answers_help_without_loading_anything():
    tree = ast.parse((ROOT / "bench.py").read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


HARNESS = sorted(
    p.relative_to(ROOT) for p in (ROOT / "harness").rglob("*") if p.is_file() and "__pycache__" not in p.parts
)


def test_the_harness_knows_no_operator_by_name():
    assert {"decode_native", "decode_flatten"} <= set(OPERATORS)
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in HARNESS}
    assert [(str(path), name) for path, text in texts.items() for name in OPERATORS if name in text] == []


def test_names_say_what_is_inside():
    words = lambda path: {word for part in path.with_suffix("").parts for word in part.strip("_").split("_")}  # noqa: E731
    vague = {"utils", "util", "manager", "impl", "helpers", "misc", "common"}
    assert [str(path) for path in SOURCES if words(path) & vague] == []


def test_lines_of_cuda_sources_fit_the_page():
    """As ruff has it for Python."""
    files = sorted((ROOT / "kernels").glob("**/*.cu*"))
    lines = [(path, n, line) for path in files for n, line in enumerate(path.read_text().splitlines(), 1)]
    assert files
    assert [f"{path.relative_to(ROOT)}:{n}" for path, n, line in lines if len(line) > 120] == []
