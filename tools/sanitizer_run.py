"""Runs the kernels over their edge cases in one process, for compute-sanitizer:

    compute-sanitizer --tool memcheck   python -m tools.sanitizer_run
    compute-sanitizer --tool initcheck  python -m tools.sanitizer_run
    compute-sanitizer --tool racecheck  python -m tools.sanitizer_run 'mla_tile_schedule/*' '*/cuda_fused'

Patterns are globs over operator/variant or variant; without one, every CUDA and Triton kernel runs. ``--variants FILE``
adds your own kernels. Exit code 0: all results are right; 1: a wrong result or an exception; 2: no such variant. The
sanitizer's option ``--error-exitcode`` sets the code for its own findings.

Every tensor has its own allocation, exactly as large as the tensor and without canaries, so that memcheck sees an
access one byte outside of it. Outputs and the gaps between the rows of a padded table stay uninitialised: poison would
be written by a kernel, after which initcheck takes the memory for initialised. Of an output only the elements that must
be written are read, so a missing write is a finding of initcheck as well as a wrong result here. Only
``bench.py verify`` checks elements that must stay untouched.

Each edge case runs twice, the second time with tensors that start one element past an aligned address, where other
code paths are chosen.

What the tools do not see:

* initcheck: a stale value of an earlier step, an uninitialised register or shared memory, a read of an unused column;
* memcheck: an access that lands in another allocation;
* racecheck: races between blocks for global memory; it watches shared memory only.

Sequences of steps are left out: in buffers that are used again everything is initialised.
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
    # The caching allocator puts all tensors into a few large allocations, which look initialised after their first use.
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from torch import Tensor

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.contract import EdgeCase, Expected, Operator, Variant
from spec_decode_bench.harness.discover import Catalog, DiscoveryError, discover, unavailable
from spec_decode_bench.harness.errors import did_you_mean, first_line
from spec_decode_bench.harness.records.sentences import of_reason
from spec_decode_bench.harness.session.sampling import ContextLost, check_context
from spec_decode_bench.harness.verify.equality import required

SEED = 11


def alone(source: Tensor, device: str, shift: int, host: bool, filled: bool) -> Tensor:
    """A tensor of the shape, strides and dtype of ``source`` in its own allocation, which ends where the tensor ends.

    shift: elements between the start of the allocation and that of the tensor. filled: copy the content of ``source``.
    """
    span = sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)) + 1
    size, pinned = shift + (span if source.numel() else 0), host and device == "cuda"
    storage = torch.empty(size, dtype=source.dtype, device="cpu" if host else device, pin_memory=pinned)
    tensor = storage.as_strided(source.shape, source.stride(), shift)
    return tensor.copy_(source) if filled else tensor


def allocated(values: Any, device: str, shift: int, filled: bool) -> Any:
    """A dataclass of inputs (filled) or outputs, with each tensor in its own allocation."""
    moved = {
        field.name: alone(getattr(values, field.name), device, shift, bool(field.metadata.get("host")), filled)
        for field in dataclasses.fields(values)
        if isinstance(getattr(values, field.name), Tensor)
    }
    return dataclasses.replace(values, **moved)


def wrong(got: Tensor, expected: Expected) -> str | None:
    """The first element that must be written and is wrong; None where all are right. Reads no other element."""
    must = required(expected)
    positions = must.nonzero()
    actual, correct = got[positions.to(got.device).unbind(1)].cpu(), expected.value[must]
    if torch.equal(actual, correct):
        return None
    first = int((actual != correct).nonzero()[0])
    return f"{positions[first].tolist()}: expected {correct[first].item()}, got {actual[first].item()}"


def run_point(
    operator: Operator, variants: list[Variant], case: EdgeCase, device: str, shift: int
) -> Iterator[tuple[str, list[str]]]:
    """Run one edge case with all variants that take it: (variant name, problems)."""
    point = operator.complete(case.point)
    taking = [variant for variant in variants if not variant.skip(point)]
    if not taking:
        return
    made = operator.make_inputs(point, SEED)
    if case.edit is not None:
        case.edit(made)
    reference, shapes = operator.reference(point, made), operator.outputs.empty(point)
    for variant in taking:
        problems = []
        try:
            x, out = allocated(made, device, shift, filled=True), allocated(shapes, device, shift, filled=False)
            variant.setup(point, x, out)()
            if device == "cuda":
                torch.cuda.synchronize()
            for name, expected in reference.items():
                if (difference := wrong(getattr(out, name), expected)) is not None:
                    problems.append(f"{name}{difference}")
        except Exception as error:  # a variant may raise anything
            problems.append(first_line(error))
        yield variant.name, problems


def chosen(catalog: Catalog, patterns: list[str], device: str) -> dict[str, list[Variant]]:
    """Operator name -> its kernels that match a pattern, without PyTorch chains and defects. Raises DiscoveryError."""
    kernels = [v for v in catalog.variants if not (v.is_upstream or v.folder == "baselines") and v.defect is None]
    for pattern in patterns:
        if not any(_matches(v, pattern) for v in kernels):
            raise DiscoveryError(f"{pattern!r} matches no kernel{did_you_mean(pattern, [v.id for v in kernels])}")
    found: dict[str, list[Variant]] = {}
    for variant in kernels:
        if patterns and not any(_matches(variant, pattern) for pattern in patterns):
            continue
        reason = unavailable(variant, device)
        if reason:
            print(f"{variant.id}: not run, {of_reason(reason)}", flush=True)
        else:
            found.setdefault(variant.operator, []).append(variant)
    return found


def _matches(variant: Variant, pattern: str) -> bool:
    return fnmatchcase(variant.id, pattern) or fnmatchcase(variant.name, pattern)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tools.sanitizer_run", description="The edge cases of the kernels, for compute-sanitizer."
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
        failed = [_run(catalog.operators[name], variants, device) for name, variants in selected.items()]
    except ContextLost as error:
        print(f"the CUDA context is lost, so nothing more can run in this process: {error}", file=sys.stderr)
        return 1
    return int(any(failed))


def _run(operator: Operator, variants: list[Variant], device: str) -> bool:
    """Run and print all edge cases of an operator; whether something was wrong. Raises ContextLost."""
    launches, failed = dict.fromkeys((v.name for v in variants), 0), False
    for case in operator.edge_cases:
        for shift in (0, 1):
            for variant, problems in run_point(operator, variants, case, device, shift):
                launches[variant] += 1
                for problem in problems:
                    where = f"{case.name!r}{', unaligned' if shift else ''}"
                    print(f"{operator.name}/{variant}: WRONG at {where}: {problem}", flush=True)
                if problems:
                    failed = True
                    check_context(device)
    for variant, count in launches.items():
        print(f"{operator.name}/{variant}: {count} launches over the edge cases on {device}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
