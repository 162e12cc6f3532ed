"""Variants of decode_native that are right at first and break later, for tests of what a broken one leaves behind."""

from spec_decode_bench.baselines.decode_native.chains import chain
from spec_decode_bench.harness.contract import variant

#: Launches of one set-up that work: more than verification needs, fewer than timing takes.
WORKING = 9


@variant("decode_native", skip=chain.__variant__.skip, waives="no_alloc")
def breaks_when_timed(point, x, out):
    right, calls = chain(point, x, out), []

    def launch():
        calls.append(None)
        if len(calls) > WORKING:
            raise RuntimeError("broken by now")
        return right()

    return launch


@variant("decode_native", skip=chain.__variant__.skip, waives="no_alloc")
def breaks_at_once(point, x, out):
    def launch():
        raise RuntimeError("broken from the start")

    return launch
