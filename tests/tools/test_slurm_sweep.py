"""The SLURM recipe, with an ``sbatch`` that runs at once what the real one would queue."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.file import read_run
from tests.harness.cli.test_cli import TINY

SCRIPT = Path(__file__).parents[2] / "tools" / "slurm_sweep.sh"
#: The last task of an array is preempted and requeued after its end.
SBATCH = """#!/usr/bin/env bash
tasks=1 output=/dev/null
for argument; do
  case $argument in
    --array=1-*) tasks="$(seq 1 "${argument#--array=1-}") ${argument#--array=1-}" ;;
    --wrap=*) script=${argument#--wrap=} ;;
    --output=*) output=${argument#--output=} ;;
    --dependency=*) [ "$argument" = --dependency=afterany:4711 ] || exit 9 ;;
    --parsable | --job-name=* | --gpus=1 | --requeue) ;;
    *) echo "sbatch: unrecognized option '$argument'" >&2; exit 1 ;;
  esac
done
for task in $tasks; do
  SLURM_ARRAY_TASK_ID=$task bash -c "$script" >> "${output/\\%a/$task}" 2>&1
done
echo "4711;cluster"
"""


def sweep(tmp_path, *arguments):
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}
    return subprocess.run(
        [SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )


def test_the_shards_of_an_array_are_merged_and_a_requeued_task_completes_its_record(tmp_path):
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    (tmp_path / "tiny.yaml").write_text(TINY)
    out = tmp_path / "with a space"
    done = sweep(tmp_path, "tiny.yaml", "2", out.name, "--seed", "3", "--device", "cpu")
    texts = {path.name: path.read_text() for path in out.glob("*.txt")}
    assert done.returncode == 0, done.stderr
    assert set(texts) == {"shard-1.txt", "shard-2.txt", "merge.txt"}
    merged = read_run(out / "merged" / "run.jsonl")
    assert sorted(cell.key for cell in merged.cells) == sorted(merged.header.cells), texts
    assert (len(merged.cells), merged.header.seed, merged.header.shard) == (4, 3, None)
    assert texts["shard-2.txt"].count("2 passed") == 2
    assert "error" not in "".join(texts.values())


@pytest.mark.parametrize("arguments", [[], ["configs/mtp3.yaml", "2", "out"], ["c.yaml", "2", "out", "--only", "x"]])
def test_without_a_seed_nothing_is_submitted(arguments, tmp_path):
    done = sweep(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("error: give CONFIG, SHARDS, OUT and --seed N")


@pytest.mark.parametrize("arguments", [["nosuch.yaml", "2"], ["tiny.yaml", "0"], ["tiny.yaml", "two"]])
def test_without_a_configuration_or_a_number_nothing_is_submitted(arguments, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    done = sweep(tmp_path, *arguments, "out", "--seed", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {arguments[0]} is no file, or {arguments[1]} no number of shards\n"
