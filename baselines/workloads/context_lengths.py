"""The ``context_len`` axis: a number, a distribution, a recorded production trace, or a mixture of these.

    8192                                        every request the same
    {uniform: [1024, 32768]}                    integers, both ends included
    {lognormal: {median: 4096, sigma: 1.0}}     exp(N(ln median, sigma^2)), rounded
    {trace: path}                               CSV with ContextTokens and GeneratedTokens, JSONL with input_length
                                                and output_length, or a capture file
    {mix: [[0.8, {uniform: [20000, 60000]}], [0.2, 512]]}      weights need not add up to one

Units are KV tokens. A trace lists whole requests, and a decode step sees each of them at a random moment of its
generation: a length is drawn as prompt + U{1..output}.
"""

from __future__ import annotations

import csv
import json
import math
import os
import stat
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TextIO
from urllib.parse import quote

import numpy as np

from spec_decode_bench.baselines.workloads.captured_requests import captured_requests
from spec_decode_bench.harness.config.captured import is_capture
from spec_decode_bench.harness.contract import Point

#: The largest length: lengths are int32 on the device.
LONGEST = 2**31 - 1
#: Of a trace, which is read row by row; a week of a large service has about as many.
MAX_TRACE_BYTES = 2 * 2**30
#: Axes of what a sequence is divided into.
BLOCK_AXES = ("block_size", "mamba_block_size", "compress_ratio")
_COLUMNS = (("ContextTokens", "GeneratedTokens"), ("input_length", "output_length"))
_FORMS = (
    "a positive integer, {uniform: [low, high]}, {lognormal: {median, sigma}}, {trace: path} "
    "or {mix: [[weight, lengths], ...]}"
)


def parse_lengths(value: Any) -> Any:
    """The canonical, JSON-able form of one ``context_len`` value as YAML gives it.

    Reads a trace to check it. Raises ValueError with the legal forms, or what is wrong with the trace.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, argument),) = value.items()
        if kind == "uniform" and _is_pair(argument) and 1 <= argument[0] <= argument[1]:
            return {"uniform": argument}
        if kind == "lognormal" and isinstance(argument, dict) and set(argument) == {"median", "sigma"}:
            median, sigma = argument["median"], argument["sigma"]
            if _is_number(median) and _is_number(sigma) and 1 <= median <= LONGEST and sigma >= 0:
                return {"lognormal": {"median": float(median), "sigma": float(sigma)}}
        if kind == "trace" and isinstance(argument, str):
            _read_trace(argument)
            return {"trace": argument}
        if kind == "mix" and isinstance(argument, list) and argument and all(_is_weighted(part) for part in argument):
            return {"mix": [[float(weight), parse_lengths(part)] for weight, part in argument]}
    raise ValueError(f"must be {_FORMS}")


def _examples(point: Point) -> list[Any]:
    """Of all lengths, all the longest, a few long requests among short ones, and two at which blocks and tiles end."""
    top = point.get("max_model_len", 2**17)
    few_long = {"mix": [[0.8, {"uniform": [1, min(top, 100)]}], [0.2, top]]}
    return [{"uniform": [1, top]}, top, few_long, *_at_ends(point)]


def _at_ends(point: Point) -> list[Any]:
    """Lengths at which blocks of the point end, or windows that reach back to an end, the longer half of block * 2^n:
    after a step, and in front of a step of the longest row or in its middle. Powers of two where no block ends.
    """
    blocks = frozenset(point[axis] for axis in BLOCK_AXES if axis in point)
    top, row, window = point.get("max_model_len", 2**17), point.get("max_decode_len", 1), point.get("window", 0)
    return _near_ends(blocks, top, row, window)


@lru_cache(maxsize=1024)
def _near_ends(blocks: frozenset[int], top: int, row: int, window: int) -> list[Any]:
    blocks = {block for block in blocks if block <= top} or {1}
    ends = {block << n for block in blocks for n in range(_bits(top // block) // 2, _bits(top // block) + 1)}
    ends |= {end + window for end in ends}
    behind = {end + past for end in ends for past in (row, (row + 1) // 2)}
    return [{"mix": [[1.0, length] for length in sorted({min(n, top) for n in some})]} for some in (ends, behind)]


def _bits(number: int) -> int:
    return number.bit_length() - 1


def ends_blocks(point: Point) -> bool:
    """Whether the contexts of a point are examples at which blocks end."""
    return point.context_len in _at_ends(point)


parse_lengths.examples = _examples


def label_lengths(value: Any) -> str:
    """Short form for keys and tables: ``4096``, ``lognormal(4096;1)``, ``trace(azure.csv)``.

    Different values have different labels. A label contains no comma and no "=", which separate axes in a key.
    """
    if isinstance(value, int):
        return str(value)
    ((kind, argument),) = value.items()
    if kind == "uniform":
        return f"uniform({argument[0]};{argument[1]})"
    if kind == "lognormal":
        return f"lognormal({plain(argument['median'])};{plain(argument['sigma'])})"
    if kind == "trace":
        return f"trace({quote(argument, safe='/._- ~')})"
    return "mix(" + ";".join(f"{plain(weight)}*{label_lengths(part)}" for weight, part in argument) + ")"


def plain(number: float) -> str:
    """The shortest exact form of a float, without a trailing ``.0``."""
    return repr(number).removesuffix(".0")


def longest(value: Any) -> int | None:
    """The largest length that a canonical value can yield; None if it has no stated bound (lognormal, trace)."""
    if isinstance(value, int):
        return value
    ((kind, argument),) = value.items()
    if kind == "uniform":
        return argument[1]
    if kind == "mix":
        return max((top for _, part in argument if (top := longest(part)) is not None), default=None)
    return None


def draw_lengths(value: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` lengths >= 1 drawn from a canonical value; int64 [count]."""
    if isinstance(value, int):
        return np.full(count, value, dtype=np.int64)
    ((kind, argument),) = value.items()
    if kind == "uniform":
        return rng.integers(argument[0], argument[1], size=count, endpoint=True)
    if kind == "lognormal":
        drawn = np.rint(rng.lognormal(np.log(argument["median"]), argument["sigma"], count))
        return np.clip(drawn, 1, LONGEST).astype(np.int64)
    if kind == "trace":
        prompts, outputs = _read_trace(argument)
        rows = rng.integers(0, len(prompts), size=count)
        return prompts[rows] + rng.integers(1, np.maximum(outputs[rows], 1), endpoint=True)
    weights = np.array([weight for weight, _ in argument])
    chosen = rng.choice(len(argument), size=count, p=weights / weights.sum())
    drawn = np.stack([draw_lengths(part, count, rng) for _, part in argument])
    return drawn[chosen, np.arange(count)]


def requests_of_trace(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and output tokens, each >= 1, of all requests of a trace in its order; int64 [requests].

    Raises ValueError.
    """
    prompts, outputs = _read_trace(path)
    return prompts, np.maximum(outputs, 1)


@lru_cache(maxsize=8)
def _read_trace(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and output tokens of all requests of a trace, both int64 [requests]. Raises ValueError."""
    if is_capture(path):
        requests = captured_requests(path)
        return np.maximum(requests.prompts, 1), requests.outputs
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise ValueError(f"the trace {path!r} is not a regular file")
        if status.st_size > MAX_TRACE_BYTES:
            raise ValueError(f"the trace {path!r} is larger than {MAX_TRACE_BYTES:,} bytes; use a part of it")
        with open(path, encoding="utf-8", newline="") as file:
            lengths = np.fromiter(_requests(path, file), dtype=np.dtype((np.int64, 2)))
    except OSError as error:
        raise ValueError(
            f"the trace {path!r} cannot be read ({error.strerror}); paths are relative to the working directory"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"the trace {path!r} is neither CSV nor JSONL: {error}") from None
    if not len(lengths):
        raise ValueError(f"the trace {path!r} holds no request")
    return np.maximum(lengths[:, 0], 1), lengths[:, 1]


def _requests(path: str, file: TextIO) -> Iterator[tuple[int, int]]:
    """(prompt, output) tokens of one request after the other. Raises ValueError, with the line."""
    columns = None
    for line, row in _json_rows(path, file) if path.endswith(".jsonl") else _csv_rows(file):
        if columns is None:
            columns = next((pair for pair in _COLUMNS if isinstance(row, dict) and set(pair) <= set(row)), None)
        if columns is None:
            raise ValueError(f"the trace {path!r} needs the columns {_COLUMNS[0]} (CSV) or {_COLUMNS[1]} (JSONL)")
        try:
            yield _tokens(row[columns[0]]), _tokens(row[columns[1]])
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"the trace {path!r}, line {line}: needs whole numbers in {columns[0]} and {columns[1]}: {error}"
            ) from None


def _csv_rows(file: TextIO) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(file)
    for row in reader:
        yield reader.line_num, row


def _json_rows(path: str, file: TextIO) -> Iterator[tuple[int, Any]]:
    for line, text in enumerate(file, start=1):
        if text.strip():
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"the trace {path!r}, line {line}: is not JSON: {error}") from None
            yield line, row


def _tokens(value: Any) -> int:
    """A token count from a CSV or JSONL field. Raises ValueError or TypeError."""
    if isinstance(value, (bool, float)) or not 0 <= int(value) <= LONGEST:
        raise ValueError(f"{value!r} is not a number of tokens")
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(end, int) and not isinstance(end, bool) for end in value)
    )


def _is_weighted(part: Any) -> bool:
    """Whether ``part`` is [weight > 0, anything], an element of a mix."""
    return isinstance(part, list) and len(part) == 2 and _is_number(part[0]) and part[0] > 0
