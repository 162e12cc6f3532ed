"""How the plugin gets into an engine: the entry point, the version by its signatures, hooks, and what is refused."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from spec_decode_bench.engine_plugin import hooks, installation, register, signatures
from spec_decode_bench.engine_plugin.installation import ADAPTERS, adapter_of, check_stack
from spec_decode_bench.harness.config.load import ConfigError, load
from spec_decode_bench.harness.errors import UsageError
from tests.engine_plugin.fakes import write_package
from tests.processes import run_python

ROOT = Path(__file__).parents[2]


def test_the_entry_point_is_of_the_group_that_vllm_calls():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {
        "spec_decode_bench": "spec_decode_bench.engine_plugin:register"
    }


def test_without_a_plan_it_imports_nothing_and_does_nothing():
    script = (
        "import sys, spec_decode_bench.engine_plugin as plugin\n"
        "before = set(sys.modules)\n"
        "plugin.register()\n"
        "print(sorted(set(sys.modules) - before), 'torch' in sys.modules, len(sys.meta_path))\n"
        "print(len([name for name in sys.modules if name.startswith('spec_decode_bench')]))\n"
    )
    done = run_python(script)
    assert done.stdout.splitlines()[0].startswith("[] False ")
    assert int(done.stdout.splitlines()[1]) <= 3


@pytest.mark.parametrize("version", ADAPTERS)
def test_an_adapter_is_found_by_what_the_functions_look_like(version, tmp_path):
    assert adapter_of("1.2.3", write_package(tmp_path, version)) is ADAPTERS[version]()


@pytest.mark.parametrize("version", ADAPTERS)
def test_its_signatures_are_of_all_that_it_uses(version):
    adapter, known = ADAPTERS[version](), signatures.known(version)
    assert list(known) == list(adapter.USED)
    assert all(known.values())


@pytest.mark.parametrize("version", ADAPTERS)
def test_an_engine_with_other_functions_is_refused_in_a_sentence(version, tmp_path):
    folder = write_package(tmp_path, version)
    path = folder / "v1/worker/gpu/model_runner.py"
    text = path.read_text()
    assert "def prepare_attn(self, input_batch)" in text
    path.write_text(text.replace("def prepare_attn(self, input_batch)", "def prepare_attn(self, input_batch, more)"))
    place = "v1/worker/gpu/model_runner.py::GPUModelRunner.prepare_attn"
    with pytest.raises(UsageError) as refused:
        adapter_of(version, folder)
    assert str(refused.value).startswith(f"vLLM {version} is not 0.22.1 or 0.33.0: ")
    assert str(refused.value).endswith(f"{place} is (self, input_batch, more) and not (self, input_batch)")


def test_an_engine_without_a_function_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"vLLM 9\.9 is not .*: .* is missing$"):
        adapter_of("9.9", tmp_path)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"mode": "check"}, "mode check needs a variant"),
        (
            {"mode": "check", "stack": {"step_prolog": "x"}},
            "nothing of vLLM is replaced by 'step_prolog'; did you mean",
        ),
        ({"mode": "apply", "stack": {"decode_step": "x", "decode_flatten": "x"}}, "decode_step holds decode_flatten"),
    ],
)
def test_a_stack_that_cannot_be_applied_is_refused(plan, said, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps({"name": "p", "engine_plugin": {"out": "x", **plan}}))
    with pytest.raises(ConfigError, match=said):
        check_stack(load(path), ADAPTERS["0.22.1"]())


def test_a_plan_that_is_none_leaves_the_engine_alone(tmp_path, capfd, monkeypatch):
    before = list(sys.meta_path)
    monkeypatch.setenv("SPEC_DECODE_BENCH", str(tmp_path / "missing.yaml"))
    register()
    said = capfd.readouterr().err
    assert said.endswith("the engine runs without the plugin\n")
    assert said.count("\n") == 1
    assert sys.meta_path == before


def test_whatever_goes_wrong_is_a_sentence(tmp_path, capfd, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation.importlib.metadata, "version", missing)
    path = tmp_path / "plan.yaml"
    path.write_text("name: p\nengine_plugin: {mode: capture, out: x}\n")
    installation.install(str(path))
    said = capfd.readouterr().err
    assert "PackageNotFoundError" in said
    assert said.endswith("the engine runs without the plugin\n")


def test_a_sweep_is_no_plan(capfd):
    installation.install(str(ROOT / "configs/mtp3.yaml"))
    assert "a plan for an engine has the section engine_plugin; the engine runs" in capfd.readouterr().err


def test_the_command_line_says_where_a_plan_runs(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("name: p\nengine_plugin: {mode: capture, out: x}\n")
    command = [sys.executable, ROOT / "bench.py", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"runs inside an engine: SPEC_DECODE_BENCH={path} vllm serve MODEL" in done.stderr


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that is not imported yet."""
    (tmp_path / "hooked_engine.py").write_text(
        "class Runner:\n    def run(self, x):\n        'What it does.'\n        return x\ndef free(x):\n    return x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooked_engine"
    sys.modules.pop("hooked_engine", None)


def twice(original):
    return lambda *given: 2 * original(*given)


@pytest.mark.parametrize("imported", [False, True])
def test_functions_are_replaced_now_or_when_their_module_is_imported(module, imported, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    if imported:
        __import__(module)
    hooks.install({f"{module}:Runner.run": twice, f"{module}:free": twice})
    found = __import__(module)
    assert (found.Runner().run(3), found.free(4)) == (6, 8)
    assert (found.Runner.run.__name__, found.Runner.run.__doc__) == ("run", "What it does.")
