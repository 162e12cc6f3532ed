"""Cheating and broken variants that need a GPU: streams, graphs, events, device memory."""

import itertools
from pathlib import Path

import torch

from spec_decode_bench.baselines.decode_native.chains import chain_clamp, flat_view
from spec_decode_bench.harness.contract import GPU, variant
from spec_decode_bench.harness.cuda import launcher

NOWHERE = Path(__file__).with_name("nowhere.cu")
#: Rows aligned at their end, on one rank.
SKIP = flat_view.__variant__.skip
cheat = variant("decode_native", skip=SKIP, waives="no_alloc", requires=GPU)


def by_capture(eager, captured):
    """A launch that does other work where it is captured than where it is not."""

    def launch():
        if torch.cuda.is_current_stream_capturing():
            captured()
        else:
            eager()

    return launch


def followed(work, action):
    def launch():
        work()
        action()

    return launch


@cheat
def side_stream(point, x, out):
    """The work runs on another stream, which the timed stream does not wait for."""
    work, side = chain_clamp(point, x, out), torch.cuda.Stream()

    def launch():
        with torch.cuda.stream(side):
            work()

    return launch


@cheat
def side_stream_never_joined(point, x, out):
    """The work waits for the timed stream, which does not wait for the work."""
    work, side = chain_clamp(point, x, out), torch.cuda.Stream()

    def launch():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000)
            work()

    return launch


@cheat
def moves_the_current_stream(point, x, out):
    """Events recorded afterwards are on another stream than the work."""
    side = torch.cuda.Stream()

    def moves():
        side.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(side)

    return followed(chain_clamp(point, x, out), moves)


@cheat
def idle_when_captured(point, x, out):
    """Works when launched, idles when captured."""
    return by_capture(chain_clamp(point, x, out), torch.empty(1, device=out.buffer.device).zero_)


@cheat
def empty_when_captured(point, x, out):
    """Captures nothing at all."""
    return by_capture(chain_clamp(point, x, out), lambda: None)


@cheat
def captured_beside_the_graph(point, x, out):
    """In a capture the work goes to a stream that is not captured, and runs only then."""
    work, side, nothing = chain_clamp(point, x, out), torch.cuda.Stream(), torch.empty(1, device=out.buffer.device)

    def beside():
        nothing.zero_()
        with torch.cuda.stream(side):
            work()

    return by_capture(work, beside)


@cheat
def node_missing_from_long_graphs(point, x, out):
    """The first copy in a graph is complete, the others lack a node, so the slope is too small."""
    work, nothing, copies = chain_clamp(point, x, out), torch.empty(1, device=out.buffer.device), itertools.count()
    return by_capture(work, lambda: nothing.zero_() if next(copies) % 7 > 0 else work())


@cheat
def dummies_in_long_graphs(point, x, out):
    """Every copy has as many nodes, but most of them do nothing."""
    nothing = torch.empty(1, dtype=torch.int32, device=out.buffer.device)
    rows, width = point.batch_size, point.max_decode_len
    view = out.buffer[: rows * width].view(rows, width)
    offsets = torch.arange(1 - width, 1, dtype=torch.int32, device=out.buffer.device)
    last = [None]

    def launch():
        graph = torch.cuda.is_current_stream_capturing()
        if graph and last[0]:
            nothing.add_(1)
            nothing.clamp_(min=0)
            nothing.floor_divide_(1)
        else:
            torch.add(x.seq_lens[:, None], offsets, out=view)
            view.clamp_(min=0)
            view.floor_divide_(point.compress_ratio)
        last[0] = graph

    return launch


@cheat
def graph_of_its_own(point, x, out):
    """Eager calls replay a graph captured in set-up; a capture gets less work than that."""
    work, nothing = chain_clamp(point, x, out), torch.empty(1, device=out.buffer.device)
    work()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=side):
        work()
    return by_capture(graph.replay, nothing.zero_)


@cheat
def returns_before_completion(point, x, out):
    """The copy that completes the answer is queued in the next call."""
    answer = torch.zeros_like(out.buffer[: point.batch_size * point.max_decode_len])
    offsets = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32, device=out.buffer.device)

    def launch():
        out.buffer[: answer.numel()].copy_(answer)
        lens = (x.seq_lens[:, None] + offsets).clamp_(min=0) // point.compress_ratio
        answer.copy_(lens.view(-1))

    return launch


@variant("decode_native", skip=SKIP, requires=GPU)
def allocates_in_the_launch(point, x, out):
    """Allocates without waiving no_alloc."""
    return chain_clamp(point, x, out)


@cheat
def keeps_memory(point, x, out):
    """Every launch keeps a tensor, so a server would run out of memory."""
    kept = []
    keep = lambda: kept.append(torch.empty(1024, device=out.buffer.device))  # noqa: E731
    return followed(chain_clamp(point, x, out), by_capture(keep, lambda: None))


@cheat
def waits_for_the_device(point, x, out):
    """Synchronises in every eager launch."""
    return followed(chain_clamp(point, x, out), by_capture(lambda: x.seq_lens[0].item(), lambda: None))


@cheat
def other_work_in_a_graph(point, x, out):
    """Fewer launches for the same answer, in a graph only: host time and GPU time would be of different kernels."""
    chain, rows, width = chain_clamp(point, x, out), point.batch_size, point.max_decode_len
    view = out.buffer[: rows * width].view(rows, width)
    offsets = torch.arange(1 - width, 1, dtype=torch.int32, device=out.buffer.device)

    def launch():
        if torch.cuda.is_current_stream_capturing():
            torch.add(x.seq_lens[:, None], offsets, out=view)
            view.clamp_(min=0)
            view.floor_divide_(point.compress_ratio)
        else:
            chain()

    return launch


@cheat
def patches_the_event(point, x, out):
    torch.cuda.Event.elapsed_time = lambda self, other: 1e-6
    return chain_clamp(point, x, out)


@cheat
def patches_synchronize(point, x, out):
    def patches():
        torch.cuda.synchronize = lambda *arguments: None

    return followed(chain_clamp(point, x, out), patches)


@cheat
def writes_to_nowhere(point, x, out):
    """An illegal access, which loses the CUDA context."""
    return launcher(NOWHERE, "nowhere", 1, 1, 1)


@cheat
def never_ends(point, x, out):
    """A kernel that spins for minutes."""
    return lambda: [torch.cuda._sleep(2**40), None][1]
