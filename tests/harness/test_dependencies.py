"""Which files a file depends on, in a made-up checkout."""

from pathlib import Path

import pytest

from spec_decode_bench.harness.dependencies import dependencies

FILES = {
    "kernels/__init__.py": "",
    "kernels/load.cuh": "",
    "kernels/one/cuda.py": "from spec_decode_bench.kernels.two import shared\n"
    'SOURCE = __file__ + "one.cu"\nNAME = "one.cu"',
    "kernels/one/one.cu": '#include "one.cuh"\n',
    "kernels/one/one.cuh": '#include "load.cuh"\n#include "two/two.cuh"\n#include <cstdint>\n',
    "kernels/one/triton.py": "import triton\nfrom spec_decode_bench.baselines.one.operator import Inputs",
    "kernels/two/shared.py": "def late():\n    import spec_decode_bench.kernels.two.deep",
    "kernels/two/deep.py": "",
    "kernels/two/two.cuh": "",
    "kernels/two/other.py": "import spec_decode_bench.kernels.one.cuda",
    "kernels/two/broken.py": "def",
    "kernels/two/near.py": "from .deep import x\nfrom ..one import cuda",
    "kernels/two/data.py": 'TILES = open("tiles.json")',
    "kernels/two/tiles.json": "{}",
    "kernels/one/torch.py": "",
    "mine/mine.py": "import beside, torch\nfrom tuned import sizes\nimport spec_decode_bench.kernels.two.deep",
    "mine/beside.py": "",
    "tuned/sizes.py": "",
    "baselines/one/operator.py": "",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "packages", "also"),
    [
        (
            "kernels/one/cuda.py",
            ("kernels",),
            "__init__.py one/one.cu one/one.cuh load.cuh two/two.cuh two/shared.py two/deep.py",
        ),
        ("kernels/one/one.cuh", ("kernels",), "load.cuh two/two.cuh"),
        ("kernels/one/triton.py", ("kernels",), ""),
        (
            "kernels/two/near.py",
            ("kernels",),
            "__init__.py two/deep.py one/cuda.py one/one.cu one/one.cuh load.cuh two/two.cuh two/shared.py",
        ),
        ("kernels/two/data.py", ("kernels",), "two/tiles.json"),
        ("mine/mine.py", ("kernels",), "__init__.py two/deep.py ../mine/beside.py ../tuned/sizes.py"),
        ("kernels/two/broken.py", ("kernels",), ""),
        ("kernels/two/missing.py", ("kernels",), ""),
    ],
)
def test_imports_includes_and_sources_are_followed(file, packages, also, root):
    expected = {root / file, *((root / "kernels" / name).resolve() for name in also.split())}
    assert dependencies([Path(file)], root, packages) == expected


def test_only_these_packages_are_entered(root):
    file = Path("kernels/one/triton.py")
    assert root / "baselines/one/operator.py" in dependencies([file], root, ("baselines", "kernels"))
