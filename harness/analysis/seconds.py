"""Where the seconds of a run went, from its record."""

from __future__ import annotations

from collections import Counter

from spec_decode_bench.harness.records.schema import Run

#: Activity -> what it is, in the order of a run.
ACTIVITIES = {
    "start": "from the command to the first cell: plan, processes, CUDA contexts, ramp of the clocks",
    "import": "operators and variants, in the process that times",
    "calibration": "of the timer",
    "CUPTI": "the second process: attaching CUPTI, and its calibration, while nothing else runs",
    "compile": "NVRTC and Triton",
    "verify": "edge cases, sequences, the point, and what timed launches wrote; torch.compile",
    "time": "samples, and set-up on other buffers",
    "audit": "with CUPTI",
}


def seconds_of(run: Run) -> dict[str, float]:
    """Activity -> seconds, of all processes and cells together; empty for a record that does not tell. The report is
    made when the record is complete, so it is not in it.
    """
    total: Counter[str] = Counter()
    for line in (run.header, *run.segments, *run.outcomes):
        total.update(line.seconds)
    return {name: total[name] for name in ACTIVITIES if name in total}
