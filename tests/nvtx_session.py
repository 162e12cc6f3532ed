"""Verifies, times and profiles a few cells in this process, for a test that listens to the NVTX ranges. On a CPU."""

from spec_decode_bench.harness import interpreter

interpreter.choose("cpu")

import torch  # noqa: E402

from spec_decode_bench.harness.config.load import Measure  # noqa: E402
from spec_decode_bench.harness.records.sentences import ending  # noqa: E402
from spec_decode_bench.harness.session.evaluator import Evaluator  # noqa: E402
from spec_decode_bench.harness.session.messages import Job  # noqa: E402
from spec_decode_bench.profiler.records import PHASES  # noqa: E402
from spec_decode_bench.profiler.workload import Workload  # noqa: E402
from tests import factory  # noqa: E402
from tests.in_process import measured  # noqa: E402

OPERATOR, HEALTHY = "decode_native", "chain"
BREAKING = ("breaks_when_timed", "breaks_at_once")
VALUES = {"batch_size": 2, "next_n": 4, "context_len": 64}
#: More than what breaks when it is timed survives in a profile.
CALLS = 8


def main() -> None:
    torch.set_num_threads(1)  # as in a worker: idle ones spin, which counts as work of another thread
    measure = Measure(seed=0, min_rounds=3, max_rounds=3)
    evaluator = Evaluator(Job("cpu", ("tests/breaking_variants.py",), 0, measure, timed=True))
    evaluator.bring_up()
    evaluator.ready()
    operator = evaluator.catalog.operators[OPERATOR]
    item = factory.item(operator, VALUES, (HEALTHY, *BREAKING), budget_s=0.1)
    for cell in measured(evaluator, item).values():
        print(cell.variant, cell.status, ending(cell))
    workload = Workload([item], evaluator.catalog, "cpu", 0, PHASES)
    workload.run(CALLS)
    for key, reason in workload.failed.items():
        print("profile:", key, reason)


if __name__ == "__main__":
    main()
