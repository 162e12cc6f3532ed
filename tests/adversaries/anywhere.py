"""Broken and cheating variants that look right. On any device each must be rejected before a time is printed.

``honest`` does the same work without a trick and must pass.
"""

import gc
import itertools
import os
import queue
import sys
import threading
import time

import torch

from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.harness.contract import variant
from spec_decode_bench.harness.verify import equality, fixture, output_probe

#: Skips what the honest chain skips.
cheat = variant("decode_native", skip=chain_clamp.__variant__.skip, waives="no_alloc")

#: Calls for which stops_when_timed does its work: more than verification makes of one closure.
HONEST_CALLS = 40


def view(point, out):
    rows, width = point.batch_size, point.max_decode_len
    return out.buffer[: rows * width].view(rows, width)


def in_calls(work, chosen):
    """A launch that works only in the calls whose numbers are ``chosen``."""
    calls = itertools.count()

    def launch():
        if chosen(next(calls)):
            work()

    return launch


def followed(work, action):
    def launch():
        work()
        action()

    return launch


@cheat
def honest(point, x, out):
    return chain_clamp(point, x, out)


@cheat
def cached_by_version(point, x, out):
    """Works only when it sees that its inputs were written to: no work in all timed calls but the first."""
    work, seen = chain_clamp(point, x, out), []

    def launch():
        if seen != [x.seq_lens._version]:
            seen[:] = [x.seq_lens._version]
            work()

    return launch


@cheat
def cached_by_outputs(point, x, out):
    """Works only when something else has written to the outputs."""
    work, seen = chain_clamp(point, x, out), []

    def launch():
        if seen != [out.buffer._version]:
            work()
            seen[:] = [out.buffer._version]

    return launch


@cheat
def answer_of_setup(point, x, out):
    """Computes in set-up, copies in the launch."""
    chain_clamp(point, x, out)()
    answer = view(point, out).clone()

    def launch():
        view(point, out).copy_(answer)

    return launch


@cheat
def every_second_call(point, x, out):
    """Half the time for the same answer, unless the outputs are looked at between the calls."""
    return in_calls(chain_clamp(point, x, out), lambda call: call % 2 == 0)


@cheat
def every_third_call(point, x, out):
    return in_calls(chain_clamp(point, x, out), lambda call: call % 3 == 0)


@cheat
def stops_when_timed(point, x, out):
    """Works in the calls of verification, idles in the many calls of a stopwatch."""
    return in_calls(chain_clamp(point, x, out), lambda call: call < HONEST_CALLS)


@cheat
def remembers_its_answer(point, x, out):
    """After the calls of verification, copies the last answer: right while the inputs stay."""
    work, calls, answer = chain_clamp(point, x, out), itertools.count(), torch.empty_like(view(point, out))

    def launch():
        if next(calls) < HONEST_CALLS:
            work()
            answer.copy_(view(point, out))
        else:
            view(point, out).copy_(answer)

    return launch


@cheat
def knows_its_caller(point, x, out):
    """Idles when its caller is a file of harness/timing."""
    work = chain_clamp(point, x, out)

    def launch():
        if "harness/timing" not in sys._getframe(1).f_code.co_filename:
            work()

    return launch


@cheat
def works_after_a_pause_and_at_every_64th_call(point, x, out):
    """Idles in all others that follow one another without a pause."""
    work, last, turn = chain_clamp(point, x, out), [0.0], itertools.count()

    def launch():
        now = time.perf_counter()
        if now - last[0] > 5e-6 or next(turn) % 64 == 0:
            work()
            now = time.perf_counter()
        last[0] = now

    return launch


@cheat
def compares_inputs_and_outputs(point, x, out):
    """Works only when inputs or outputs hold other bytes than after its last work."""
    work, seen = chain_clamp(point, x, out), []

    def launch():
        if seen != (now := [x.seq_lens.numpy().tobytes(), out.buffer.numpy().tobytes()]):
            work()
            seen[:] = [now[0], out.buffer.numpy().tobytes()]

    return launch


@cheat
def compares_outputs(point, x, out):
    """Works only when its outputs hold other bytes than it left: wrong for new inputs over right outputs."""
    work, seen = chain_clamp(point, x, out), [None]

    def launch():
        if seen[0] != out.buffer.numpy().tobytes():
            work()
            seen[0] = out.buffer.numpy().tobytes()

    return launch


@cheat
def lazy_output(point, x, out):
    """Returns an object that computes when it is read."""

    class Lazy(dict):
        def __getitem__(self, name):
            chain_clamp(point, x, out)()
            return view(point, out)

        def __contains__(self, name):
            return True

    return Lazy


@cheat
def late_by_one_call(point, x, out):
    """Each call finishes the work of the call before it, with that call's inputs."""
    kept = [x.seq_lens.clone()]
    offsets = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=out.buffer.device)

    def launch():
        view(point, out).copy_((kept[0][:, None] + offsets).clamp_(min=0) // point.compress_ratio)
        kept[0] = x.seq_lens.clone()

    return launch


@cheat
def background_thread(point, x, out):
    """Another thread does the work; the timed call only wakes it."""
    work, requests = chain_clamp(point, x, out), queue.SimpleQueue()

    def serve():
        while True:
            requests.get()
            time.sleep(0.01)
            work()

    threading.Thread(target=serve, daemon=True).start()
    return lambda: requests.put(None)


@cheat
def returns_a_generator(point, x, out):
    """Returns a generator, which does the work when it is iterated over."""
    work = chain_clamp(point, x, out)

    def launch():
        yield work()

    return launch


@cheat
def output_aliases_input(point, x, out):
    """Returns its input as its output."""

    def launch():
        chain_clamp(point, x, out)()
        return {"context_lens": x.seq_lens[:, None].expand(point.batch_size, point.max_decode_len)}

    return launch


@cheat
def fresh_output(point, x, out):
    """Returns a new tensor each time, outside of the persistent buffer."""

    def launch():
        chain_clamp(point, x, out)()
        return {"context_lens": view(point, out).clone()}

    return launch


@cheat
def shortens_its_inputs(point, x, out):
    """Leaves itself less to do the next time."""
    return followed(chain_clamp(point, x, out), x.seq_lens.zero_)


@cheat
def writes_past_its_output(point, x, out):
    beyond = out.buffer.as_strided((1,), (1,), out.buffer.storage_offset() + out.buffer.numel())
    return followed(chain_clamp(point, x, out), beyond.zero_)


@cheat
def half_the_rows(point, x, out):
    """Right for the rows that a spot check would look at."""
    work = chain_clamp(point, x, out)

    def launch():
        before = out.buffer.clone()
        work()
        keep = point.batch_size * point.max_decode_len // 2
        out.buffer[keep:].copy_(before[keep:])

    return launch


@cheat
def patches_the_clock(point, x, out):
    """A clock that runs slowly."""
    honest_clock = time.perf_counter
    time.perf_counter = lambda: honest_clock() / 10
    return chain_clamp(point, x, out)


@cheat
def patches_the_clock_in_the_launch(point, x, out):
    return followed(chain_clamp(point, x, out), lambda: setattr(time, "perf_counter", lambda: 0.0))


@cheat
def patches_the_comparison(point, x, out):
    """Replaces what compares its outputs."""

    fixture.check_equal = lambda *arguments: None
    return lambda: None


@cheat
def rewrites_the_comparison(point, x, out):
    """Changes in place the code of what compares its outputs, and writes nothing."""
    equality.check_equal.__code__ = (lambda name, got, before, expected, views=tuple: None).__code__
    equality.wrong_elements.__code__ = (lambda got, before, expected: (got != got, got)).__code__
    output_probe.OutputProbe.check.__code__ = (lambda self, stage: None).__code__
    return lambda: None


@cheat
def rewrites_a_default(point, x, out):
    """Has itself verified by a single launch from then on."""
    fixture.verify_cell.__defaults__ = (True,)
    return chain_clamp(point, x, out)


@cheat
def rewrites_a_property(point, x, out):
    """Has nothing expected of it."""
    fixture.Batch.expected.func.__code__ = (lambda self: {}).__code__
    return lambda: None


@cheat
def profiles_its_neighbours(point, x, out):
    """Every call in the process becomes slower."""
    sys.setprofile(lambda *event: None)
    return chain_clamp(point, x, out)


@cheat
def intercepts_torch(point, x, out):
    """Every call of torch becomes slower."""

    class Idle(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            return function(*arguments, **(keywords or {}))

    Idle().__enter__()
    return chain_clamp(point, x, out)


@cheat
def patches_a_method(point, x, out):
    """A method of torch that others call becomes slow and wrong."""
    torch.Tensor.clamp_ = lambda self, *bounds, **named: self
    return chain_clamp(point, x, out)


@cheat
def patches_equality(point, x, out):
    torch.equal = lambda one, other: True
    return lambda: None


@cheat
def takes_more_threads(point, x, out):
    """Takes all cores, where the baselines have one."""
    torch.set_num_threads(max(2, torch.get_num_threads() * 2))
    return chain_clamp(point, x, out)


@cheat
def moves_the_default_device(point, x, out):
    """The inputs and references of the variants after it would have no contents."""
    torch.set_default_device("meta")
    return chain_clamp(point, x, out)


@cheat
def stops_the_collector(point, x, out):
    return followed(chain_clamp(point, x, out), gc.disable)


@cheat
def raises_in_the_launch(point, x, out):
    def launch():
        raise RuntimeError("it failed")

    return launch


@cheat
def exits_the_process(point, x, out):
    return lambda: sys.exit(0)


@cheat
def ends_the_process(point, x, out):
    return lambda: os._exit(0)


@cheat
def segfaults(point, x, out):
    import ctypes

    return lambda: ctypes.string_at(0)


@cheat
def hangs(point, x, out):
    return lambda: time.sleep(3600)


@variant("decode_native", skip=lambda point: None if point.batch_size == 2 else "two requests only")
def skips_every_edge_case(point, x, out):
    """Unverified, so it must not be measured."""
    return lambda: None


@variant("decode_native", skip=lambda point: 1 // 0)
def raises_in_its_skip(point, x, out):
    """Fails to say whether it applies at a point."""
    return lambda: None


@variant("decode_native", skip=lambda point: point.batch_size > 0)
def skips_without_a_reason(point, x, out):
    """Returns True for a reason; a record with it could not be read."""
    return lambda: None
