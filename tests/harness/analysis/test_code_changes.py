"""Variants whose code is another one than a record's."""

import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.code_changes import code_changes, code_of_variants, timed_variants
from tests import factory

TRITON, CUDA, CHAIN = "decode_native/triton_fused", "decode_native/cuda_fused", "decode_native/chain_clamp"
HEADER, CHAINS = "kernels/decode_native/decode_native.cuh", "baselines/decode_native/chains.py"


def sources_today(*variants, changed=()):
    """As a record of today's code has them, but for the files ``changed``."""
    files = {name: min(now) for one in variants for name, now in code_of_variants()[one].items()}
    return files | dict.fromkeys(changed, "0" * 16)


@pytest.mark.parametrize(
    ("changed", "named"), [((), None), ([HEADER], CUDA), ([CHAINS], CHAIN)], ids=["none", "a header", "a chain"]
)
def test_variants_that_changed_since_their_record_are_named(changed, named):
    cells = [factory.cell(*name.split("/"), {"batch_size": 8}, gpu=2.0) for name in (TRITON, CUDA, CHAIN)]
    run = factory.run(factory.gpu_environment(), cells)
    header = replace(run.header, sources=sources_today(TRITON, CUDA, CHAIN, changed=changed))
    sentences = code_changes(timed_variants(replace(run, header=header)))
    assert len(sentences) == (0 if named is None else 1)
    assert all("1 of 3 variants" in one and one.endswith(f": {named}") for one in sentences)


def test_a_variant_of_a_user_is_left_out():
    run = factory.run(factory.gpu_environment(), [factory.cell("decode_native", "mine", {"batch_size": 8}, gpu=2.0)])
    assert code_changes(timed_variants(run)) == []
