"""no_alloc and no_sync: does a launch allocate device memory, and does it return before the device is done?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.verify.fixture import SLEEP_CYCLES

#: Launches whose allocations are counted together.
CALLS = 5
#: A launch that returns late is tried again, each time behind a sleep LONGER times as long: submitting it may just have
#: taken longer than the sleep.
TRIES, LONGER = 4, 4


def check_alloc_sync(variant: Variant, launch: Callable[[], Any]) -> set[str]:
    """The checks of the two that the launch passed, less those waived. Raises Mismatch where one fails.

    The launch must have run before: what its first call compiles or allocates once does not count.
    """
    check_allocations(variant, launch)
    if "no_sync" not in variant.waives:
        check_synchronisation(launch)
    return {"no_alloc", "no_sync"} - set(variant.waives)


def check_synchronisation(launch: Callable[[], Any]) -> None:
    """Raise Mismatch where a launch waits for the device."""
    if waits := sync_warnings(launch):
        seen = f"torch saw a launch wait for the device {counted(waits, 'time')}"
        raise Mismatch("no_sync", f'{seen}; remove the waits, or declare waives="no_sync"')
    if not returns_before_the_device(launch):
        message = 'a launch returns only after all earlier work is done; remove the wait, or declare waives="no_sync"'
        raise Mismatch("no_sync", message)


def check_allocations(variant: Variant, launch: Callable[[], Any]) -> int:
    """Number of allocations of one launch.

    Raises Mismatch where it allocates without waiving no_alloc, or where memory grows with every launch, which no
    variant can waive.
    """
    made, kept_bytes = allocations(launch)
    if kept_bytes > 0:
        raise Mismatch("no_alloc", f"every launch leaks {kept_bytes} bytes of device memory; allocate in set-up")
    if made and "no_alloc" not in variant.waives:
        raise Mismatch("no_alloc", f'{made} allocations in a launch; allocate in set-up, or declare waives="no_alloc"')
    return made


def allocations(launch: Callable[[], Any]) -> tuple[int, int]:
    """(allocations, bytes not freed) of one launch in torch's caching allocator, averaged over CALLS and rounded up."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    for _ in range(CALLS):
        launch()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    made, kept_bytes = (after[key] - before[key] for key in ("allocation.all.allocated", "allocated_bytes.all.current"))
    return -(-made // CALLS), -(-kept_bytes // CALLS)


def sync_warnings(launch: Callable[[], Any]) -> int:
    """Synchronisations of one launch that torch reports itself."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            launch()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def returns_before_the_device(launch: Callable[[], Any]) -> bool:
    """Whether a launch returns while a kernel queued before it still sleeps. Sees the waits of every library."""
    asleep = torch.cuda.Event()
    for attempt in range(TRIES):
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES * LONGER**attempt)
        asleep.record()
        launch()
        early = not asleep.query()
        torch.cuda.synchronize()
        if early:
            return True
    return False
