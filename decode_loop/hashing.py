"""Counter-based random numbers and checksums: the same in Python, numpy and CUDA (loop.cu).

    mix(z)                     the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
                               generators", OOPSLA 2014)
    draw(seed, request, i)     32 random bits of token i of a request
    token(seed, request, i)    the token at position i of a request
    weight(row, column)        an odd 64-bit number

A checksum is the sum of value * weight(row, column) modulo 2^64 over what a consumer reads. It does not depend on the
order of the additions, and as every weight is odd, a change of one value always changes it.
"""

from __future__ import annotations

import numpy as np

MASK = 2**64 - 1
#: Token ids are below.
VOCAB_SIZE = 129280
GAMMA, POSITION = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


def mix(z: np.ndarray | np.uint64) -> np.ndarray:
    """uint64 -> uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw(seed: int, requests: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """uint64 in [0, 2^32), of the broadcast shape of ``requests`` and ``positions`` (whole numbers)."""
    requests, positions = np.asarray(requests).astype(np.uint64), np.asarray(positions).astype(np.uint64)
    by_request = mix(np.atleast_1d(np.uint64(seed & MASK) + requests * np.uint64(GAMMA)))
    return mix(by_request + positions * np.uint64(POSITION)) >> np.uint64(32)


def token(seed: int, requests: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """int64 in [0, VOCAB_SIZE), of the broadcast shape."""
    return (draw(seed + 1, requests, positions) % np.uint64(VOCAB_SIZE)).astype(np.int64)


def weight(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """uint64, of the broadcast shape."""
    place = (np.asarray(rows).astype(np.uint64) << np.uint64(32)) | np.asarray(columns).astype(np.uint64)
    return mix(np.atleast_1d(place)) | np.uint64(1)


def checksum(values: np.ndarray, row_lengths: np.ndarray | None = None, unit: int = 1, idle: int | None = None) -> int:
    """Of what a consumer reads; the arguments are the fields of Consumed as numpy arrays."""
    table = values[None, :] if values.ndim == 1 else values
    rows, columns = table.shape
    used = np.full(rows, columns)
    if row_lengths is not None:
        used = np.clip(-(-row_lengths.astype(np.int64) // unit), 0, columns)
    if idle is not None:
        used = np.where(table[:, 0] == idle, np.minimum(used, 1), used)
    row, column = np.nonzero(np.arange(max(used.max(initial=0), 0)) < used[:, None])
    read = table[row, column].astype(np.int64).view(np.uint64)
    return int((read * weight(row, column)).sum(dtype=np.uint64))
