"""tools.sanitizer_run: it runs kernels alone, finds wrong results, and initialises nothing that a kernel must write."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from spec_decode_bench.harness.contract import Expected
from spec_decode_bench.harness.cuda import compile_all
from tools.sanitizer_run import alone, main, wrong


def test_every_edge_case_of_a_kernel_runs_twice(capsys):
    from spec_decode_bench.baselines.decode_native.operator import operator

    assert main(["decode_native/triton_fused"]) == 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    expected = f"decode_native/triton_fused: {2 * len(operator.edge_cases)} launches over the edge cases on {device}\n"
    assert capsys.readouterr().out == expected


def test_operator_chains_are_no_kernels(capsys):
    assert main(["decode_native/chain_clamp"]) == 2
    assert "matches no kernel" in capsys.readouterr().err


def test_wrong_and_failing_kernels_end_in_one(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        textwrap.dedent(
            """
            from spec_decode_bench.baselines.decode_native.chains import chain_clamp
            from spec_decode_bench.harness.contract import variant

            end_aligned = lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None

            @variant("decode_native", skip=end_aligned)
            def right_when_aligned(point, x, out):
                launch = chain_clamp(point, x, out)
                return launch if out.buffer.data_ptr() % 16 == 0 else lambda: (launch(), out.buffer[0].add_(1))

            @variant("decode_native")
            def raises(point, x, out):
                raise ValueError("no such point")
            """
        )
    )
    assert main(["right_when_aligned", "raises", "--variants", str(mine)]) == 1
    lines = capsys.readouterr().out.splitlines()
    faults = [line for line in lines if "right_when_aligned: WRONG" in line]
    assert faults
    assert all(", unaligned: buffer[0]: expected " in line for line in faults)
    assert sum("raises: WRONG" in line and "ValueError: no such point (mine.py, line " in line for line in lines) > len(
        faults
    )


def test_a_tensor_fills_its_allocation_to_the_last_byte():
    rows = torch.arange(12, dtype=torch.int32).view(3, 4)[:, :3]
    for shift in (0, 1):
        made = alone(rows, "cpu", shift, host=False, filled=True)
        assert torch.equal(made, rows)
        assert (made.stride(), made.storage_offset()) == (rows.stride(), shift)
        assert made.untyped_storage().nbytes() == 4 * (shift + 2 * 4 + 3)


def test_only_what_must_be_written_is_read():
    """Whatever stands where the reference leaves it open is right."""
    value = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    left_open = torch.tensor([[False, True], [False, False]])
    expected = Expected(value, untouched=left_open, may_keep=left_open.flip(0))
    assert wrong(torch.tensor([[1, 77], [3, 99]], dtype=torch.int32), expected) is None
    assert wrong(torch.tensor([[1, 77], [5, 99]], dtype=torch.int32), expected) == "[1, 0]: expected 3, got 5"
    assert wrong(torch.zeros(0, 2, dtype=torch.int32), Expected(torch.zeros(0, 2, dtype=torch.int32))) is None


ADVERSARY = Path(__file__).parents[1] / "adversaries" / "gather_by_bound.py"


def test_the_unguarded_gather_compiles():
    (compiled,) = compile_all([ADVERSARY.with_suffix(".cu")]).values()
    assert set(compiled.values()) == {"ok"}


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer")
def test_the_sanitizer_sees_the_gather_by_the_upper_bound():
    """The fault that stands behind the defect unguarded_upper_bound, and a kernel without it as the control."""

    def sanitized(*names):
        run = [sys.executable, "-m", "tools.sanitizer_run", "--variants", str(ADVERSARY), *names]
        tool = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
        return subprocess.run([*tool, *run], cwd=ADVERSARY.parents[2], capture_output=True, text=True)

    faulty, sound = sanitized("k_quant_gather/gather_by_bound"), sanitized("k_quant_gather/cuda_fused")
    assert (faulty.returncode, sound.returncode) == (9, 0), faulty.stdout + sound.stdout
    assert "Invalid __global__ read" in faulty.stdout
    assert "gather_by_bound" in faulty.stdout
