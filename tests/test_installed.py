"""The suite as an installed package: every file that a run needs is in it."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spec_decode_bench.harness import __version__
from spec_decode_bench.harness.records.file import read_run
from tests.tier import full

ROOT = Path(__file__).parents[1]
PARTS = (
    "pyproject.toml",
    "requirements.txt",
    "bench.py",
    "harness",
    "baselines",
    "kernels",
    "upstream",
    "plots",
    "configs",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package in it, built from a copy, as building leaves files behind."""
    for name in ("pip", "setuptools"):  # not find_spec: a look for pip's keeps setuptools from replacing distutils
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("needs pip and setuptools")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, source / part)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index"]
    done = subprocess.run([*install, "--target", target, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(installed, folder, *arguments):
    """The command that pip made, in an otherwise empty folder: (exit code, stdout, stderr)."""
    command = [sys.executable, str(installed / "bin" / "spec-decode-bench"), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr


def test_it_says_its_version(installed, tmp_path):
    assert run(installed, tmp_path, "--version") == (0, f"spec-decode-bench {__version__}\n", "")


def test_no_file_of_the_packages_is_missing(installed):
    kinds = (".py", ".cu", ".cuh", ".j2", ".yaml", ".json")
    for part in PARTS[3:]:
        files = {p.relative_to(ROOT) for p in (ROOT / part).rglob("*") if p.suffix in kinds}
        assert {file for file in files if not (installed / file).is_file()} == set()


@full
def test_it_measures_a_shipped_configuration(installed, tmp_path):
    only = ["--only", "decode_native/*/batch_size=1,*", "--no-plots", "--out", "out", "--device", "cpu"]
    code, out, err = run(installed, tmp_path, "smoke", *only)
    assert code == 0, err
    assert "compiled for sm_80, sm_89, sm_90, sm_100, sm_103, sm_120: decode_native.cu" in out
    assert {cell.status for cell in read_run(tmp_path / "out" / "run.jsonl").cells} == {"passed", "unavailable"}
