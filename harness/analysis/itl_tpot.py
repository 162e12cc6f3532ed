"""What a variant is worth in a decode loop, MODELLED from its measured times; a measured loop is another thing.

A request runs through decode steps. A step is one run of the model plus ``calls_per_step`` runs of the operator:

    step = model_step_us + calls_per_step * cost                     [us]

``cost`` is the part of the operator that the GPU waits for:

* ``sync``: the host needs the accepted counts of the last step before it can submit, so the GPU is idle when the operator is
  submitted, and the step waits from submission to completion: eager_us.
* ``async``: the host runs a step ahead and is hidden behind the model; only device time is on the critical path: gpu_us.

A step hands a request all its tokens of that step at once. The time between two deliveries is ITL, so ITL = step. With
k = max_decode_len - 1 drafts, each accepted with probability p given that all drafts before it were, a step yields the
drafts up to the first rejected one and one token of the target model itself:

    E = sum_{i=0..k} p^i     tokens per step         TPOT = step / E     [us per output token]

The model's time is taken as the same for all variants. Never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from harness.analysis import stats
from harness.analysis.stats import Interval
from harness.records.schema import Cell, Header, RecordError


class ServingModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The decode loop to project onto.

    model_step_us:  time of a decode step without the operator, microseconds.
    acceptance:     probability that a draft is accepted, given that all drafts before it were.
    calls_per_step: how often the operator runs in a step.
    scheduling:     what of the operator is on the critical path, see above.
    """

    model_step_us: Annotated[float, Meta(gt=0)]
    acceptance: Annotated[float, Meta(ge=0, le=1)]
    calls_per_step: Annotated[int, Meta(ge=1)] = 1
    scheduling: Literal["sync", "async"] = "sync"

    def __post_init__(self) -> None:
        if not math.isfinite(self.model_step_us):
            raise ValueError("model_step_us must be finite")

    @property
    def cost_figure(self) -> str:
        """The figure of a cell that a step waits for."""
        return "eager_us" if self.scheduling == "sync" else "gpu_us"

    def tokens_per_step(self, max_decode_len: int) -> float:
        """E: expected output tokens of a request in one step with max_decode_len - 1 drafts."""
        return float(sum(self.acceptance**i for i in range(max_decode_len)))

    def itl_us(self, cost_us: float) -> float:
        return self.model_step_us + self.calls_per_step * cost_us

    def tpot_us(self, cost_us: float, max_decode_len: int) -> float:
        return self.itl_us(cost_us) / self.tokens_per_step(max_decode_len)


@dataclass(frozen=True)
class Delta:
    """Variant minus baseline: negative is faster. ``percent`` is of the baseline's ITL, and of its TPOT just as well:
    both are the step time up to the same factor E.
    """

    itl_us: Interval
    tpot_us: Interval
    percent: Interval


def decode_len(axes: Mapping[str, Any]) -> int:
    """Rows per request and step of a point: the drafts and the token before them. 1 for an operator without such an
    axis.
    """
    return axes.get("max_decode_len", axes.get("next_n", 1))


def delta(serving: ServingModel, baseline: Cell, cell: Cell) -> Delta | None:
    """Modelled change of ITL and TPOT when ``cell``'s variant takes the place of ``baseline``'s, at one point of one
    run.

    None where either did not pass, was timed on a CPU (a CPU time is never presented as a GPU time), or lacks the figure that
    a step waits for, and for an operator of the prefill, which no decode step waits for. ValueError where the two are not the same
    operator and point.
    Intervals: percentile bootstrap over the samples of both cells, resampled independently.
    """
    if baseline.point_key != cell.point_key:
        raise ValueError(f"{cell.key} cannot be set against {baseline.key}: not the same operator and point")
    if cell.phase == "prefill":
        return None
    before, after = _medians(baseline, serving.cost_figure, seed=0), _medians(cell, serving.cost_figure, seed=1)
    if before is None or after is None:
        return None
    itl = serving.calls_per_step * (after - before)
    return Delta(
        itl_us=_interval(itl),
        tpot_us=_interval(itl / serving.tokens_per_step(decode_len(cell.axes))),
        percent=_interval(100 * itl / serving.itl_us(before)),
    )


def _medians(cell: Cell, figure: str, seed: int) -> np.ndarray | None:
    """The median of the samples, followed by those of its bootstrap resamples; None where there is no GPU time."""
    if cell.status != "passed" or cell.metrics is None or cell.metrics.cpu_us:
        return None
    values = np.asarray(stats.samples(cell.metrics, figure), dtype=float)
    if not len(values):
        return None
    drawn = np.random.default_rng(seed).choice(values, size=(stats.RESAMPLES, len(values)))
    return np.concatenate([[np.median(values)], np.median(drawn, axis=1)])


def _interval(values: np.ndarray) -> Interval:
    """From the figure itself and its resamples. Clamped to hold the figure, which is all there is of one sample."""
    tail = (1 - stats.CONFIDENCE) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return Interval(float(values[0]), float(min(low, values[0])), float(max(high, values[0])))


def described(serving: ServingModel) -> str:
    """The model in words; the cost names the figure that a step waits for."""
    calls = f"{serving.calls_per_step} call{'s' if serving.calls_per_step > 1 else ''} per step"
    return (
        f"model step {serving.model_step_us / 1000:g} ms, acceptance {serving.acceptance:g}, {calls}, "
        f"{serving.scheduling} scheduling ({serving.cost_figure} counts)"
    )


def serving_model_of(header: Header) -> ServingModel | None:
    """The model that the run was configured with; None where it had none. RecordError where the record's is not
    valid.
    """
    # Records from before the section was renamed call it "serving".
    values = header.config.get("itl_tpot", header.config.get("serving"))
    if values is None:
        return None
    try:
        return msgspec.convert(values, ServingModel)
    except msgspec.ValidationError as error:
        raise RecordError(f"the itl_tpot section in the header of run {header.name!r} is not valid: {error}") from None
