"""Puts the plugin into a process of vLLM, or says in a sentence why not."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from spec_decode_bench.engine_plugin import registration, signatures
from spec_decode_bench.engine_plugin.hooks import install as install_hooks
from spec_decode_bench.harness.config.load import LoadedConfig, load
from spec_decode_bench.harness.errors import UsageError, did_you_mean, first_line
from spec_decode_bench.harness.packages import file_in

#: Version of vLLM -> its adapter, loaded where it is called.
ADAPTERS: dict[str, Callable[[], ModuleType]] = {
    version: partial(import_module, f"{__package__}.vllm_{version.replace('.', '_')}")
    for version in ("0.22.1", "0.33.0")
}


def install(plan: str) -> None:
    """plan: path of the configuration. What is wrong with it, or with the engine, is said on stderr, and the engine
    goes on untouched.
    """
    from spec_decode_bench.engine_plugin.session import Session, say

    try:
        source = load(plan)
        if source.section is not registration.SECTION:
            raise source.error("", "a plan for an engine has the section engine_plugin")
        version = importlib.metadata.version("vllm")
        adapter = adapter_of(version, file_in("vllm", "__init__.py").parent)
        check_stack(source, adapter)
        install_hooks(adapter.hooks(Session(source, version)))
    except Exception as error:
        text = str(error) if isinstance(error, UsageError) else first_line(error)
        say(f"{text}; the engine runs without the plugin")


def adapter_of(version: str, folder: Path) -> ModuleType:
    """The adapter for the vLLM in a folder, by what its functions look like. Raises UsageError."""
    differences = {}
    for known, adapter in ADAPTERS.items():
        expected = signatures.known(known)
        found = signatures.read_signatures(list(expected), signatures.of_folder(folder))
        difference = signatures.difference(expected, found)
        if difference is None:
            return adapter()
        differences[known] = difference
    known = version if version in differences else list(differences)[-1]
    raise UsageError(f"vLLM {version} is not {' or '.join(differences)}: {differences[known]}")


def check_stack(source: LoadedConfig, adapter: ModuleType) -> None:
    """Whether the plan names what can be applied. Raises ConfigError."""
    plan, key = source.settings, "engine_plugin.stack"
    for operator in plan.stack:
        if operator not in adapter.OPERATORS:
            hint = did_you_mean(operator, list(adapter.OPERATORS))
            raise source.error(f"{key}.{operator}", f"nothing of vLLM is replaced by {operator!r}{hint}")
    if plan.mode != "capture" and not plan.stack:
        raise source.error(key, f"mode {plan.mode} needs a variant, such as step_prologue: triton_fused")
    if {"decode_step", "decode_flatten"} <= plan.stack.keys():
        raise source.error(key, "decode_step holds decode_flatten; name one of them")
