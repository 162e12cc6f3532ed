"""Memory and waits of a launch, on a simulated GPU."""

import pytest
import torch

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.verify.alloc_sync_checks import check_allocations, returns_before_the_device
from tests.simulated_gpu import simulated_gpu


@pytest.fixture
def gpu():
    with simulated_gpu() as made:
        yield made


def test_a_launch_may_not_keep_a_single_element(gpu):
    """Waived allocations included: a server launches a million times an hour."""
    variant = Variant("decode_native", "keeps", lambda *_: None, "", "test", waives=("no_alloc",))
    kept = []
    with pytest.raises(Mismatch, match="every launch leaks 4 bytes"):
        check_allocations(variant, lambda: kept.append(torch.empty(1, device="cuda")))
    assert check_allocations(variant, lambda: torch.empty(1, device="cuda") and None) == 1


@pytest.mark.parametrize(("host_ms", "early"), [(1, True), (5, True), (100, True), (1000, False)])
def test_a_slow_submission_is_no_wait(host_ms, early, gpu):
    """The device sleeps for 2, 8, 32 and 128 ms."""
    a = torch.zeros(4, device="cuda")

    def launch():
        gpu.spend(host_ms * 1e6)
        a.add_(1)

    assert returns_before_the_device(launch) is early
