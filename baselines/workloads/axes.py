"""Axes that several decode operators have, named as the engines name them, with parsers and rules.

Defaults describe DeepSeek-V3.2 served with MTP-3: block size 64, max_model_len 163840, 8192 batched tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from spec_decode_bench.baselines.workloads.context_lengths import label_lengths, longest, parse_lengths, plain
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Point, Rule

#: Counts and sizes reach kernels as int32.
INT32_MAX = 2**31 - 1


def whole(minimum: int, maximum: int = INT32_MAX) -> Callable[[Any], int]:
    """Parser of integers in [minimum, maximum]. It raises ValueError for anything else, booleans and floats too."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ValueError(f"must be an integer from {minimum} to {maximum}")
        return value

    return parse


def fraction(value: Any) -> float:
    """Parser of numbers in [0, 1), for shares that leave at least one element. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError("must be a number in [0, 1)")
    return float(value)


fraction.examples = (0.0, 0.1, 0.9)


def probability(value: Any) -> float:
    """Parser of numbers in [0, 1]. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError("must be a number in [0, 1]")
    return float(value)


probability.examples = (0.7, 0.0, 0.3, 1.0)


#: Words that YAML reads as a truth value.
TRUTH = {True: ("on", "yes"), False: ("off", "no")}


def choice(*names: str) -> Callable[[Any], str]:
    """Parser of one of these words, of which YAML reads ``on`` and ``no`` as truth values. It raises ValueError for any
    other value.
    """

    def parse(value: Any) -> str:
        if isinstance(value, bool):
            value = next((name for name in names if name in TRUTH[value]), value)
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    parse.examples = names
    return parse


def one_of(*values: int) -> Callable[[Any], int]:
    """Parser of one of these whole numbers. It raises ValueError for any other value."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or value not in values:
            raise ValueError(f"must be one of {', '.join(map(str, values))}")
        return value

    parse.examples = values
    return parse


def contents(edits: Mapping[str, Callable[[Any], None]]) -> Axis:
    """What ``edits`` change in the generated inputs of an operator; see ``with_contents``."""
    return Axis("contents", choice("random", *edits), "random", f"generated inputs as they are, or {', '.join(edits)}")


def with_contents(edits: Mapping[str, Callable[[Any], None]]) -> Callable[[Callable], Callable]:
    """Decorates make_inputs. The axis ``contents`` names the edit, which changes inputs in place; they stay legal."""

    def decorate(make_inputs: Callable[[Point, int], Any]) -> Callable[[Point, int], Any]:
        @wraps(make_inputs)
        def edited(point: Point, seed: int) -> Any:
            x = make_inputs(point, seed)
            # Operators that are made of this one may have no such axis.
            if (name := point.get("contents", "random")) != "random":
                edits[name](x)
            return x

        return edited

    return decorate


def other_contents(point: Point, rows: bool = True) -> dict[str, Any]:
    """Axes of a step with the shapes of this one, and other lengths. rows: also fewer tokens in some rows, where all
    have as many here.
    """
    other: dict[str, Any] = {"context_len": {"uniform": [1, point.max_model_len]}}
    if rows and point.get("decode_len") == "uniform":
        other["decode_len"] = "ragged"
    return other


def num_decodes(point: Point) -> int:
    """Real requests of the step that run no chunk of their prompt."""
    padding = num_padding_requests(point) if "padding" in point else 0
    return point.batch_size - padding - point.get("prefills", 0)


def has_no_request(point: Point) -> bool:
    """Whether all rows are padding."""
    return point.get("padding", 0) == 1


def lies_in_one(axis: str) -> Callable[[Point], bool]:
    """Whether the longest sequence of a point lies in one block."""
    return lambda point: has_no_request(point) or longest_sequence(point) <= point[axis]


def longest_sequence(point: Point) -> int:
    """Bound of the lengths of its requests."""
    return min(longest(point.context_len) or point.max_model_len, point.max_model_len)


#: B * L then exceeds 16 bits, and a reference in Python still takes less than a second.
MOST_REQUESTS = 2**15 + 1
BATCH_SIZE = Axis(
    "batch_size",
    whole(1),
    32,
    "decode requests of the step (B), padding requests included",
    largest=MOST_REQUESTS,
    used={128: "a size captured by vLLM", 256: "vLLM's max_num_seqs"},
)
NEXT_N = Axis(
    "next_n",
    whole(1),
    4,
    "query rows per request the server is configured for: 1 + num_speculative_tokens",
    largest=513,
    used={2: "one draft", 3: "two drafts", 4: "DeepSeek with three drafts", 8: "EAGLE with seven drafts"},
)
MAX_DECODE_LEN = Axis(
    "max_decode_len",
    whole(1),
    lambda p: p.next_n,
    "longest row of this step (L), at most next_n",
    idle=lambda p: num_decodes(p) <= 0,
)
DECODE_LEN = Axis(
    "decode_len",
    choice("uniform", "ragged", "mixed"),
    "uniform",
    "rows per real request: uniform (all L), ragged (1..L in equal shares), mixed (90 % L, 10 % 1)",
    idle=lambda p: num_decodes(p) <= 1 or p.max_decode_len == 1,
)
CONTEXT_LEN = Axis(
    "context_len",
    parse_lengths,
    4096,
    "KV tokens per request, this step's included",
    label_lengths,
    idle=has_no_request,
)
MAX_MODEL_LEN = Axis("max_model_len", whole(1), 163840, "longest sequence the server admits; fixes the table width")
#: KV tokens per block -> who has them.
BLOCK_SIZES = {
    16: "vLLM",
    32: "TensorRT-LLM",
    64: "FlashMLA",
    128: "vLLM's largest",
}
BLOCK_SIZE = Axis(
    "block_size",
    whole(1),
    64,
    "KV tokens per block",
    used=BLOCK_SIZES,
    idle=lambda p: "context_len" in p and lies_in_one("block_size")(p),
)
PADDING = Axis(
    "padding",
    fraction,
    0.0,
    "share of the batch that is padding requests (rounded up; at least one request is real)",
    plain,
)
ACCEPTANCE = Axis(
    "acceptance",
    probability,
    0.75,
    "probability that a draft is accepted, given that those before it were",
    plain,
    idle=has_no_request,
)
TOKEN_PADDING = Axis("token_padding", whole(0), 0, "tokens added after the real ones to reach a captured size")
MAX_NUM_BATCHED_TOKENS = Axis("max_num_batched_tokens", whole(1), 8192, "capacity of the per-token buffers")
HOST_LENS = Axis(
    "host_lens",
    choice("exact", "stale"),
    "exact",
    "CPU copy of query_start_loc: exact (equals the device's) or stale (L tokens for every real request)",
)
TABLE_COLUMNS = Axis(
    "table_columns", whole(1), lambda p: cdiv(p.max_model_len, p.block_size), "width of the source block table"
)
TABLE_PADDING = Axis("table_padding", whole(0), 0, "int32 between two rows of the source block table (stride - width)")
COMPRESS_RATIO = Axis(
    "compress_ratio",
    whole(1),
    1,
    "tokens per index-cache entry; lengths are floor-divided by it",
    used={4: "DeepSeek-V4", 128: "DeepSeek-V4"},
    idle=lambda p: longest_sequence(p) < p.compress_ratio,
)


def num_sms(doc: str, maximum: int = INT32_MAX) -> Axis:
    """SMs that a schedule distributes work over, 132 (H200) by default. ``doc`` says what they are to the operator."""
    return Axis("num_sms", whole(1, maximum), 132, doc, used={132: "H200", 148: "B200", 78: "H20"})


DECODE_LEN_FITS = Rule(
    "max_decode_len ({max_decode_len}) must not exceed next_n ({next_n})", lambda p: p.max_decode_len <= p.next_n
)
CONTEXT_FITS = Rule(
    "context_len ({context_len}) must not exceed max_model_len ({max_model_len})",
    lambda p: (longest(p.context_len) or 0) <= p.max_model_len,
)
ROW_FITS = Rule(
    "max_decode_len ({max_decode_len}) must not exceed max_model_len ({max_model_len}), this step's tokens included",
    lambda p: p.max_decode_len <= p.max_model_len,
)
LENGTHS_FIT = Rule(
    "max_model_len ({max_model_len}) and the tokens of a block must be less than 2^31, as lengths are int32",
    lambda p: max(p.max_model_len, p.get("block_size", 1)) < 2**31,
)
SEQS_FIT = Rule(
    "batch_size ({batch_size}) must not exceed max_num_seqs ({max_num_seqs})", lambda p: p.batch_size <= p.max_num_seqs
)

#: The axes and rules of every operator over a decode step.
DECODE_STEP = (BATCH_SIZE, NEXT_N, MAX_DECODE_LEN, DECODE_LEN, CONTEXT_LEN, MAX_MODEL_LEN, PADDING)
DECODE_STEP_RULES = (DECODE_LEN_FITS, CONTEXT_FITS, ROW_FITS, LENGTHS_FIT)


def num_padding_requests(point: Point) -> int:
    """ceil(padding * batch_size), at most batch_size - 1 unless padding is 1."""
    if point.padding == 1:
        return point.batch_size
    # Rounded first: 0.07 * 100 is a little more than 7 in floating point.
    return min(math.ceil(round(point.padding * point.batch_size, 6)), point.batch_size - 1)


def same_batch_elsewhere(point: Point) -> str | None:
    """Why another point of a full grid has the same batch as this one, as the reason to skip it; None if none has."""
    if point.padding and num_padding_requests(point) == 0:
        return f"padding {point.padding:g} makes no padding request in a batch of {point.batch_size}"
    real = point.batch_size - num_padding_requests(point)
    if point.get("decode_len", "uniform") != "uniform" and (real <= 1 or point.max_decode_len == 1):
        return f"a {point.decode_len} batch of {real} request(s) with max_decode_len {point.max_decode_len} is uniform"
    return None
