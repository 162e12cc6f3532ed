"""Packed launches against a driver that notes what it is given; on a GPU, against Triton's and torch's own."""

import contextlib
import ctypes
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from cuda.bindings import driver

from spec_decode_bench.harness import launch
from spec_decode_bench.harness.contract import Point

OK = driver.CUresult.CUDA_SUCCESS
FUNCTION = driver.CUfunction(7)


class Driver:
    """Current device and stream, parameters of every kernel, and what was launched: (device, stream, grid, values)."""

    def __init__(self, sizes):
        self.sizes, self.device, self.streams, self.answer, self.launched = sizes, 0, {0: 0, 1: 0}, 0, []

    def info(self, function, index):
        known = index < len(self.sizes)
        return (OK, 0, self.sizes[index]) if known else (driver.CUresult.CUDA_ERROR_INVALID_VALUE, None, None)

    def launch(self, config, function, parameters, extra):
        class Config(ctypes.Structure):
            _fields_ = [(f"f{i}", ctypes.c_uint) for i in range(8)] + [("stream", ctypes.c_void_p)]

        given, types = Config.from_address(config.value), {4: ctypes.c_int, 8: ctypes.c_longlong}
        addresses = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        values = [types[size].from_address(addresses[i]).value for i, size in enumerate(self.sizes)]
        shape = (given.f0, given.f1, given.f2, given.f3, given.f6)
        self.launched.append((self.device, given.stream or 0, shape, values))
        return self.answer

    @contextlib.contextmanager
    def on(self, device):
        before, self.device = self.device, device
        yield
        self.device = before


@pytest.fixture
def fake(monkeypatch):
    made = Driver([8, 4, 8])
    monkeypatch.setattr(launch, "_library", lambda: SimpleNamespace(cuLaunchKernelEx=made.launch))
    monkeypatch.setattr(driver, "cuFuncGetParamInfo", made.info)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: made.device)
    monkeypatch.setattr(torch.cuda, "device", made.on)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: made.device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: made.streams[device], raising=False)
    return made


def three_values():
    return [ctypes.c_void_p(1 << 40), ctypes.c_int(-3), ctypes.c_longlong(5 << 33)]


def test_a_launch_follows_the_current_stream_and_stays_on_its_device(fake):
    run = launch.packed(FUNCTION, (5, 2), 96, three_values(), None, shared=64)
    run()
    fake.streams[0] = 11
    run()
    fake.device = 1  # with a current stream of its own
    run()
    fake.streams[0] = 0
    fake.device = 0
    run()
    expected = ((5, 2, 1, 96, 64), [1 << 40, -3, 5 << 33])
    assert fake.launched == [(0, stream, *expected) for stream in (0, 11, 11, 0)]


def test_what_does_not_fit_is_refused_and_an_error_of_the_driver_has_its_name(fake):
    for values in (three_values()[:2], [*three_values(), ctypes.c_int(1)], [ctypes.c_int(1), *three_values()[1:]]):
        with pytest.raises(TypeError, match=r"parameters of \[8, 4, 8\] bytes"):
            launch.packed(FUNCTION, (1,), 32, values, None)
    assert not fake.launched
    fake.answer = int(driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        launch.packed(FUNCTION, (1,), 32, three_values(), None)()


# --- Triton -----------------------------------------------------------------------------------------------------------


class Kernel:
    """As a JITFunction of Triton looks from outside. ``needs``: changes of the compiled kernel's metadata."""

    arg_names = ("out", "n", "far", "BLOCK")

    def __init__(self, **needs):
        self.ordinary, self.warmed = [], []
        plain = {"num_warps": 4, "shared": 64, "num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False}
        metadata = SimpleNamespace(**{**plain, "global_scratch_size": 0, "profile_scratch_size": 0, **needs})
        signature = {"out": "*i32", "n": "i32", "far": "i64", "BLOCK": "constexpr"}
        self.compiled = SimpleNamespace(
            run=None, function=7, metadata=metadata, src=SimpleNamespace(signature=signature)
        )

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.ordinary.append((grid, arguments, options))

    def warmup(self, *arguments, grid, **options):
        self.warmed.append((grid, arguments, options))
        return self.compiled


@pytest.fixture
def jit(monkeypatch):
    from triton.runtime import jit as module

    monkeypatch.setattr(module, "JITFunction", Kernel)


ON_GPU = SimpleNamespace(is_cuda=True, data_ptr=lambda: 1 << 40)


@pytest.mark.parametrize("scratch", [0, 1, 2])
def test_a_compiled_kernel_is_launched_without_triton(fake, jit, scratch):
    fake.sizes += [8] * scratch
    kernel = Kernel()
    run = launch.fixed_launch(kernel, (5, 2), ON_GPU, -3, 5 << 33, BLOCK=128, num_warps=4)
    assert not fake.launched
    run()
    assert fake.launched == [(0, 0, (5, 2, 1, 128, 64), [1 << 40, -3, 5 << 33] + [0] * scratch)]
    assert len(kernel.warmed) == 1
    assert not kernel.ordinary


class Buffer:
    is_cuda = True

    def data_ptr(self):
        return 2 << 40


def test_a_tensor_given_by_keyword_lives_as_long_as_the_launch(fake, jit):
    kernel, buffer = Kernel(), Buffer()
    kernel.compiled.src.signature["far"] = "*i32"
    run, alive = launch.fixed_launch(kernel, (1,), ON_GPU, 3, far=buffer, BLOCK=128), weakref.ref(buffer)
    del buffer
    kernel.warmed.clear()
    run()
    assert alive() is not None
    del run
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("why", ["scratch", "sizes", "on the CPU", "empty grid"])
def test_what_is_not_known_is_launched_by_triton(fake, jit, why):
    kernel = Kernel(**({"global_scratch_size": 128} if why == "scratch" else {}))
    if why == "sizes":
        fake.sizes += [8, 8, 8]
    tensor = SimpleNamespace(is_cuda=False) if why == "on the CPU" else ON_GPU
    grid = (0,) if why == "empty grid" else (5,)
    launch.fixed_launch(kernel, grid, tensor, -3, 1, BLOCK=128)()
    assert kernel.ordinary == [(grid, (tensor, -3, 1), {"BLOCK": 128})]
    assert not fake.launched


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@triton.jit
def _add(out, by, far, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(out + i) + by + (far >> 33).to(tl.int32))


def adder(kind):
    """(launch, its target): adds 7 to 64 numbers."""
    target = torch.zeros(64, dtype=torch.int32, device="cuda")
    run = launch.fixed_launch(_add, (1,), target, 2, 5 << 33, BLOCK=64)
    return (launch.replayed(run) if kind == "replayed" else run), target


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["packed", "replayed"])
def test_stream_capture_and_thread_as_in_an_ordinary_launch(kind, monkeypatch):
    run, target = adder(kind)
    torch.cuda.synchronize()
    monkeypatch.setattr(triton.runtime.jit.JITFunction, "run", None)  # Triton's launcher takes no part
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        run()
    assert target.clone().sum() == 0  # the default stream overtakes the side stream's wait
    side.synchronize()
    assert (target == 7).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    assert (target == 7).all()
    graph.replay()
    graph.replay()
    run()
    assert (target == 28).all()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("kind", ["packed", "replayed"])
def test_it_stays_on_its_device_when_another_is_current(kind):
    run, target = adder(kind)
    with torch.cuda.device(1):
        run()
        assert torch.cuda.current_device() == 1
    torch.cuda.synchronize(0)
    assert (target == 7).all()


@pytest.mark.gpu
def test_every_fused_triton_variant_is_launched_without_triton(catalog, monkeypatch):
    """At its default point; each of them keeps Triton's launcher where the compiled kernel has what is not known."""
    from spec_decode_bench.harness.verify.fixture import Fixture

    packed, made = launch.packed, []
    monkeypatch.setattr(launch, "packed", lambda *a, **k: made.append(a) or packed(*a, **k))
    variants = [v for v in catalog.variants if v.name == "triton_fused"]
    for variant in variants:
        operator = catalog.operators[variant.operator]
        Fixture(operator, operator.complete(Point({})), "cuda", 1, batches=1).setup(variant)
    assert len(made) == len(variants) > 5
