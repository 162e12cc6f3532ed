"""no_alloc and no_sync: what a launch asks of the allocator, and whether it comes back before the device is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from harness.checks import Mismatch
from harness.contract import Variant
from harness.verify.fixture import SLEEP_CYCLES

#: Launches that are counted together.
CALLS = 5
#: A launch that returns late is tried again behind a longer sleep: it may only have taken its time to be submitted.
TRIES, LONGER = 4, 4


def check_alloc_sync(variant: Variant, launch: Callable[[], Any]) -> set[str]:
    """The promises that the launch was held to and kept. Raises Mismatch for one that is broken and not waived.

    It must have run before: what is compiled or allocated once, in the first call, is none of this.
    """
    check_allocations(variant, launch)
    if "no_sync" not in variant.waives:
        if waits := sync_warnings(launch):
            raise Mismatch(
                "no_sync", f'torch saw a launch wait for the device {waits} times; or declare waives="no_sync"'
            )
        if not returns_before_the_device(launch):
            raise Mismatch(
                "no_sync", 'a launch returns only when all work queued before it is done; or declare waives="no_sync"'
            )
    return {"no_alloc", "no_sync"} - set(variant.waives)


def check_allocations(variant: Variant, launch: Callable[[], Any]) -> int:
    """Allocations of one launch. Raises Mismatch where it keeps memory, which nobody may, or makes any without
    having waived it.
    """
    made, kept_bytes = allocations(launch)
    if kept_bytes > 0:
        raise Mismatch("no_alloc", f"every launch keeps {kept_bytes} bytes of device memory more; allocate in set-up")
    if made and "no_alloc" not in variant.waives:
        raise Mismatch("no_alloc", f'{made} allocations in a launch; allocate in set-up, or declare waives="no_alloc"')
    return made


def allocations(launch: Callable[[], Any]) -> tuple[int, int]:
    """(allocations, bytes not given back) of one launch, by the caching allocator; both rounded up over CALLS
    launches.
    """
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    for _ in range(CALLS):
        launch()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    made, kept_bytes = (after[key] - before[key] for key in ("allocation.all.allocated", "allocated_bytes.all.current"))
    return -(-made // CALLS), -(-kept_bytes // CALLS)


def sync_warnings(launch: Callable[[], Any]) -> int:
    """Synchronisations of one launch that torch itself knows of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            launch()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(one.message) for one in caught)


def returns_before_the_device(launch: Callable[[], Any]) -> bool:
    """Whether a launch comes back while the device still sleeps in front of it: no wait of any library escapes that."""
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
