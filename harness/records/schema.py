"""The schema of a record, a JSONL file: a header line, then one line per cell, or per place that ``verify`` checked.
docs/records.md describes the fields.

Only raw samples are stored. Medians, slopes, intervals and ratios are derived on reading (harness/analysis), so that a
better statistic can be applied to old runs. harness/records/file.py writes and reads the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Literal

import msgspec

from spec_decode_bench.harness.checks import Difference
from spec_decode_bench.harness.contract import in_buffers
from spec_decode_bench.harness.errors import UsageError

SCHEMA_VERSION = 5
#: What is read. 4 added the lines of a verification; 5 put the fields of a Difference together.
READABLE_SCHEMAS = (3, 4, SCHEMA_VERSION)

#: Microseconds.
Us = float
#: Copies or calls -> samples.
BySize = dict[int, list[Us]]


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
    #: It failed where its ``known_failures=`` say that it does; only where such a place is checked.
    KNOWN_FAILURE = "known failure"

    @property
    def is_bad(self) -> bool:
        """Whether it makes a run end with exit code 1."""
        return self in (Status.MISMATCH, Status.FAILED)

    @property
    def is_verdict(self) -> bool:
        """Whether the variant was run: what was skipped or is unavailable is neither right nor wrong."""
        return self not in (Status.SKIPPED, Status.UNAVAILABLE)


class Code(StrEnum):
    """Why a variant has no result somewhere, or what is to be known of its result."""

    #: The operator leaves the point out. detail: in its words (``redundant=``).
    REDUNDANT = "redundant"
    #: The captured inputs of the point are none that the operator can have. detail: why.
    CAPTURED = "captured"
    #: The variant leaves the point out. detail: in its words (``skip=``).
    NOT_APPLICABLE = "not_applicable"
    #: This machine lacks something. detail: as ``requires=`` spells it.
    NEEDS = "needs"
    #: Triton's interpreter or torch.compile has used its time for this variant. seconds: that time.
    INTERPRETER_BUDGET = "interpreter_budget"
    #: The inputs are beyond what the variant declares to support (``fails_on=``).
    KNOWN_FAILURE = "known_failure"
    #: torch.compile would have to compile again.
    RECOMPILES = "recompiles"
    #: There is not enough memory. needed_bytes, free_bytes: the estimate for the point, and what there was.
    MEMORY = "memory"
    #: It passed, and has no times because Triton's interpreter ran it.
    INTERPRETED = "interpreted"


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """variant: whose reason it is, "operator/variant", of several that are measured together."""

    code: Code
    detail: str | None = None
    seconds: float | None = None
    needed_bytes: int | None = None
    free_bytes: int | None = None
    variant: str | None = None


class Place(StrEnum):
    """What a variant was run on."""

    EDGE_CASE = "edge_case"
    SEQUENCE = "sequence"
    ARRAY_POINT = "array_point"
    #: A point of the sweep, or what a room measures instead.
    POINT = "point"
    #: Nothing: the import of its file.
    IMPORT = "import"


class Where(msgspec.Struct, frozen=True):
    """What a variant is run on; its fields are those of a Finding."""

    place: Place
    name: str = ""
    buffers: Literal["unaligned", "far", "in_place"] | None = None

    def finding(
        self,
        status: Status,
        *,
        reason: Reason | None = None,
        check: str | None = None,
        message: str | None = None,
    ) -> Finding:
        """What was found there."""
        return Finding(
            status=status,
            place=self.place,
            name=self.name,
            buffers=self.buffers,
            reason=reason,
            check=check,
            message=message,
        )


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a variant did at one place.

    name:          of the edge case or sequence; else the label of the point. Empty where it is not known.
    buffers:       whether they started one element past an aligned address, their rows lay beyond 2^31 elements, or one
                   array was input and output.
    when:          where in a timed run; None while it was verified.
    check:         the check that rejected it. error: the type of the exception that it raised instead.
    message:       what was seen, for people.
    difference:    where a buffer is wrong.
    culprit:       of a death, the variant that had control, "operator/variant"; None where none had.
    deaths:        how often this variant has ended its process, where it is not run again.
    reason:        why it was skipped.
    passed_checks: the checks that were tested and passed, even where another one rejected it.
    """

    status: Status
    place: Place
    name: str
    buffers: Literal["unaligned", "far", "in_place"] | None = None
    when: Literal["timing", "after_timing", "audit"] | None = None
    check: str | None = None
    error: str | None = None
    message: str | None = None
    difference: Difference | None = None
    variant: str | None = None
    culprit: str | None = None
    deaths: int | None = None
    reason: Reason | None = None
    passed_checks: tuple[str, ...] = ()

    @property
    def where(self) -> Where:
        return Where(self.place, self.name, self.buffers)

    @property
    def lacked_memory(self) -> bool:
        """Whether it had no room, which other processes may have taken."""
        return self.error in ("OutOfMemoryError", "MemoryError")


class RecordError(UsageError):
    """A record file cannot be read or written; the message says which one and why."""


class Checkout(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of a package whose files are not a release.

    commit: of the git repository that tracks them, in full; date: when it was committed, ISO 8601.
    files:  hash of the files that variants require, where they are not those of the commit, or no commit is known.
    """

    commit: str | None = None
    date: str | None = None
    files: str | None = None

    def __str__(self) -> str:
        """``1a2b3c4``, ``1a2b3c4+9f3c2b1a`` with changes, ``files 9f3c2b1a``."""
        changed = self.files[:8] if self.files else ""
        return f"files {changed}" if self.commit is None else f"{self.commit[:7]}{f'+{changed}' if changed else ''}"


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine and the software of a run. ``device`` is "cuda" or "cpu".

    gpu_id:   hash of the GPU's UUID, by which runs of the same GPU are known.
    nvrtc:    version of NVRTC. compiler_settings: variables of the environment that change what compilers make, with
        the hash of a file that one names.
    nvml_refused: readings that NVML refuses here, whose consequences ``notes`` tell.
    packages: package that variants wrap -> its version, of those that are there. checkouts: -> its checkout, of those
        that are no release.
    fixed_addresses: whether the addresses of the process that timed were not randomized.
    """

    device: Literal["cuda", "cpu"]
    processor: str
    python: str
    torch: str
    triton: str | None = None
    cuda_core: str | None = None
    nvrtc: str | None = None
    compiler_settings: dict[str, str] = {}
    gpu: str | None = None
    gpu_id: str | None = None
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
    packages: dict[str, str] = {}
    checkouts: dict[str, Checkout] = {}
    fixed_addresses: bool = False
    nvml_refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def wrapped(self) -> dict[str, str]:
        """Package that variants wrap -> its checkout, else its version, as titles name it."""
        return {name: str(self.checkouts.get(name, version)) for name, version in self.packages.items()}

    def package(self, name: str) -> str:
        """Version and checkout of a package that variants wrap: ``0.33.0 (1a2b3c4)``."""
        version, checkout = self.packages[name], self.checkouts.get(name)
        if checkout is None:
            return version
        return str(checkout) if version == "unknown" else f"{version} ({checkout})"


class EstimatorSamples(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Raw samples of the estimators of one call's GPU time (harness/analysis/estimators.py), microseconds.

    graph_us:  copies of the call in a CUDA graph -> time of a replay, one per round; gpu_us is its slope.
    state_us:  replays of the one-copy graph in the run's cache state, one per round; empty if that is "hot".
    stream_us: calls queued one by one behind a blocking kernel -> time between the events around them, one per round;
               for a cell in the first rounds only.
    cupti_us:  durations of the kernels, memcpys and memsets of one call, summed, from CUPTI; one per graph, replayed in
               the run's cache state.
    """

    graph_us: BySize = {}
    state_us: list[Us] = []
    stream_us: BySize = {}
    cupti_us: list[Us] = []


class KernelTimes(EstimatorSamples, frozen=True, kw_only=True, omit_defaults=True):
    """A calibration kernel, timed by each estimator.

    true_us:  for a spin kernel, its duration by the GPU's global timer, one per round.
    launches: kernels, memcpys and memsets of one call.
    """

    true_us: list[Us] = []
    launches: int = 1


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, eq=False):
    """What the timer reads of known work in this run, raw. Compared and hashed by identity, to serve as a cache key.

    own:             calibration kernels: "null" (empty), "block_copy" (one block), "chain" (of PyTorch operators); more
                     in older records.
    spins:           nanoseconds asked for -> a kernel that waits so long.
    empty_pair_us:   two events with nothing between them, behind a blocking kernel; the smallest step between these
                     times is the resolution of an event.
    launch_host_us:  CPU time to launch the block copy.
    copy_bytes:      size of the device-to-device copies timed in copy_us.
    chase_cycles:    pointer chase -> clock cycles per hop: "l2" and "memory", and those of the run's cache state
                     (harness/analysis/cache_states.py).
    copies:          bytes read and written -> launch shape -> a copy kernel of so many bytes; the fastest shapes make
                     the copy bound's curve.
    sm_clock_mhz:    the SM clock under load, with which the clock at each sample is compared; 0 where NVML refuses.
    """

    own: dict[str, KernelTimes]
    spins: dict[int, KernelTimes]
    empty_pair_us: list[Us]
    launch_host_us: list[Us]
    copy_bytes: int
    copy_us: list[Us]
    chase_cycles: dict[str, list[Us]] = {}
    copies: dict[int, dict[str, KernelTimes]] = {}
    sm_clock_mhz: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="line"):
    """First line of a run.

    command, started: the command line, and when the run began (UTC, ISO 8601).
    seed:             of all random inputs.
    variants:         "operator/variant" in catalogue order, which is the order of columns in tables.
    config:           the configuration as read, defaults filled in.
    uncalibrated:     why the run is not calibrated; empty where it is, and on a CPU.
    compiled:         CUDA source -> architecture -> "ok" or NVRTC's error; without a GPU only.
    cells:            keys of all planned cells, in order; --resume measures those that are missing.
    shard:            "2/8" where this run is one part of a sweep.
    sources:          file -> hash, of everything that the cells depend on (harness/session/sources.py); a file of a
                      package that variants wrap as ``vllm:_C.abi3.so``.
    seconds:          activity -> how long it took until the first cell (harness/analysis/seconds.py).
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
    sources: dict[str, str] = {}
    seconds: dict[str, float] = {}


class Save(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is measured after a save under ``--watch``; all as in Header. Without cells, ``why`` of the segment says
    what is wrong with the files.
    """

    cells: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    sources: dict[str, str] = {}
    compiled: dict[str, dict[str, str]] = {}


class Segment(msgspec.Struct, frozen=True, kw_only=True, tag="segment", tag_field="line", omit_defaults=True):
    """A further process that measured cells of this run: a resumed run, a replaced worker, a merged shard, the files of
    a save, or, in a run on several GPUs, one of another GPU.

    process: its number, which its cells have, too; that of the header is 0.
    seconds: as in Header.
    save:    of a process that begins one.
    """

    process: int
    started: str
    why: str
    environment: Environment
    calibration: Calibration | None = None
    uncalibrated: tuple[str, ...] = ()
    seconds: dict[str, float] = {}
    save: Save | None = None


class Metrics(EstimatorSamples, frozen=True, kw_only=True, omit_defaults=True):
    """Raw samples of one cell in microseconds, one per round unless said otherwise, and counts.

    bytes_moved:       least traffic of the operator at this point.
    host_us:           CPU time to submit one call.
    eager_us:          from submission to completion on an idle GPU, submission included.
    cpu_us:            wall time of one call of a PyTorch variant on a CPU; never a GPU time.
    launches:          kernel, memcpy and memset nodes of one call in the captured graph; graph_nodes: by type.
    no_graph:          why the call cannot be captured; then there is no graph_us.
    no_audit:          why the second process did not look at this cell.
    cupti_launches:    operations of one call in a graph, by CUPTI; eager_launches: outside of one.
    allocations, synchronizations: of one eager call; memcpys: direction ("HtoD", "DtoH", "DtoD") -> count.
    placements:        sets of buffers, of which each round takes the next.
    rounds, stopped:   number of rounds, and why there were no more: "settled", "budget" or "rounds".
    discarded:         reason -> samples that were repeated, because the GPU was throttled or below its clock.
    disturbed:         samples that were kept although that was still so after all repetitions.
    sm_clock_mhz, power_w: read before and after the rounds of the point.
    """

    bytes_moved: int
    host_us: list[Us] = []
    eager_us: list[Us] = []
    cpu_us: list[Us] = []
    launches: int | None = None
    graph_nodes: dict[str, int] = {}
    no_graph: str | None = None
    no_audit: str | None = None
    cupti_launches: int | None = None
    eager_launches: int | None = None
    allocations: int | None = None
    synchronizations: int | None = None
    memcpys: dict[str, int] | None = None
    placements: int = 1
    rounds: int = 0
    stopped: str | None = None
    discarded: dict[str, int] = {}
    disturbed: int = 0
    sm_clock_mhz: list[int] = []
    power_w: list[float] = []


class Proof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier run in which a variant passed its edge cases and sequences.

    key:         the record that --trust names; in older records a hash of all that they depend on.
    verified_at: when, UTC, ISO 8601. gpu_id: on which GPU, as in Environment.
    """

    key: str
    verified_at: str
    gpu_id: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", omit_defaults=True):
    """A line that says how something ended: a Cell, a CheckLine, or a kind that a room registers. All have the fields
    ``status``, ``finding``, ``reason``, ``process`` and ``seconds`` as a Cell has them, and:

    variant:     what its work item calls it.
    key:         its name in NVTX ranges, and what --resume goes by.
    proofs:      "operator/variant" -> where an earlier run verified it.
    """


class UnknownLine(msgspec.Struct, frozen=True):
    """A line of a kind that is not registered here, as it stands in the file."""

    kind: str
    raw: bytes


class Cell(Outcome, frozen=True, kw_only=True, tag="cell", tag_field="line", omit_defaults=True):
    """One variant of one operator at one point.

    baseline:       the variant that ratios refer to.
    point:          label of the point, with the axes that are not at their default; axes: all of them.
    finding:        what is wrong where the status is "mismatch" or "failed".
    reason:         why it was skipped or is unavailable; for a cell that passed, a remark.
    metrics:        None unless the cell passed.
    phase:          when a server calls the operator.
    known_failures: edge cases and sequences, as globs, that the variant is declared not to support -> why.
    process:        number of the process that measured it: the header's is 0, the others have a segment.
    proof:          where the variant passed its edge cases, if an earlier run verified them.
    audit:          in older records: where its launch at this point was audited; then there is no cupti_us.
    seconds:        activity -> how long it took (harness/analysis/seconds.py).
    """

    operator: str
    variant: str
    baseline: str
    point: str
    axes: dict[str, Any]
    status: Status
    finding: Finding | None = None
    reason: Reason | None = None
    metrics: Metrics | None = None
    phase: Literal["decode", "prefill"] = "decode"
    known_failures: dict[str, str] = {}
    process: int = 0
    proof: Proof | None = None
    audit: Proof | None = None
    seconds: dict[str, float] = {}

    @property
    def key(self) -> str:
        """Name of the cell's NVTX ranges; two runs are joined on it."""
        return cell_key(self.operator, self.variant, self.point)

    @property
    def variant_id(self) -> str:
        return f"{self.operator}/{self.variant}"

    @property
    def proofs(self) -> dict[str, Proof]:
        return {self.variant_id: self.proof} if self.proof else {}

    @property
    def point_key(self) -> tuple[str, str]:
        return self.operator, self.point

    @property
    def was_timed(self) -> bool:
        return self.metrics is not None and self.metrics.rounds > 0


class CheckLine(Outcome, frozen=True, kw_only=True, tag="check", tag_field="line", omit_defaults=True):
    """What ``verify`` found about one variant at one place.

    place, name, buffers: where, as in Finding.
    finding:       what is wrong, or what a known failure looks like; that of an earlier place where the variant was not
                   run here because of it.
    reason:        why it was skipped or is unavailable; at a point of the sweep that it passed, a remark.
    passed_checks: as in Finding; of a variant that passed.
    seconds:       "verify" -> how long it took.
    """

    operator: str
    variant: str
    place: Place
    name: str
    status: Status
    buffers: Literal["unaligned", "far", "in_place"] | None = None
    finding: Finding | None = None
    reason: Reason | None = None
    passed_checks: tuple[str, ...] = ()
    process: int = 0
    seconds: dict[str, float] = {}
    proofs: ClassVar[dict[str, Proof]] = {}

    @classmethod
    def of(cls, operator: str, variant: str, found: Finding, seconds: float, planned: Where | None = None) -> CheckLine:
        """found: whether it passed or not. planned: where it was to run, if not there."""
        where = planned or found.where
        is_shown = found.status.is_bad or found.message is not None
        return cls(
            operator=operator,
            variant=variant,
            place=where.place,
            name=where.name,
            status=found.status,
            buffers=where.buffers,
            finding=found if is_shown else None,
            reason=found.reason,
            passed_checks=() if is_shown else found.passed_checks,
            seconds=rounded({"verify": seconds}),
        )

    @property
    def found(self) -> Finding:
        """The finding, also of a variant that passed or was skipped."""
        return self.finding or Finding(
            status=self.status,
            place=self.place,
            name=self.name,
            buffers=self.buffers,
            reason=self.reason,
            passed_checks=self.passed_checks,
        )

    @property
    def key(self) -> str:
        return cell_key(self.operator, self.variant, in_buffers(self.name, self.buffers))

    @property
    def variant_id(self) -> str:
        return f"{self.operator}/{self.variant}"


class Run(msgspec.Struct, frozen=True, dict=True):
    """A record as read.

    truncated: whether the last line was incomplete, because the run was killed, and was dropped.
    segments:  its processes but the first, which the header describes.
    others:    lines of a verification, or of the kinds that rooms register, in a run that measured them; such a run
               has no cells.
    unknown:   lines of other kinds, which are kept.
    earlier:   of a record of --watch, whose last save this is, the saves before it.
    """

    path: str
    header: Header
    cells: list[Cell]
    truncated: bool = False
    segments: list[Segment] = []
    others: list[Any] = []
    unknown: list[UnknownLine] = []
    earlier: list[Run] = []

    @property
    def outcomes(self) -> list[Any]:
        """Every line that says how something ended."""
        return [*self.cells, *self.others]

    @property
    def missing(self) -> list[str]:
        """Keys of what was planned and has no line, in the order of the plan."""
        present = {line.key for line in self.outcomes}
        return [key for key in self.header.cells if key not in present]

    @property
    def in_order(self) -> list[Cell]:
        """The cells in the order of the sweep; in the file, those of merged shards are shard by shard."""
        return sorted(self.cells, key=self.number_of)

    def number_of(self, line: Outcome) -> int:
        """Its number in the plan; what was not planned comes last."""
        return self._numbers.get(line.key, len(self._numbers))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {key: i for i, key in enumerate(self.header.cells)}

    def calibration_of(self, cell: Cell) -> Calibration | None:
        """The calibration of the process that timed this cell."""
        return self.process_of(cell).calibration

    def process_of(self, line: Outcome) -> Header | Segment:
        """The line that describes the process which measured it."""
        return self._processes.get(line.process, self.header)

    @cached_property
    def _processes(self) -> dict[int, Segment]:
        return {segment.process: segment for segment in self.segments}

    @property
    def gpu_ids(self) -> tuple[str | None, ...]:
        """Of the GPUs that its cells were measured on; that of the header where it has none."""
        cells = dict.fromkeys(self.process_of(cell).environment.gpu_id for cell in self.cells)
        return tuple(cells) or (self.header.environment.gpu_id,)

    @property
    def calibrations(self) -> list[Calibration]:
        """Of all its processes."""
        calibrations = [self.header.calibration, *(segment.calibration for segment in self.segments)]
        return [calibration for calibration in calibrations if calibration is not None]

    @property
    def uncalibrated(self) -> tuple[str, ...]:
        """Why a process of this run was not calibrated, each reason once."""
        return tuple(
            dict.fromkeys([*self.header.uncalibrated, *(r for segment in self.segments for r in segment.uncalibrated)])
        )

    @property
    def cache(self) -> str:
        """The cache state's name."""
        return self.header.config["measure"]["cache"]


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """As records have them."""
    return {activity: round(s, 3) for activity, s in seconds.items()}


def added(*seconds: Mapping[str, float]) -> dict[str, float]:
    """By activity, of all of them."""
    total: Counter[str] = Counter()
    for one in seconds:
        total.update(one)
    return rounded(total)


def cell_key(operator: str, variant: str, point: str) -> str:
    return f"{operator}/{variant}/{point}"


def split_key(key: str) -> tuple[str, str, str]:
    """(operator, variant, point) of a cell's key; empty where it lacks them."""
    operator, _, rest = key.partition("/")
    variant, _, point = rest.partition("/")
    return operator, variant, point


def sources_compile(compiled: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether every CUDA source compiles for every architecture; ``compiled`` as in the header."""
    return all(result == "ok" for results in compiled.values() for result in results.values())


def label_parts(point: str) -> dict[str, str]:
    """Axis -> value as text, from the label of a point: the axes that are not at their default."""
    return dict(part.split("=", 1) for part in point.split(",") if "=" in part)


def axis_texts(point: str, axes: Mapping[str, Any]) -> dict[str, str]:
    """Axis -> value as text: as the point's label spells it, or, where the label leaves a default out, as it is."""
    texts = label_parts(point)
    return {
        axis: texts.get(axis, f"{value:g}" if isinstance(value, float) else str(value)) for axis, value in axes.items()
    }
