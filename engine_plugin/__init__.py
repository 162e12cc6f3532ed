"""What do the suite's kernels change in a real server? A plugin of vLLM that captures, applies, checks and measures.

``SPEC_DECODE_BENCH=plan.yaml vllm serve ...``: vLLM calls ``register`` in each of its processes (entry point group
``vllm.general_plugins``), with nothing to change in the engine. ``installation.py`` reads the plan and compares the
functions of the vLLM at hand with those that an adapter was written for (``signatures.py``); then ``hooks.py``
replaces them when the engine imports their modules. The adapters, one for each known version (``vllm_0_22_1.py``,
``vllm_0_33_0.py``), say which function is which operator and where its inputs lie; ``prologue.py`` and ``indexer.py``
run variants in place of the functions, ``arguments.py`` reads inputs to capture.

In the process that runs the model, ``session.py`` follows the steps: it captures every Nth one, compares results with
the engine's own, or switches between arms in blocks of steps. ``records.py`` has the lines that it writes,
``analysis.py`` compares the arms; ``tables.py`` and ``plots/`` show it.
"""

import os


def register() -> None:
    """What vLLM calls. Without SPEC_DECODE_BENCH in the environment this is all that runs."""
    if plan := os.environ.get("SPEC_DECODE_BENCH"):
        from spec_decode_bench.engine_plugin.installation import install

        install(plan)
