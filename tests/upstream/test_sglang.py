"""The variants of SGLang's Triton kernels: over a made-up engine of the same layout, and over SGLang's files where they
are there.
"""

import importlib

import pytest

from spec_decode_bench.harness.discover import discover, unavailable
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream import (
    sglang_chain_step,
    sglang_compute_slot_mappings,
    sglang_draft_budget,
    sglang_gather_block_tables,
)
from tests.runnable import DEVICE
from tests.tier import few
from tests.upstream import sglang_files
from tests.upstream.edge_cases import check
from tests.upstream.engine_files import write_package

MODULES = sglang_chain_step, sglang_compute_slot_mappings, sglang_draft_budget, sglang_gather_block_tables
IS_THERE = all(file_in("sglang", file) is not None for file in sglang_files.FILES)


@pytest.fixture(params=["made up", pytest.param("installed", marks=pytest.mark.skipif(
    not IS_THERE, reason="needs SGLang's files on PYTHONPATH (docs/upstream.md)"
))])  # fmt: skip
def engine(request, tmp_path, monkeypatch):
    if request.param == "made up":
        write_package(tmp_path, "sglang", sglang_files.FILES)
        monkeypatch.syspath_prepend(tmp_path)
    for module in MODULES:
        module._code.cache_clear()
    yield
    for module in MODULES:
        module._code.cache_clear()
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("name", "changes", "least"),
    [
        ("chain_step/sglang", {}, 15),
        ("chain_step/sglang_call", {}, 15),
        ("compute_slot_mappings/sglang", {"block_size": 1, "num_groups": 1}, 10),
        ("draft_budget/sglang", {}, 15),
        ("draft_budget/sglang_call", {}, 15),
        ("gather_block_tables/sglang", {}, 8),
    ],
)
def test_kernels_and_functions_are_taken_out_of_sglangs_files(engine, name, changes, least):
    variant = discover().find(*name.split("/"))
    assert unavailable(variant, DEVICE) is None
    operator, taken = discover().operators[variant.operator], []
    for case in operator.edge_cases:
        point = operator.complete(case.point | changes)
        is_small = point.batch_size <= 64 and point.get("max_model_len", 0) <= 5000
        # The interpreter takes its time; an edit belongs to the point of its case.
        if (is_small or DEVICE == "cuda") and not variant.skip(point) and not (changes and case.edit):
            taken.append(case)
    assert len(taken) >= least
    check(variant, few(taken, 8), **changes)
