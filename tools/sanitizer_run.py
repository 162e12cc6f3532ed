"""The hard points of the kernels in one process and with little around them, for compute-sanitizer:

    compute-sanitizer --tool memcheck   python -m tools.sanitizer_run
    compute-sanitizer --tool initcheck  python -m tools.sanitizer_run
    compute-sanitizer --tool racecheck  python -m tools.sanitizer_run 'mla_tile_schedule/*' '*/cuda_fused'

Patterns are globs over operator/variant or variant; without one, every CUDA and Triton kernel runs. ``--variants FILE``
adds kernels of your own. Exit code 0: all right; 1: a wrong result or an exception; 2: no such variant. The sanitizer's
own findings change the code with its ``--error-exitcode``.

Every tensor is an allocation of its own, exactly as large as the tensor and without canaries, so memcheck sees an
access one byte outside of it. Outputs are left uninitialised, and so are the gaps between the rows of a padded table:
poison would be written by a kernel, and initcheck takes what a kernel has written for initialised. Of an output only
the elements that must be written are looked at, through an index, so that the check itself reads nothing unwritten; a
missing write is a finding of initcheck in that read as well as a wrong result here. What must stay untouched is left to
the ordinary tests.

Each hard point runs twice, the second time with tensors that start one element past an aligned address, where other
code paths are chosen.

What the tools cannot see. initcheck: a stale value from an earlier step (it was written once), an uninitialised
register or shared memory, a read inside an input that is legal memory but no used column. memcheck: an access that
lands in another allocation. racecheck: anything but shared memory; global memory that blocks race for is not its
business. Sequences of steps through the same buffers are left out, as they would find everything initialised.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

if __name__ == "__main__":
    # PyTorch's caching allocator puts all tensors into a few large allocations, which look initialised after their
    # first use.
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from torch import Tensor

from harness import interpreter
from harness.contract import Expected, HardPoint, Operator, Variant
from harness.discover import Catalog, DiscoveryError, discover, unavailable
from harness.runner.measure import ContextLost, check_context
from harness.wording import did_you_mean, first_line

SEED = 11


def alone(source: Tensor, device: str, shift: int, host: bool, filled: bool) -> Tensor:
    """A tensor of the shape, strides and dtype of ``source`` at the end of an allocation of its own, ``shift``
    elements into it.
    """
    span = (
        sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)) + 1
        if source.numel()
        else 0
    )
    storage = torch.empty(
        shift + span, dtype=source.dtype, device="cpu" if host else device, pin_memory=host and device == "cuda"
    )
    tensor = storage.as_strided(source.shape, source.stride(), shift)
    return tensor.copy_(source) if filled else tensor


def allocated(values: Any, device: str, shift: int, filled: bool) -> Any:
    """A dataclass of inputs (filled) or outputs with each tensor alone in its allocation."""
    moved = {
        field.name: alone(getattr(values, field.name), device, shift, bool(field.metadata.get("host")), filled)
        for field in dataclasses.fields(values)
        if isinstance(getattr(values, field.name), Tensor)
    }
    return dataclasses.replace(values, **moved)


def wrong(got: Tensor, expected: Expected) -> str | None:
    """The first element that had to be written and does not hold its value; None where all do. Reads those elements
    alone.
    """
    settled = torch.ones(expected.value.shape, dtype=torch.bool)
    for open_to_it in (expected.untouched, expected.slack):
        if open_to_it is not None:
            settled &= ~open_to_it
    places = settled.nonzero()
    index = places.to(got.device).unbind(1)
    read, want = got[index].cpu(), expected.value[settled]
    if torch.equal(read, want):
        return None
    first = int((read != want).nonzero()[0])
    return f"{places[first].tolist()}: expected {want[first].item()}, got {read[first].item()}"


def run_point(
    operator: Operator, variants: list[Variant], hard: HardPoint, device: str, shift: int
) -> Iterator[tuple[str, list[str]]]:
    """One hard point for all variants that take it: (variant name, what went wrong)."""
    point = operator.complete(hard.point)
    taking = [variant for variant in variants if not variant.skip(point)]
    if not taking:
        return
    made = operator.make_inputs(point, SEED)
    if hard.edit is not None:
        hard.edit(made)
    reference, shapes = operator.reference(point, made), operator.make_outputs(point)
    for variant in taking:
        problems = []
        try:
            x, out = allocated(made, device, shift, filled=True), allocated(shapes, device, shift, filled=False)
            variant.setup(point, x, out)()
            if device == "cuda":
                torch.cuda.synchronize()
            for name, expected in reference.items():
                if (place := wrong(getattr(out, name), expected)) is not None:
                    problems.append(f"{name}{place}")
        except Exception as error:  # a variant may raise anything
            problems.append(first_line(error))
        yield variant.name, problems


def chosen(catalog: Catalog, patterns: list[str], device: str) -> dict[str, list[Variant]]:
    """Operator name -> the healthy kernels that match; operator chains and defects are none. Raises DiscoveryError."""
    kernels = [v for v in catalog.variants if not v.origin.startswith("baselines.") and v.defect is None]
    for pattern in patterns:
        if not any(_matches(v, pattern) for v in kernels):
            raise DiscoveryError(f"{pattern!r} matches no kernel{did_you_mean(pattern, [v.id for v in kernels])}")
    found: dict[str, list[Variant]] = {}
    for variant in kernels:
        if patterns and not any(_matches(variant, pattern) for pattern in patterns):
            continue
        reason = unavailable(variant, device)
        if reason:
            print(f"{variant.id}: not run, {reason}", flush=True)
        else:
            found.setdefault(variant.operator, []).append(variant)
    return found


def _matches(variant: Variant, pattern: str) -> bool:
    return fnmatchcase(variant.id, pattern) or fnmatchcase(variant.name, pattern)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tools.sanitizer_run", description="The hard points of the kernels, for compute-sanitizer."
    )
    parser.add_argument("pattern", nargs="*", help="globs over operator/variant or variant (default: every kernel)")
    parser.add_argument(
        "--variants", action="append", default=[], metavar="FILE", help="a file of kernels of your own; may be repeated"
    )
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    interpreter.choose(device)
    try:
        catalog = discover(options.variants)
        selected = chosen(catalog, options.pattern, device)
    except DiscoveryError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        wrong_ones = sum(_run(catalog.operators[name], variants, device) for name, variants in selected.items())
    except ContextLost as error:
        print(f"the CUDA context is lost, so nothing more can run in this process: {error}", file=sys.stderr)
        return 1
    return 1 if wrong_ones else 0


def _run(operator: Operator, variants: list[Variant], device: str) -> bool:
    """All hard points of an operator, printed; whether something was wrong. Raises ContextLost."""
    launches, failed = dict.fromkeys((v.name for v in variants), 0), False
    for hard in operator.hard_points:
        for shift in (0, 1):
            for variant, problems in run_point(operator, variants, hard, device, shift):
                launches[variant] += 1
                for problem in problems:
                    print(
                        f"{operator.name}/{variant}: WRONG at {hard.name!r}{', unaligned' if shift else ''}: {problem}",
                        flush=True,
                    )
                    failed = True
                if problems:
                    check_context(device)
    for variant, count in launches.items():
        print(f"{operator.name}/{variant}: {count} launches over the hard points on {device}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
