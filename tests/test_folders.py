"""The folders of code are one list, PACKAGES; who hashes, ships or watches folders knows all of them."""

import shutil
from pathlib import Path

import pytest
import yaml

from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.import_by_content import IN_WORKERS, OPERATORS, PACKAGES
from spec_decode_bench.harness.session import sources
from spec_decode_bench.regression.changed_cells import changed_cells

ROOT = Path(__file__).parents[1]
OPERATOR = "decode_flatten"
#: Folder -> a file of it, with what cells of OPERATOR depend on where they depend on the folder.
FILES = {
    "baselines": f"{OPERATOR}/chains.py",
    "kernels": f"{OPERATOR}/triton.py",
    "upstream": "vllm.py",
    "harness": "timing/rounds.py",
    "decode_loop": "loop.py",
    "engine_plugin": "session.py",
    "cli": "run.py",
    "plots": "latency.py",
    "profiler": "profile.py",
    "regression": "gate.py",
}


def test_the_list_has_all_of_them():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools"}
    assert folders == set(PACKAGES) == set(FILES)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the code."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in PACKAGES:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


#: The folders that plan, report and draw, at once.
GROUPS = [
    *([folder] for folder in (*OPERATORS, *IN_WORKERS)),
    [folder for folder in PACKAGES if folder not in (*OPERATORS, *IN_WORKERS)],
]


@pytest.mark.parametrize("folders", GROUPS, ids=lambda folders: folders[0])
def test_an_edit_is_noticed_where_it_can_change_a_time(folders, tree, catalog, monkeypatch):
    """By --resume and by gate."""
    monkeypatch.setattr(sources, "ROOT", tree)
    operator = catalog.operators[OPERATOR]
    item = task_of(operator, operator.complete({}), [v for v in catalog.of(OPERATOR) if v.defect is None])
    keys = [item.key(name) for name in item.variants]
    before = sources.source_hashes([item], catalog, ())
    contents = {path: path.read_bytes() for path in (tree / folder / FILES[folder] for folder in folders)}
    try:
        for path, content in contents.items():
            path.write_bytes(content + b"\n# edited\n")
        after, changed = sources.source_hashes([item], catalog, ()), changed_cells(keys, ROOT, tree)
    finally:
        for path, content in contents.items():
            path.write_bytes(content)
    affects = folders[0] in (*OPERATORS, *IN_WORKERS)
    assert (before != after, bool(changed)) == (affects, affects)
    assert (changed == keys) == (folders[0] in IN_WORKERS)


def test_a_pull_request_that_can_change_a_time_is_gated():
    workflow = yaml.safe_load((ROOT / ".github/workflows/gate.yml").read_text(encoding="utf-8"))
    code = {f"{folder}/**" for folder in (*OPERATORS, *IN_WORKERS, "configs")}
    assert set(workflow[True]["pull_request"]["paths"]) == {*code, "bench.py", "requirements.txt"}  # "on" of YAML 1.1
