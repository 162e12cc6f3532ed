"""The timeline of one call: which variants it shows, and that it is drawn for every kind of profile."""

from spec_decode_bench.profiler.plots.step_timeline import chosen, draw, figure
from spec_decode_bench.profiler.records import Profile, Span, Step


def step(variant, phase, operations, point="batch_size=8", operator="o"):
    host = [Span("submit", "cudaLaunchKernel", 5 + 10 * i, 9 + 10 * i) for i in range(operations)]
    host.append(Span("wait", "cudaDeviceSynchronize", 10 * operations, 10 * operations + 5))
    device = [Span("kernel", f"k{i}", 8 + 10 * i, 10 + 10 * i) for i in range(operations)]
    us = 10.0 * operations + 6
    return Step(cell=f"{operator}/{variant}/{point}", phase=phase, us=us, host=host, device=device)


def profile(*steps):
    return Profile(version=1, tool="nsys", tool_version="2025.3", name="n", command="c", steps=list(steps))


def test_the_chain_with_most_operations_stands_against_one_launch():
    steps = [step(name, phase, n) for phase in ("eager", "graph") for name, n in (("a", 9), ("b", 1), ("c", 20))]
    steps += [step(name, "eager", n, "batch_size=64") for name, n in (("a", 5), ("b", 1))]
    most, fewest = chosen(steps)
    assert most["eager"].cell == "o/c/batch_size=8"
    assert fewest["graph"].cell == "o/b/batch_size=8"


def test_nothing_is_drawn_of_one_variant_or_of_a_cpu(tmp_path):
    assert draw(profile(step("a", "eager", 3)), tmp_path / "t") == []
    assert draw(profile(step("a", "eager", 0), step("b", "eager", 0)), tmp_path / "t") == []


def test_a_phase_that_one_of_both_lacks_is_left_out(tmp_path):
    both = [step("a", "eager", 9), step("a", "graph", 9), step("b", "eager", 1)]
    assert len(figure(profile(*both)).axes) == 2
    assert len(figure(profile(*both, step("b", "graph", 1))).axes) == 4
    assert [path.suffix for path in draw(profile(*both), tmp_path / "t")] == [".png", ".svg"]
