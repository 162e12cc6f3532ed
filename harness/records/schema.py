"""What a run leaves behind: JSONL, one header line, then one line per cell. ``record_file`` writes and reads them.

Only raw samples are stored. Medians, slopes, intervals, ratios are derived by whoever reads (``stats``, ``trust``), so
that a better statistic can be applied to old runs. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 2


class Status(StrEnum):
    """How a variant ended at a point; records hold the words."""

    #: Verified, and timed where it can be.
    PASSED = "passed"
    #: A check rejected it.
    MISMATCH = "mismatch"
    #: It raised, ended its process, or could not be measured.
    FAILED = "failed"
    #: Does not apply at this point.
    SKIPPED = "skipped"
    #: This machine lacks what it needs.
    UNAVAILABLE = "unavailable"

    @property
    def is_bad(self) -> bool:
        """Whether it makes a run end with exit code 1."""
        return self in (Status.MISMATCH, Status.FAILED)


#: What memory a call finds in L2 when it is timed; see harness/timing/cache.py.
CacheState = Literal["hot", "cold", "serving"]


class RecordError(Exception):
    """A record file cannot be read or written; the message says which and why."""


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine and the software of a run. ``device`` is "cuda" or "cpu"."""

    device: str
    processor: str
    python: str
    torch: str
    triton: str | None = None
    cuda_core: str | None = None
    gpu: str | None = None
    generation: str | None = None
    sm: str | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    commit: str | None = None
    dirty: bool = False
    notes: tuple[str, ...] = ()


class KernelTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel of the ruler's own, timed by each estimator; the fields are those of Metrics.

    launches: of one call. true_us: what the kernel itself read off the GPU's global timer, where it waits for a known time.
    """

    graph_us: dict[int, list[float]]
    stream_us: dict[int, list[float]]
    state_us: list[float] = []
    cupti_us: list[float] = []
    true_us: list[float] = []
    launches: int = 1


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, eq=False):
    """The ruler of this run, raw. Compared and hashed by identity, so that what is derived from it can be kept beside
    it.

    own:             kernels of the kinds that are measured: "null", "block_copy" (one block), "wide_copy", "operator",
                     "gather", "chain" (of operators and a memcpy).
    spins:           nanoseconds asked for -> a kernel that waits so long.
    empty_pair_us:   two events with nothing between them, behind a blocking kernel; their grid is the event quantum.
    launch_host_us:  CPU time of a bare cuda-core launch of two arguments (the block copy).
    copy_us:         device-to-device copies of copy_bytes.
    chase_cycles:    memory state -> clock cycles per hop of a pointer chase through 256 KiB in that state: "l2" and "memory"
                     are what the two levels take; the others prove a cache state (see harness/timing/cache.py).
    sm_clock_mhz:    the clock under load that samples are held to; 0 where NVML refuses.
    """

    own: dict[str, KernelTimes]
    spins: dict[int, KernelTimes]
    empty_pair_us: list[float]
    launch_host_us: list[float]
    copy_bytes: int
    copy_us: list[float]
    chase_cycles: dict[str, list[float]] = {}
    sm_clock_mhz: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="line"):
    """First line of a run. ``variants``: operator/variant in catalogue order, the order of columns and bars.

    uncalibrated: why the ruler of this run missed its tolerances; empty where it did not (always on a CPU).
    cells: keys of the whole plan, in order: what --resume completes. shard: "2/8" where this is one piece of it.
    """

    schema: int
    name: str
    command: str
    started: str
    seed: int
    variants: tuple[str, ...] = ()
    config: dict[str, Any]
    environment: Environment
    calibration: Calibration | None = None
    uncalibrated: tuple[str, ...] = ()
    compiled: dict[str, dict[str, str]] = {}
    cells: tuple[str, ...] = ()
    shard: str | None = None


class Segment(msgspec.Struct, frozen=True, kw_only=True, tag="segment", tag_field="line", omit_defaults=True):
    """From here on cells come from another process: a resumed run, a replaced worker, another shard of a merged run."""

    started: str
    why: str
    environment: Environment
    calibration: Calibration | None = None
    uncalibrated: tuple[str, ...] = ()


class Metrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Raw samples of one cell, microseconds, and counts.

    graph_us:  copies of the launch in one CUDA graph -> time of each replay, one per round; gpu_us is its slope.
    state_us:  replays of the one-copy graph in the run's cache state, where that is not "hot", one per round.
    stream_us: launches queued one by one behind a blocking kernel -> time between the events around them; in the first rounds only.
    cupti_us:  kernel, memcpy and memset durations of one call summed, from CUPTI; one per replay in the cache state.
    cpu_us:    wall time of one launch of a PyTorch variant on a CPU; never a GPU time.
    launches, graph_nodes: of the captured graph. cupti_launches: what CUPTI saw of one call of the graph;
    eager_launches: of one call outside of it. allocations, synchronizations: of one eager call; memcpys: direction -> count.
    discarded: samples taken again, by reason (a throttled or slow clock); disturbed: samples kept although retries ran out.
    """

    bytes_moved: int
    host_us: list[float] = []
    eager_us: list[float] = []
    graph_us: dict[int, list[float]] = {}
    state_us: list[float] = []
    stream_us: dict[int, list[float]] = {}
    cupti_us: list[float] = []
    cpu_us: list[float] = []
    launches: int | None = None
    graph_nodes: dict[str, int] = {}
    no_graph: str | None = None
    no_audit: str | None = None
    cupti_launches: int | None = None
    eager_launches: int | None = None
    allocations: int | None = None
    synchronizations: int | None = None
    memcpys: dict[str, int] | None = None
    rounds: int = 0
    stopped: str | None = None
    discarded: dict[str, int] = {}
    disturbed: int = 0
    sm_clock_mhz: list[int] = []
    power_w: list[float] = []


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag="cell", tag_field="line", omit_defaults=True):
    """One operator x point x variant. ``point`` is the label of the point, ``axes`` its values in full; ``phase``: when
    a server calls the operator.
    """

    operator: str
    variant: str
    baseline: str
    point: str
    axes: dict[str, Any]
    status: Status
    reason: str | None = None
    metrics: Metrics | None = None
    phase: Literal["decode", "prefill"] = "decode"

    @property
    def key(self) -> str:
        """Name of the cell's NVTX ranges, and what two runs are joined on."""
        return cell_key(self.operator, self.variant, self.point)

    @property
    def point_key(self) -> tuple[str, str]:
        return self.operator, self.point


class Run(msgspec.Struct, frozen=True, dict=True):
    """A record as read. segments: (number of cells before it, segment), in order."""

    path: str
    header: Header
    cells: list[Cell]
    truncated: bool = False
    segments: list[tuple[int, Segment]] = []

    @property
    def in_order(self) -> list[Cell]:
        """The cells as the sweep has them; those of merged shards stand shard by shard in the file."""
        place = {key: i for i, key in enumerate(self.header.cells)}
        return sorted(self.cells, key=lambda cell: place.get(cell.key, len(place)))

    def calibration_of(self, cell: Cell) -> Calibration | None:
        """The ruler that measured this cell."""
        return self._timers.get(cell.key, self.header.calibration)

    @cached_property
    def _timers(self) -> dict[str, Calibration | None]:
        """Of the cells that stand in a segment; a later segment takes over from an earlier one."""
        return {cell.key: segment.calibration for start, segment in self.segments for cell in self.cells[start:]}

    @property
    def uncalibrated(self) -> tuple[str, ...]:
        """Why a ruler of this run missed its tolerances, each reason once."""
        return tuple(
            dict.fromkeys(
                [*self.header.uncalibrated, *(r for _, segment in self.segments for r in segment.uncalibrated)]
            )
        )

    @property
    def cache(self) -> str:
        return self.header.config.get("measure", {}).get("cache", "hot")


def cell_key(operator: str, variant: str, point: str) -> str:
    return f"{operator}/{variant}/{point}"


def sources_compile(compiled: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether no CUDA source failed for any architecture; ``compiled`` as in the header."""
    return all(result == "ok" for results in compiled.values() for result in results.values())


def label_parts(point: str) -> dict[str, str]:
    """The label of a point taken apart: axis -> value as text, for the axes that are not at their default."""
    return dict(part.split("=", 1) for part in point.split(",") if "=" in part)


def axis_texts(point: str, axes: Mapping[str, Any]) -> dict[str, str]:
    """Every axis as the label of the point spells it; a default, which labels leave out, as it is."""
    named = label_parts(point)
    return {
        axis: named.get(axis, f"{value:g}" if isinstance(value, float) else str(value)) for axis, value in axes.items()
    }
