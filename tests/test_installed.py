"""The suite as an installed package: every file that a run needs is in it, under one name. And, cloned or installed, it
hides no package of an engine's.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from spec_decode_bench.harness import __version__
from spec_decode_bench.harness.import_by_content import PACKAGES, SUITE
from spec_decode_bench.harness.records.file import read_run
from tests.processes import errors
from tests.regression.test_gate_upstream import CONFIG, KERNEL
from tests.regression.test_gate_upstream import VARIANT as WRAPS
from tests.tier import full

ROOT = Path(__file__).parents[1]
FOLDERS = (*PACKAGES, "configs")
FILES = ("pyproject.toml", "setup.py", "requirements.txt", "bench.py", f"{SUITE}.py")
PIP = [sys.executable, "-m", "pip"]


def run(command, folder, *python_path):
    """(exit code, stdout, stderr) of a command in an otherwise empty folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, python_path))}
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, as building leaves files behind."""
    for name in ("pip", "setuptools"):  # not find_spec: a look for pip's keeps setuptools from replacing distutils
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("needs pip and setuptools")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for file in FILES:
        shutil.copy(ROOT / file, source)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build = [*PIP, "wheel", "-q", "--no-build-isolation", "--no-deps", "--no-index", "-w", built, source]
    code, _, err = run(build, built)
    assert code == 0, err
    return next(built.iterdir())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the package in it."""
    target = tmp_path_factory.mktemp("installed")
    code, _, err = run([*PIP, "install", "-q", "--no-deps", "--no-index", "--target", target, wheel], target)
    assert code == 0, err
    return target


def command_of(installed, *arguments):
    """The one that pip made."""
    return [sys.executable, installed / "bin" / "spec-decode-bench", *arguments]


def test_it_takes_one_top_level_name(wheel):
    """kernels, plots or harness may be another package's."""
    names = {Path(name).parts[0].removesuffix(".py") for name in ZipFile(wheel).namelist()}
    assert names == {SUITE, f"spec_decode_metadata_bench-{__version__}.dist-info"}


def test_no_file_of_the_packages_is_missing(installed):
    kinds = (".py", ".cu", ".cuh", ".j2", ".yaml", ".json", ".capture")
    files = {p.relative_to(ROOT) for part in FOLDERS for p in (ROOT / part).rglob("*") if p.suffix in kinds}
    assert {file for file in files if not (installed / SUITE / file).is_file()} == set()


@full
def test_it_measures_a_shipped_configuration(installed, tmp_path):
    only = ["--only", "decode_native/*/batch_size=1,*", "--no-plots", "--out", "out", "--device", "cpu"]
    code, out, err = run(command_of(installed, "smoke", *only), tmp_path, installed)
    assert code == 0, err
    assert "compiled for sm_80, sm_89, sm_90, sm_100, sm_103, sm_120: decode_native.cu" in out
    assert {cell.status for cell in read_run(tmp_path / "out" / "run.jsonl").cells} == {"passed", "unavailable"}


@full
def test_it_gates_two_folders_of_an_engine(installed, tmp_path):
    """Of which the newer is wrong; no git repository is around."""
    for side, kernel in (("old", KERNEL), ("new", KERNEL.replace("min=0", "min=1"))):
        (tmp_path / side / "vllm" / "v1" / "worker").mkdir(parents=True)
        (tmp_path / side / "vllm" / "v1" / "worker" / "lens.py").write_text(kernel)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "mine.py").write_text(WRAPS)
    sides = ["--base", "old", "--head", "new", "--variants", "mine.py", "--device", "cpu", "--out", "out"]
    code, out, err = run(command_of(installed, "gate", "tiny.yaml", "--upstream", "vllm", *sides), tmp_path, installed)
    assert (code, errors(err)) == (1, ""), out
    assert "broken in head, so nothing is timed: decode_native/vllm_fill" in " ".join(out.split())


# --- beside an engine -------------------------------------------------------------------------------------------------

#: Imported by the process that plans, and by the workers, which also import when a variant is set up.
VARIANT = """
from importlib.util import find_spec
assert [bool(find_spec(name)) for name in ("torch", "harness", "plots")] == [True, False, False]
import kernels
from spec_decode_bench import variant
from spec_decode_bench.baselines.decode_native.chains import chain_clamp

@variant("decode_native", skip=lambda p: (p.row_alignment, p.cp_size) != ("end", 1) and "no" or None)
def mine(point, x, out):
    from kernels import layers
    assert kernels.get_kernel() == layers.NAME == "an engine's"
    return chain_clamp(point, x, out)
"""


@pytest.fixture
def engine(tmp_path):
    """A folder with a package kernels, as Hugging Face's, which transformers imports."""
    package = tmp_path / "engine" / "kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('def get_kernel():\n    return "an engine\'s"\n')
    (package / "layers.py").write_text('NAME = "an engine\'s"\n')
    (tmp_path / "mine.py").write_text(VARIANT)
    return package.parent


@full
@pytest.mark.parametrize("how", ["cloned", "cloned, spawned", "installed"])
@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_variant_imports_the_package_of_an_engine(command, how, request, engine, tmp_path, monkeypatch):
    """Spawned: as under a profiler."""
    path = [engine]
    if how == "installed":
        installed = request.getfixturevalue("installed")
        path, words = [engine, installed], command_of(installed, command)
    else:
        words = [sys.executable, ROOT / "bench.py", command]
    if how == "cloned, spawned":
        monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    chosen = ["smoke", "--only", "decode_native/mine/batch_size=1,*", "--variants", "mine.py", "--device", "cpu"]
    more = ["--no-plots", "--out", "out"] if command == "run" else ["--no-array"]
    code, out, err = run([*words, *chosen, *more], tmp_path, *path)
    assert (code, errors(err)) == (0, ""), out
    assert "passed" in out
