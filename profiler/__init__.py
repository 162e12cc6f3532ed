"""Where does the time of a cell go, on host and device? Kernels, gaps, copies and API calls; times are no results.

``profile.py`` starts a tool (Nsight Systems, Nsight Compute, torch.profiler) around a process that runs the cells in
NVTX ranges (``workload.py``). A reader for each tool (``nsys.py``, ``chrome_trace.py``; ``ncu.py`` for counters) makes
a ``Trace`` of its report, ``attribution.py`` gives what happened to cells by the ranges, ``records.py`` is the file of
that, ``tables.py`` and ``plots/`` show it.

Begin with ``profile.py``: ``make_profile``.
"""

from spec_decode_bench.profiler import command

COMMANDS = (command,)
