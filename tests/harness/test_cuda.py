"""Cubins come from the cache on disk exactly where compiling would give the same one."""

import os
from contextlib import nullcontext

import pytest

from spec_decode_bench.harness import cuda

KERNEL = 'extern "C" __global__ void fill(int *out) { out[threadIdx.x] = VALUE; }\n'


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """compile(source) -> how many sources NVRTC was given for it, in a process that has compiled nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(cuda.CACHE_SWITCH, raising=False)
    compilations = []

    class Program(cuda.Program):
        def compile(self, *arguments, **more):
            compilations.append(arguments)
            return super().compile(*arguments, **more)

    monkeypatch.setattr(cuda, "Program", Program)

    def one(source, arch="sm_80"):
        cuda.compile_source.cache_clear()
        cuda._disk_cache.cache_clear()
        before = len(compilations)
        one.code = cuda.compile_source(source, arch)
        return len(compilations) - before

    yield one
    cuda.compile_source.cache_clear()
    cuda._disk_cache.cache_clear()


@pytest.fixture
def source(tmp_path):
    """A source that includes a header of another folder, which includes one beside it."""
    for name, text in {
        "mine/fill.cu": f'#include "other/first.cuh"\n{KERNEL}',
        "other/first.cuh": '#pragma once\n  #  include "second.cuh"\n',
        "other/second.cuh": "#define VALUE 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "mine" / "fill.cu"


def test_a_cubin_is_compiled_once_for_each_architecture(compiled, source):
    assert [compiled(source), compiled(source), compiled(source, "sm_90"), compiled(source, "sm_90")] == [1, 0, 1, 0]
    cached = bytes(compiled.code.code)
    assert cached.startswith(b"\x7fELF")
    os.environ[cuda.CACHE_SWITCH] = "off"  # the fixture's monkeypatch restores it
    assert compiled(source, "sm_90") == 1
    assert bytes(compiled.code.code) == cached


@pytest.mark.parametrize("name", ["mine/fill.cu", "other/first.cuh", "other/second.cuh", None])
def test_a_change_of_the_source_of_any_header_or_of_the_compiler_compiles_again(
    name, compiled, source, tmp_path, monkeypatch
):
    assert compiled(source) == 1
    if name:
        (tmp_path / name).write_text((tmp_path / name).read_text() + "// changed\n")
    else:
        monkeypatch.setattr(cuda, "_compiler_version", lambda: "another one")
    assert [compiled(source), compiled(source)] == [1, 0]


@pytest.mark.parametrize("why", ["a header named by the preprocessor", "no folder", "an error"])
def test_what_cannot_be_cached_is_compiled_each_time(why, compiled, source, tmp_path):
    if why == "no folder":
        (tmp_path / "cache").write_text("a file where the folder should be")
    else:
        named = f'#define HEADER "other/first.cuh"\n#include HEADER\n{KERNEL}'
        source.write_text("nonsense\n" if why == "an error" else named)
    for _ in range(2):
        with pytest.raises(cuda.CompileError, match="nonsense") if why == "an error" else nullcontext():
            assert compiled(source) == 1


def test_all_sources_for_all_architectures(compiled, source, tmp_path):
    (tmp_path / "mine" / "bad.cu").write_text("nonsense\n")
    results = cuda.compile_all([source, tmp_path / "mine" / "bad.cu", source])
    assert list(results) == [str(source), str(tmp_path / "mine" / "bad.cu")]
    assert results[str(source)] == dict.fromkeys(cuda.ARCHITECTURES, "ok")
    assert all("nonsense" in result for result in results[str(tmp_path / "mine" / "bad.cu")].values())
