"""ITL and TPOT of a decode loop, modelled from measured times; no decode loop is run.

ITL is the inter-token latency of a request, TPOT its time per output token. A decode step is one run of the model and
``calls_per_step`` calls of the operator:

    step = model_step_us + calls_per_step * cost                     [us]

``cost`` is the time of the operator that delays the step:

* ``sync`` scheduling: the host must read the accepted counts of a step before it can submit the next one. The GPU is
  idle then, and the step waits from submission to completion: cost = eager_us.
* ``async`` scheduling: the host runs a step ahead. Only device time delays the step: cost = queued_us, the time of a
  call in a stream. gpu_us would be too little, because the gaps between kernels are wider in a stream than in a graph.

``eager_us`` is taken from a host that does nothing else. In a decode loop (docs/decode-loop.md) the same launches take
it longer, so the model says less than a chain costs there.

A request receives all tokens of a step at once, so ITL = step. With k = max_decode_len - 1 drafts, each accepted with
probability p if all drafts before it were, a step yields the drafts before the first rejected one, and one token of the
target model:

    E = sum_{i=0..k} p^i     tokens per step         TPOT = step / E     [us per output token]

The time of the model is assumed to be the same with every variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from spec_decode_bench.harness.analysis import stats
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.records.schema import Cell, Header, Status


class ServingModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The decode loop that is modelled; section ``itl_tpot:`` of a configuration.

    model_step_us:  time of a decode step without the operator, microseconds.
    acceptance:     probability that a draft is accepted if all drafts before it were.
    calls_per_step: how often the operator runs in a step.
    scheduling:     which time of the operator delays the step, see above.
    """

    model_step_us: Annotated[float, Meta(gt=0, le=1e12)]
    acceptance: Annotated[float, Meta(ge=0, le=1)]
    calls_per_step: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    scheduling: Literal["sync", "async"] = "sync"

    @property
    def cost_metric(self) -> str:
        """The metric of a cell that delays a step."""
        return cost_metric(self.scheduling)

    def tokens_per_step(self, max_decode_len: int) -> float:
        """E, the expected output tokens of a request in one step with max_decode_len - 1 drafts."""
        if self.acceptance == 1:
            return float(max_decode_len)
        return (1 - self.acceptance**max_decode_len) / (1 - self.acceptance)

    def itl_us(self, cost_us: float) -> float:
        return self.model_step_us + self.calls_per_step * cost_us


def cost_metric(scheduling: str) -> str:
    """The metric of a cell that delays a step under ``sync`` or ``async`` scheduling."""
    return "eager_us" if scheduling == "sync" else stats.QUEUED


@dataclass(frozen=True)
class Delta:
    """Variant minus baseline; negative is faster. percent: of the baseline's ITL, and as well of its TPOT, since both
    are the step time up to the factor E.
    """

    itl_us: Interval
    tpot_us: Interval
    percent: Interval


def decode_len(axes: Mapping[str, Any]) -> int:
    """Tokens per request and step of a point: the drafts and one more. 1 for an operator without such an axis."""
    return axes.get("max_decode_len", axes.get("next_n", 1))


def delta(model: ServingModel, baseline: Cell, cell: Cell) -> Delta | None:
    """Modelled change of ITL and TPOT when the variant of ``cell`` replaces that of ``baseline``.

    None where either cell did not pass, was timed on a CPU or lacks the metric that delays a step, and for an operator
    of the prefill, which delays no decode step. Intervals: percentile bootstrap over the samples of both cells,
    resampled independently. Raises ValueError where the cells are not of the same operator and point.
    """
    if baseline.point_key != cell.point_key:
        raise ValueError(f"{cell.key} and {baseline.key} cannot be compared: not the same operator and point")
    if cell.phase == "prefill":
        return None
    before, after = _medians(baseline, model.cost_metric, seed=0), _medians(cell, model.cost_metric, seed=1)
    if before is None or after is None:
        return None
    itl = model.calls_per_step * (after - before)
    return Delta(
        itl_us=_interval(itl),
        tpot_us=_interval(itl / model.tokens_per_step(decode_len(cell.axes))),
        percent=_interval(100 * itl / model.itl_us(before)),
    )


def _medians(cell: Cell, metric: str, seed: int) -> np.ndarray | None:
    """The median of the samples, then the medians of bootstrap resamples; None where there is no GPU time."""
    if cell.status != Status.PASSED or cell.metrics is None or cell.metrics.cpu_us:
        return None
    values = np.asarray(stats.samples(cell.metrics, metric), dtype=float)
    if not len(values):
        return None
    drawn = np.random.default_rng(seed).choice(values, size=(stats.RESAMPLES, len(values)))
    return np.concatenate([[np.median(values)], np.median(drawn, axis=1)])


def _interval(values: np.ndarray) -> Interval:
    """From a value and its resamples, widened to contain the value."""
    tail = (1 - stats.CONFIDENCE) / 2
    low, high = np.quantile(values[1:], [tail, 1 - tail])
    return Interval(float(values[0]), float(min(low, values[0])), float(max(high, values[0])))


def described(model: ServingModel) -> str:
    """The model in words, with the metric that delays a step."""
    calls = f"{model.calls_per_step} call{'s' if model.calls_per_step > 1 else ''} per step"
    return (
        f"model step {model.model_step_us / 1000:g} ms, acceptance {model.acceptance:g}, {calls}, "
        f"{model.scheduling} scheduling ({model.cost_metric} counts)"
    )


def serving_model_of(header: Header) -> ServingModel | None:
    """The model that the run was configured with; None where there was none."""
    values = header.config.get("itl_tpot")
    return None if values is None else msgspec.convert(values, ServingModel)
