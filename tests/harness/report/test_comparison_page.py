"""The page of a comparison: it works offline, and a browser sorts and filters its tables."""

import re
import shutil
import subprocess

import pytest

from harness.analysis.compare import compare, compare_variants
from harness.report.comparison_page import comparison_html
from plots.regression import draw
from tests import factory
from tests.sides import side

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
NEEDS_BROWSER = pytest.mark.skipif(BROWSER is None, reason="needs a headless Chromium in the PATH")


def sweep(first: int, scale: float = 1.0):
    return side(lambda seed: factory.sweep_run(scale=scale, seed=seed, batch_sizes=(1, 8)), 3, first)


@pytest.fixture(scope="module")
def comparison():
    return compare(sweep(0), sweep(10, 1.1))


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    _, svg = draw(comparison, tmp_path_factory.mktemp("plot") / "regression")
    return comparison_html(comparison, svg.read_text(encoding="utf-8"))


def test_the_page_needs_nothing_else(page):
    assert not re.search(r"""\b(?:src|href)\s*=\s*["'](?!#)""", page)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|\bimport\s*\(", page)
    assert "default-src 'none'" in page
    assert page.count("<svg") > 40


def test_the_page_says_all_that_the_comparison_holds(page, comparison):
    for cell in comparison.cells:
        assert f'data-verdict="{cell.verdict}" data-figure="{cell.figure}"' in page
    assert page.count("<tr data-verdict") == len(comparison.cells)
    for words in (
        "Calibration kernels",
        "block_copy",
        "NVIDIA H200",
        "0123abc",
        "Regression",
        "python bench.py compare",
    ):
        assert words in page


def test_names_of_a_record_are_text(tmp_path):
    hostile = "<script>alert(1)</script>\"'>&amp;"
    cells = lambda seed: [  # noqa: E731
        factory.cell("decode_native", hostile, {"batch_size": n}, gpu=5.0 + seed / 1000) for n in (1, 2)
    ]
    sides = [side(lambda seed: factory.run(factory.gpu_environment(), cells(seed)), 3, first) for first in (0, 5)]
    text = comparison_html(compare(*sides))
    assert "<script>alert" not in text
    assert text.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def dom(page: str, script: str, path, *flags: str) -> str:
    """The document after the page's scripts and ``script`` have run in Chromium."""
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", *flags, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Uncaught" not in done.stderr, done.stderr
    assert "Refused to" not in done.stderr, done.stderr
    return done.stdout


def rows(document: str) -> list[tuple[str, bool]]:
    """(name, whether it is shown) of the rows of the table of cells, in order."""
    table = document[document.index('id="cells"') : document.index("</tbody>", document.index('id="cells"'))]
    found = re.findall(r"<tr ([^>]*)><td class=\"name\">(.*?)<div", table, re.DOTALL)
    return [(name.replace("<wbr>", ""), "hidden" not in given) for given, name in found]


@NEEDS_BROWSER
def test_a_browser_filters_and_sorts_the_cells(page, comparison, tmp_path):
    shown = [name for name, visible in rows(dom(page, "", tmp_path / "page.html")) if visible]
    assert len(shown) == len(comparison.gating_cells)
    script = """
      const search = document.querySelector("input[type=search]");
      search.value = "cuda_fused batch_size=8"; search.dispatchEvent(new Event("input", { bubbles: true }));
      const heads = [...document.querySelectorAll("#cells th button")];
      heads.find(head => head.textContent.startsWith("head")).click();
    """
    document = dom(page, script, tmp_path / "page.html")
    found = rows(document)
    shown = [name for name, visible in found if visible]
    assert shown
    assert all("cuda_fused" in name for name in shown)
    assert f"{len(shown)} of {len(comparison.gating_cells)}" in document
    times = [float(text) for text in re.findall(r'</td><td class="n">([\d.]+)</td><td class="n">[+-]', document)]
    assert len(times) == len(comparison.cells)
    assert times == sorted(times)


@NEEDS_BROWSER
def test_a_browser_hides_verdicts_that_are_not_wanted(page, comparison, tmp_path):
    script = """
      const box = document.querySelector("input[value=same]");
      box.checked = false; box.dispatchEvent(new Event("input", { bubbles: true }));
    """
    document = dom(page, script, tmp_path / "page.html")
    counts = comparison.counts("gpu_us")
    assert sum(visible for _, visible in rows(document)) == counts.total() - counts["same"]
    assert counts["same"]


@NEEDS_BROWSER
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_as_wide_as_its_window(page, tmp_path, width):
    """Only the frames around tables scroll sideways."""
    script = f"""
      document.documentElement.style.width = "{width}px";
      const all = [...document.querySelectorAll("body *")];
      const outside = all.filter(one => !one.parentElement.closest(".scroll, svg"));
      document.body.dataset.wide = outside.filter(one => one.getBoundingClientRect().right > {width}).length;
    """
    assert 'data-wide="0"' in dom(page, script, tmp_path / "page.html", f"--window-size={max(width, 500)},800")


def test_two_variants_have_their_page():
    text = comparison_html(compare_variants(sweep(0)[:1], "triton_fused", "cuda_fused"))
    assert "triton_fused against cuda_fused" in text
    assert "cuda_fused, µs" in text
