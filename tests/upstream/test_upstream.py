"""What upstream/ does without the packages that it wraps: finds files, takes kernels out of them, tells versions apart.

The packages here are made up, and hold nothing of the real ones.
"""

import base64
import hashlib
import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch

from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.baselines.k_quant_gather.operator import operator as gather
from spec_decode_bench.baselines.mla_tile_schedule.operator import operator as tiles
from spec_decode_bench.baselines.paged_mqa_schedule.operator import Inputs
from spec_decode_bench.baselines.paged_mqa_schedule.operator import operator as paged
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.contract import GPU
from spec_decode_bench.harness.discover import Catalog, discover, unavailable
from spec_decode_bench.harness.packages import (
    changed,
    checkouts,
    file_in,
    files_of,
    in_words,
    is_there,
    required,
    versions,
)
from spec_decode_bench.harness.records.schema import Checkout
from spec_decode_bench.harness.session.sources import source_hashes
from spec_decode_bench.upstream import deep_gemm, flash_mla, sglang
from spec_decode_bench.upstream._kernel_source import triton_kernel
from tests.regression.test_gate import commit, git

KERNELS = """
import nothing_that_is_installed

class Kernel(nothing_that_is_installed.Base):
    SIZE = 4

    @staticmethod
    @triton.jit
    def kernel(source, target, count, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + i, tl.load(source + i, mask=i < count) + 1, mask=i < count)


@triton.jit(do_not_specialize=["count"])
def plain(target, count, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(target + i, i, mask=i < count)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder ``engine`` without an __init__.py, as a few files of a wheel are."""
    folder = tmp_path / "engine"
    (folder / "library").mkdir(parents=True)
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "library" / "__init__.py").write_text("raise RuntimeError\n__version__ = '2.5.0'\n")
    (tmp_path / "engine-0.33.0.dist-info").mkdir()
    (tmp_path / "engine-0.33.0.dist-info" / "METADATA").write_text("Name: engine\nVersion: 0.33.0\n")
    (tmp_path / "engine-0.33.0.dist-info" / "RECORD").write_text("engine/kernels.py,,\nengine/library/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_files_are_found_and_nothing_is_imported(package, monkeypatch):
    assert file_in("engine", "kernels.py") == package / "kernels.py"
    assert file_in("engine", "missing.py") is None
    assert file_in("no_such_engine", "kernels.py") is None
    assert is_there("no_such_engine|engine:library/__init__.py")
    assert is_there("engine:kernels.py#def plain")
    assert not is_there("engine:kernels.py#def fancy")
    assert is_there("engine:kernels.py::plain,Kernel.kernel#count")
    assert not is_there("engine:kernels.py::plain,Kernel.fancy")
    assert not is_there("engine:kernels.py::plain#fancy")
    assert not is_there("no_such_engine.inner")
    need = "deep_gemm|engine:kernels.py#fancy"
    assert in_words(need) == "the Python module deep_gemm or the file engine/kernels.py with fancy"
    assert versions(["engine:kernels.py", "absent|engine:library/__init__.py"]) == {
        "engine": "0.33.0",
        "engine/library": "2.5.0",
    }
    unpacked = package.parent / "engine-0.22.1.dist-info"  # over the files of another release
    unpacked.mkdir()
    (unpacked / "METADATA").write_text("Name: engine\nVersion: 0.22.1\n")
    assert versions(["engine:kernels.py"]) == {"engine": "0.22.1 and 0.33.0"}
    shutil.rmtree(unpacked)
    fork = (package.parent / "engine-0.33.0.dist-info").rename(package.parent / "fork-0.33.1.dist-info")
    (fork / "METADATA").write_text("Name: fork\nVersion: 0.33.1\n")
    (fork / "top_level.txt").write_text("engine\n")
    assert versions(["engine:kernels.py"]) == {"fork": "0.33.1"}
    second = package.parent / "second"
    (second / "engine").mkdir(parents=True)
    (second / "engine" / "more.py").touch()
    (second / "fork-0.34.0.dist-info").mkdir()
    (second / "fork-0.34.0.dist-info" / "METADATA").write_text("Name: fork\nVersion: 0.34.0\n")
    (second / "fork-0.34.0.dist-info" / "top_level.txt").write_text("engine\n")
    monkeypatch.syspath_prepend(second)
    assert versions(["engine:kernels.py", "engine:more.py"]) == {"fork": "0.33.1 and 0.34.0"}
    (second / "fork-0.34.0.dist-info" / "METADATA").unlink()  # as an interrupted removal leaves it
    assert versions(["engine:more.py"]) == {"engine": "unknown"}
    elsewhere = package.parent / "elsewhere" / "engine-0.35.0.dist-info"
    elsewhere.mkdir(parents=True)
    (elsewhere / "METADATA").write_text("Name: engine\nVersion: 0.35.0\n")
    monkeypatch.syspath_prepend(elsewhere.parent)
    assert versions(["engine:more.py"]) == {"engine": "unknown"}
    (elsewhere / "direct_url.json").write_text('{"url":"file:///engine","dir_info":{"editable":true}}')
    assert versions(["engine:more.py"]) == {"engine": "0.35.0"}
    assert "engine" not in sys.modules


PLAIN, KERNEL, FILE = (f"engine:kernels.py{what}" for what in ("::plain,Kernel.SIZE", "::Kernel.kernel", "#plain"))


@pytest.mark.parametrize(
    ("edit", "reached"),
    [
        (("i, i, mask", "i, i + 1, mask"), {PLAIN, FILE}),
        (("SIZE = 4", "SIZE = 8"), {PLAIN, FILE}),
        (("mask=i < count) + 1", "mask=i < count) + 2"), {KERNEL, FILE}),
        (("def plain", "# A comment.\ndef plain"), {FILE}),
        ((KERNELS, "def plain("), {PLAIN, KERNEL, FILE}),
    ],
)
def test_a_change_reaches_the_variants_that_use_what_it_changed(edit, reached, package):
    base, head = package / "kernels.py", package / "head.py"
    head.write_text(KERNELS.replace(*edit))
    assert {need for need in (PLAIN, KERNEL, FILE) if changed(need, "engine:kernels.py", base, head)} == reached
    assert not changed("engine:other.py", "engine:kernels.py", base, head)
    assert changed(PLAIN, "engine:kernels.py", base, package / "missing.py")


def test_the_files_that_variants_require_are_sources(package):
    (package / "library" / "inner.cuh").touch()
    (package / "library" / "__pycache__").mkdir()
    (package / "library" / "__pycache__" / "__init__.pyc").touch()
    needs = ["engine:kernels.py#def plain|engine:missing.py", "absent|engine:library/__init__.py"]
    folder = {"engine:library/__init__.py", "engine:library/inner.cuh"}
    assert files_of(needs).keys() == folder | {"engine:kernels.py"}
    assert files_of(needs)["engine:kernels.py"] == package / "kernels.py"
    assert files_of(["engine"]).keys() == folder | {"engine:kernels.py"}
    for name in folder:
        assert not required(needs[0], name)
        assert required(needs[1], name)
    catalog = Catalog(operators=discover().operators)
    catalog.variants = [replace(discover().of("decode_native")[0], requires=(GPU, needs[0]))]
    item = task_of(native, native.complete({}), catalog.variants)
    before = source_hashes([item], catalog, ())
    (package / "kernels.py").write_text("def plain(): pass")
    after = source_hashes([item], catalog, ())
    assert {name for name in before | after if before.get(name) != after.get(name)} == {"engine:kernels.py"}


@pytest.mark.parametrize("large", [False, True])
def test_an_edited_file_of_a_release_is_told_apart(large, package, monkeypatch):
    """A large one by its size."""
    kernels, needs = package / "kernels.py", ("engine:kernels.py",)
    content = kernels.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = package.parent / "engine-0.33.0.dist-info" / "RECORD"
    record.write_text(f"engine/kernels.py,sha256={digest},{len(content)}\nengine-0.33.0.dist-info/METADATA,,\n")
    if large:
        monkeypatch.setattr("spec_decode_bench.harness.packages.LARGE_BYTES", 1)
    assert checkouts(needs) == {}
    kernels.write_bytes(content + b"# edited\n")
    edited = checkouts(needs)["engine"]
    assert (edited.commit, edited.files is None) == (None, False)
    kernels.write_bytes(content.replace(b"+ 1", b"+ 2"))
    assert (checkouts(needs) == {}) == large


def test_a_checkout_is_told_from_a_release(package, monkeypatch):
    needs = ["engine:kernels.py"]
    assert checkouts(needs) == {}
    (package.parent / "engine-0.33.0.dist-info" / "RECORD").unlink()  # what no RECORD lists may be anything
    assert checkouts(needs)["engine"].files is not None
    shutil.rmtree(package.parent / "engine-0.33.0.dist-info")
    unpacked = checkouts(needs)["engine"]
    assert unpacked.commit is None
    (package / "kernels.py").write_text("changed")
    assert checkouts(needs)["engine"].files not in (None, unpacked.files)

    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00+00:00")
    git(package.parent.parent, "init", "-q", package.parent)
    (package.parent / ".gitignore").write_text("engine/\n")
    commit(package.parent)  # an environment inside of another repository, which does not track it
    assert checkouts(needs)["engine"].commit is None
    git(package.parent, "add", "-f", "engine/kernels.py")
    revision = commit(package.parent)
    checkout = checkouts(needs)["engine"]
    assert checkout == Checkout(revision, "2001-01-01T00:00:00+00:00")
    assert str(checkout) == revision[:7]
    (package / "kernels.py").write_text("changed again")
    assert str(checkouts(needs)["engine"]).startswith(f"{revision[:7]}+")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is chosen where there is no GPU")
def test_a_kernel_runs_without_the_module_around_it(package):
    source, target = torch.arange(10, dtype=torch.int32), torch.zeros(10, dtype=torch.int32)
    triton_kernel(package / "kernels.py", ("absent", "Kernel.kernel"))[(3,)](source, target, 10, BLOCK=4)
    assert target.tolist() == list(range(1, 11))
    triton_kernel(package / "kernels.py", ("plain",))[(1,)](target, 10, BLOCK=16)
    assert target.tolist() == list(range(10))
    with pytest.raises(LookupError, match=r"kernels\.py defines none of absent"):
        triton_kernel(package / "kernels.py", ("absent",))


def deep_gemm_of(remainder, tokens_of_an_atom):
    """A release with this convention, as its rows would be."""

    def schedule(lens, next_n, num_sms):
        atoms = -(-next_n // tokens_of_an_atom)
        changed = {"num_sms": num_sms, "remainder": remainder, "atoms": atoms, "next_n": next_n}
        point = paged.complete({"batch_size": len(lens), **changed})
        lens = torch.tensor(lens, dtype=torch.int32)[:, None].expand(-1, next_n)
        return paged.reference(point, Inputs(lens))["schedule"].value.tolist()

    return schedule


@pytest.mark.parametrize("remainder", ["front", "back"])
@pytest.mark.parametrize("tokens_of_an_atom", [1, 2])
def test_the_convention_of_a_deep_gemm_is_read_off_its_output(remainder, tokens_of_an_atom, monkeypatch):
    monkeypatch.setattr(deep_gemm, "_schedule", deep_gemm_of(remainder, tokens_of_an_atom))
    for cached in (deep_gemm.remainder, deep_gemm.atoms_of):
        cached.cache_clear()
    point = {"batch_size": 8, "next_n": 4, "remainder": remainder, "atoms": 4 // tokens_of_an_atom}
    assert deep_gemm._skip(paged.complete(point)) is None
    other = "back" if remainder == "front" else "front"
    assert "gives the unit more" in deep_gemm._skip(paged.complete(point | {"remainder": other}))
    assert "atoms of 4 query tokens" in deep_gemm._skip(paged.complete(point | {"atoms": 3}))
    for cached in (deep_gemm.remainder, deep_gemm.atoms_of):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("row", "convention"),
    [([0, 0, 0, 128, 0, 7, 7, 7], "tokens"), ([0, 0, 0, 2, 0, 7, 7, 7], "blocks"), ([0, 0, 1, 2, 1, 0, 0, 0], "new")],
)
def test_the_layout_of_a_flash_mla_is_read_off_its_output(row, convention, monkeypatch):
    real = torch.tensor
    monkeypatch.setattr(flash_mla.torch, "tensor", lambda *a, device=None, **k: real(*a, **k))
    rows = torch.tensor([row, [1, 5, 5, 5, 5, 5, 5, 5]], dtype=torch.int32)
    assert flash_mla.convention(lambda *_: (rows, rows[0])) == convention
    assert flash_mla.convention(lambda *_: (object(), None)) == "inside"


def test_the_kernels_of_sglang_are_cut_out_of_their_file():
    """Without the includes before them and the launcher behind them, which take TVM's headers."""
    text = f"#include <tvm/ffi.h>\n{sglang.FIRST}\n__global__ void kernel() {{}}\n{sglang.LAUNCHER} {{\n}};\n}}\n"
    code = sglang.device_code(text, sglang.LAUNCHER, "// before\n")
    assert code == "// before\nnamespace sglang {\n__global__ void kernel() {}\n}\n"
    with pytest.raises(LookupError, match="this version of SGLang is not supported"):
        sglang.device_code(text, "class", "")


@pytest.mark.skipif(file_in("sglang", sglang.TILES) is None, reason="needs SGLang's files (docs/upstream.md)")
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_sglangs_tile_schedule_compiles_and_takes_these_parameters(arch):
    path = file_in("sglang", sglang.TILES)
    code = sglang.compiled(path, arch, sglang.TILES_LAUNCHER, sglang.TILES_INCLUDES, sglang.TILES_KERNEL)
    assert sglang.TILES_KERNEL in code.symbol_mapping
    names = [name for name, _ in sglang.TileParameters._fields_]
    declared = re.search(r"struct Params \{(.*?)\};", path.read_text(), re.DOTALL)[1]
    assert re.findall(r"(\w+);", declared) == names


def test_sglangs_tile_schedule_is_bounded_by_shared_memory():
    assert "new layout" in sglang._skip_tiles(tiles.complete({"layout": "old"}))
    largest = {"batch_size": 2431, "max_num_seqs": 4095, "num_sm_parts": 16}
    assert sglang._skip_tiles(tiles.complete(largest)) is None
    assert "48 KiB" in sglang._skip_tiles(tiles.complete(largest | {"batch_size": 2432}))


def test_sglangs_grid_covers_the_longest_request():
    """A chunk of equal requests needs ceil(N / B) tokens; of a ragged one only a bound is known."""
    uniform = gather.complete({"batch_size": 3, "chunk_tokens": 32768, "seq_lens": "uniform"})
    ragged = gather.complete({"batch_size": 3, "chunk_tokens": 32768})
    assert sglang._longest(uniform) == 10923
    assert sglang._skip_gather(uniform) is None
    assert "only a bound" in sglang._skip_gather(ragged)
    assert sglang._skip_gather(gather.complete({"batch_size": 3, "chunk_tokens": 1024})) is None


def test_all_of_them_are_listed_with_what_they_need():
    found = {v.id: v for v in discover().variants if v.folder == "upstream"}
    assert len(found) >= 6
    assert not discover().broken
    for one in found.values():
        assert (unavailable(one, "cpu") is None) == all(need != GPU and is_there(need) for need in one.requires)
        assert one.doc
    assert "paged_mqa_schedule/deep_gemm" in found
    assert {native.name, tiles.name} & {one.operator for one in found.values()}
