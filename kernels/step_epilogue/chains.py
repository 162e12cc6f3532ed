"""step_epilogue as an engine launches it, and as the fused kernels of its parts in sequence."""

from __future__ import annotations

from collections.abc import Callable

from baselines.step_epilogue.operator import Inputs, Outputs, drafter_part, states_part, update_part, with_states
from harness.contract import GPU, Point, variant
from kernels.draft_inputs import chains as drafter_engine
from kernels.draft_inputs import cuda as drafter_cuda
from kernels.mamba_align_step import chains as states_engine
from kernels.mamba_align_step import cuda as states_cuda
from kernels.post_update import chains as update_engine
from kernels.post_update import cuda as update_cuda

#: A variant of one of the parts.
Setup = Callable[..., Callable[[], None]]


def _sequence(
    point: Point, x: Inputs, out: Outputs, update: Setup, drafter: Setup, states: Setup
) -> Callable[[], None]:
    launches = [update(*update_part(point, x, out)), drafter(*drafter_part(point, x, out))]
    if with_states(point):
        launches.append(states(*states_part(point, x, out)))

    def launch() -> None:
        for part in launches:
            part()

    return launch


@variant("step_epilogue")
def engine(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way, one launch per launch of vLLM 0.33: four, two more with states. Copies are left out."""
    return _sequence(point, x, out, update_engine.engine, drafter_engine.engine, states_engine.engine)


CUDA_PARTS = (update_cuda, drafter_cuda, states_cuda)


@variant("step_epilogue", requires=GPU, sources=[part.SOURCE for part in CUDA_PARTS])
def cuda_sequence(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The fused CUDA kernels of the parts in sequence: two launches, three with states."""
    return _sequence(point, x, out, *(part.cuda_fused for part in CUDA_PARTS))
