"""Candidates in CUDA C++ of w/kernels: python bench.py CONFIG --variants candidates/cuda.py"""

from contextlib import contextmanager
from pathlib import Path

from cuda.bindings import driver

from baselines.workloads.integers import reciprocal
from harness import launch
from harness.contract import GPU, variant
from harness.cuda import launcher

HERE = Path(__file__).parent


@variant("mla_tile_schedule", requires=GPU, sources="tile.cu")
def cuda_new_tile(point, x, out):
    """One warp for up to 128 requests and 32 parts; doubling where many parts are stretched."""
    return launcher(
        HERE / "tile.cu",
        "tile_schedule",
        1,
        256,
        x.seq_lens,
        out.tile_scheduler_metadata,
        out.num_splits,
        len(x.seq_lens),
        point.num_sm_parts,
        point.overhead,
        *reciprocal(point.num_sm_parts),
        int(point.layout == "old"),
    )


@variant("k_quant_gather", requires=GPU, sources="gather.cu")
def cuda_new_gather(point, x, out):
    """A search in steps of 33, which leaves start and end of the request in registers."""
    from kernels.k_quant_gather import cuda as old

    with patched(old, SOURCE=HERE / "gather.cu", launcher=launcher):
        return old.cuda_fused(point, x, out)


@variant("decode_step", requires=GPU, sources="step.cu")
def cuda_new_step(point, x, out):
    """With the new tile schedule."""
    from kernels.decode_step import cuda as old

    with patched(old, SOURCE=HERE / "step.cu", launcher=launcher):
        return old.cuda_fused(point, x, out)


@variant("decode_step", requires=GPU, sources="step_pdl.cu")
def cuda_pdl(point, x, out):
    """With the new tile schedule, and programmatic dependent launch: needs sm_90."""
    from kernels.decode_step import cuda as old

    with patched(old, SOURCE=HERE / "step_pdl.cu", launcher=dependent_launcher):
        return old.cuda_fused(point, x, out)


# --- helpers ----------------------------------------------------------------------------------------------------------


@contextmanager
def patched(module, **values):
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


class Dependent(launch._Configurations):
    """Launch configurations with the attribute that lets a launch begin before the one in front of it has ended."""

    def __missing__(self, stream):
        address = super().__missing__(stream)
        config, attribute = self._kept[-1], driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value = driver.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        config.attrs, config.numAttrs = [attribute], 1
        self._kept.append(attribute)
        self._kept[-2:] = [attribute, config]
        return address


def dependent_launcher(*arguments):
    with patched(launch, _Configurations=Dependent):
        return launcher(*arguments)
