"""For compute-sanitizer: the defect unguarded_upper_bound of k_quant_gather as a kernel, with its memory fault.

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m tools.sanitizer_run \\
        --variants tests/adversaries/gather_by_bound.py k_quant_gather/gather_by_bound
"""

from pathlib import Path

from spec_decode_bench.harness.contract import GPU, variant
from spec_decode_bench.harness.cuda import launcher

SOURCE = Path(__file__).with_suffix(".cu")


@variant("k_quant_gather", requires=GPU, sources=SOURCE)
def gather_by_bound(point, x, out):
    """Right without slack; with slack it reads far outside of the block table."""
    return launcher(
        SOURCE,
        "gather_by_bound",
        x.num_tokens,
        32,
        x.kv_cache,
        x.block_table,
        x.cu_seq_lens,
        out.k,
        out.scale,
        len(x.cu_seq_lens) - 1,
        x.block_table.stride(0),
        x.kv_cache.stride(0),
        point.block_size,
        point.head_dim,
        out.scale.shape[1],
    )
