"""Lines of a record that hold steps of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from spec_decode_bench.engine_plugin.configuration import Arm, Mode
from spec_decode_bench.harness.checks import Difference
from spec_decode_bench.harness.records.schema import Finding, Outcome, Place, Proof, Reason, Run, Status, Us

if TYPE_CHECKING:
    from torch import Tensor


class EngineBlock(Outcome, frozen=True, kw_only=True, tag="engine", tag_field="line", omit_defaults=True):
    """A block of steps of an engine: all with the same requests, which decode with all their drafts.

    mode, arm:  of the plan. batch: requests of a step. number: of the block, counted over all of the process.
    turn:       measure: the palindrome of arms that it belongs to, at this batch size.
    itl_us:     from the start of a step to that of the next one, by the clock of the process that runs the model. The
                first steps of a block, which settle, are left out.
    host_us:    operator -> in each of these steps, of the host in the functions that its variant stands for.
    busy_us:    in each of them, that the thread which runs the model had a CPU.
    cpus:       number of the CPU on which each of them began.
    launches:   operator -> kernels, copies and fills on the GPU in these functions; of a step by itself, behind all
                blocks of its batch size, since what counts them slows down.
    tokens:     that a request received in a step, mean of the block; None where it is not known.
    prefill_us: steps since the last block in which a prompt was computed.
    checked:    operator -> steps in which its results were compared with the engine's own.
    uncovered:  operator -> steps that its variant does not cover, which the engine's own functions prepared.
    captured_us, captured_bytes: capture: steps that were captured, and what was written.
    variants:   operator -> variant, of the arm ``suite``.
    finding:    the first difference from the engine's own results, where the status is "mismatch", or what was raised;
                the variant in it has been switched off since.
    """

    mode: Mode
    arm: Arm
    batch: int
    number: int
    status: Status
    turn: int = 0
    itl_us: list[Us] = []
    host_us: dict[str, list[Us]] = {}
    busy_us: list[Us] = []
    cpus: list[int] = []
    launches: dict[str, int] = {}
    tokens: float | None = None
    prefill_us: list[Us] = []
    checked: dict[str, int] = {}
    uncovered: dict[str, int] = {}
    captured_us: list[Us] = []
    captured_bytes: int = 0
    variants: dict[str, str] = {}
    finding: Finding | None = None
    reason: Reason | None = None
    process: int = 0
    seconds: dict[str, float] = {}
    proofs: ClassVar[dict[str, Proof]] = {}

    @property
    def variant(self) -> str:
        """The name by which tables know it."""
        return self.arm

    @property
    def point(self) -> str:
        return f"batch_size={self.batch}"

    @property
    def key(self) -> str:
        return f"engine/{self.arm}/{self.number}"


def blocks_of(run: Run) -> list[EngineBlock]:
    """The blocks of a record."""
    return [line for line in run.others if isinstance(line, EngineBlock)]


def first_difference(variant: str, step: int, name: str, expected: Tensor, got: Tensor) -> Finding | None:
    """What of two tensors of one shape is different first, as a finding; None where they are equal. variant:
    "operator/variant".
    """
    wrong = (expected != got).nonzero()
    if not len(wrong):
        return None
    index = tuple(wrong[0].tolist())
    values = expected[index].item(), got[index].item()
    return Finding(
        status=Status.MISMATCH,
        place=Place.POINT,
        variant=variant,
        check="engine",
        name=f"step {step}",
        message=f"{name}{list(index)} is {values[1]} in step {step}, {values[0]} by the engine's own functions",
        difference=Difference(tensor=name, index=index, expected=values[0], got=values[1], wrong=len(wrong)),
    )
