"""Verifies, times and profiles a few cells in this process, for a test that listens to the NVTX ranges. On a CPU."""

from harness import interpreter

interpreter.choose("cpu")

from harness.config.load import Measure  # noqa: E402
from harness.config.sweep import Group  # noqa: E402
from harness.profiling.workload import Workload  # noqa: E402
from harness.records.profile import PHASES  # noqa: E402
from harness.runner.evaluator import Evaluator  # noqa: E402
from harness.runner.protocol import Job, Task  # noqa: E402

OPERATOR, HEALTHY = "decode_native", "chain"
BREAKING = ("breaks_when_timed", "breaks_at_once")
VALUES = {"batch_size": 2, "next_n": 4, "context_len": 64}
#: More than what breaks when it is timed survives in a profile.
CALLS = 8


def main() -> None:
    measure = Measure(seed=0, min_rounds=3, max_rounds=3)
    evaluator = Evaluator(Job("cpu", ("tests/breaking_variants.py",), 0, measure, timed=True))
    evaluator.bring_up()
    evaluator.ready()
    operator = evaluator.catalog.operators[OPERATOR]
    point = operator.complete(VALUES)
    for event in evaluator.group(Task(OPERATOR, dict(point), (HEALTHY, *BREAKING), budget_s=0.1)):
        if hasattr(event, "status"):
            print(event.variant, event.status, event.reason)
    variants = tuple(evaluator.catalog.find(OPERATOR, name) for name in (HEALTHY, *BREAKING))
    workload = Workload([Group(operator, point, variants)], "cpu", 0, PHASES)
    workload.run(CALLS)
    for key, reason in workload.failed.items():
        print("profile:", key, reason)


if __name__ == "__main__":
    main()
