"""Edge cases of an operator, verified over one variant of an engine."""

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.buffers import POISONS
from spec_decode_bench.harness.verify.fixture import Fixture
from tests.runnable import DEVICE


def check(variant, cases=None, **changes):
    """Each edge case that the variant takes, with these axes changed: poisoned, again, on other inputs. Returns how
    many these are.
    """
    operator, taken = discover().operators[variant.operator], 0
    for case in operator.edge_cases if cases is None else cases:
        point = operator.complete(case.point | changes)
        if variant.skip(point) or variant.known_failure_at(case.name):
            continue
        fixture, taken = Fixture(operator, point, DEVICE, 0, edit=case.edit), taken + 1
        launch = fixture.setup(variant)
        for batch, poison in ((0, POISONS[0]), (0, None), (1, POISONS[1])):
            fixture.check(launch, batch, poison)
    return taken
