"""Capture files: inputs of operators as an engine had them in its steps, to be verified, timed and replayed without it.

    magic | frame: the header | frame: an entry | frame: an entry | ...
    frame = length of the rest (uint32, little endian), CRC-32 of length and rest, rest
    rest of an entry = length of its fields (uint32), fields (JSON), the compressed arrays one after the other

Each entry is compressed alone and on its way to disk when ``add`` returns: an engine that is killed loses at most the
one it was in. An array that an earlier entry of the file holds is named there instead of written again. Reading needs
numpy, not torch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from spec_decode_bench.harness.errors import CaptureError
from spec_decode_bench.harness.records.file import UNREADABLE

#: Of what this version writes and reads.
SCHEMA = 1
MAGIC = b"spec_decode_bench capture\n"
_FRAME, _LENGTH = struct.Struct("<II"), struct.Struct("<I")


class Speculative(msgspec.Struct, frozen=True, kw_only=True):
    """method: as the engine names it, such as ``eagle`` or ``mtp``. num_drafts: tokens drafted per step."""

    method: str
    num_drafts: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Where the inputs come from. commit: of this suite. created: ISO 8601, UTC."""

    engine: str
    engine_version: str
    model: str
    speculative: Speculative | None = None
    commit: str = ""
    gpu: str = ""
    created: str = ""
    schema: int = SCHEMA


class Used(NamedTuple):
    """A tensor of which only some elements are written: mask is bool, of its shape. Read back, the others are ``fill``,
    which must be legal where nobody reads: 0, or the suite's own UNUSED of tables, which makes a stray read crash.
    """

    array: Any
    mask: Any
    fill: int = 0


class Omitted(NamedTuple):
    """A tensor that is not written at all, such as the history of a request's tokens; ``fill`` when it is read back.

    dtype: of numpy, as text.
    """

    shape: tuple[int, ...]
    dtype: str
    fill: int = 0


class _Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One array of an entry.

    start, size: bytes behind the entry's fields. edges: bytes of them that hold where used elements start and end in
    turn, in C order. entry: number of the earlier entry whose array this is, ``field`` its name there.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    size: int = 0
    edges: int = 0
    fill: int | None = None
    entry: int | None = None
    field: str = ""


class _Fields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """constants: fields that are no tensors: host integers and None."""

    step: int
    operator: str
    axes: dict[str, Any]
    arrays: dict[str, _Stored] = {}
    constants: dict[str, int | None] = {}


class CaptureWriter:
    """Appends entries to a new file. Raises CaptureError where it exists or cannot be written."""

    def __init__(self, path: str | Path, header: Header) -> None:
        self.path = Path(path)
        self._count = 0
        #: Contents -> where an entry holds them.
        self._known: dict[tuple, tuple[int, str]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - lives as long as the capture
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot be written: {error.strerror}") from None
        self._write(MAGIC + _framed(msgspec.json.encode(header)))

    def add(
        self,
        step: int,
        operator: str,
        axes: Mapping[str, int | float | str | bool],
        tensors: Mapping[str, Any],
    ) -> int:
        """Append the inputs of an operator in a step of the engine. Returns the bytes that it took.

        axes:    of the operator's point; those left out have their defaults.
        tensors: field of the operator's Inputs -> a torch tensor on any device, a numpy array, Used, Omitted, a host
                 integer or None.
        """
        arrays, constants, blobs, start = {}, {}, [], 0
        known = {}
        for name, value in tensors.items():
            if value is None or (isinstance(value, (int, np.integer)) and not isinstance(value, bool)):
                constants[name] = None if value is None else int(value)
                continue
            stored, blob = _stored(value)
            key = stored.dtype, stored.shape, stored.edges, stored.fill, blake2b(blob).digest()
            if (place := self._known.get(key) or known.get(key)) is not None:
                arrays[name] = msgspec.structs.replace(stored, entry=place[0], field=place[1], size=0, edges=0)
                continue
            known[key] = self._count, name
            arrays[name] = msgspec.structs.replace(stored, start=start)
            blobs.append(blob)
            start += len(blob)
        fields = _Fields(step=step, operator=operator, axes=dict(axes), arrays=arrays, constants=constants)
        text = msgspec.json.encode(fields)
        written = self._write(_framed(b"".join((_LENGTH.pack(len(text)), text, *blobs))))
        self._known |= known
        self._count += 1
        return written

    def _write(self, content: bytes) -> int:
        unwritten = memoryview(content)
        try:
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        except OSError as error:
            raise CaptureError(f"{self.path}: cannot be written: {error.strerror}; entries before are kept") from None
        return len(content)

    def close(self) -> None:
        self._file.close()


class Entry:
    """The inputs of one operator in one step. Arrays are decompressed when they are read.

    number: its place in the file. axes: as captured. crc32: of its bytes in the file.
    """

    def __init__(self, capture: Capture, number: int, fields: _Fields, blobs: memoryview, crc32: int) -> None:
        self._capture, self._fields, self._blobs = capture, fields, blobs
        self.number, self.crc32 = number, crc32
        self.step, self.operator, self.axes = fields.step, fields.operator, fields.axes

    @property
    def size(self) -> int:
        """Bytes of its arrays in the file, without those that an earlier entry holds."""
        return len(self._blobs)

    @property
    def fields(self) -> frozenset[str]:
        """Names of its arrays."""
        return frozenset(self._fields.arrays)

    @property
    def values(self) -> dict[str, np.ndarray | int | None]:
        """By field, in full shape. Raises CaptureError where the entry that holds an array is damaged."""
        return {name: self.array(name) for name in self._fields.arrays} | self._fields.constants

    def array(self, name: str) -> np.ndarray:
        """One field of ``values``."""
        stored = self._fields.arrays[name]
        if stored.entry is not None:
            holder = self if stored.entry == self.number else self._capture.by_number.get(stored.entry)
            if holder is None:
                raise CaptureError(
                    f"{self._capture.path}: {name} of entry {self.number} is in entry {stored.entry}, which is damaged"
                )
            return holder.array(stored.field)
        blob = self._blobs[stored.start : stored.start + stored.size]
        if stored.fill is None:
            return _decoded(blob, stored.dtype).reshape(stored.shape).copy()
        flat = np.full(int(np.prod(stored.shape)), stored.fill, stored.dtype)
        if stored.size:
            mask = np.zeros(len(flat) + 1, np.int8)
            np.add.at(mask, _decoded(blob[: stored.edges], "<i8").reshape(-1, 2), [1, -1])
            flat[mask[:-1].cumsum(dtype=np.int8).astype(bool)] = _decoded(blob[stored.edges :], stored.dtype)
        return flat.reshape(stored.shape)


class Capture:
    """What ``read_capture`` returns. problems: a sentence for each entry that could not be read."""

    def __init__(self, path: str | Path, header: Header) -> None:
        self.path, self.header = Path(path), header
        self.by_number: dict[int, Entry] = {}
        self.problems: list[str] = []

    @property
    def entries(self) -> list[Entry]:
        return list(self.by_number.values())


def read_capture(path: str | Path) -> Capture:
    """Read a capture file. What is damaged or, at the end, incomplete is left out and told in ``problems``.

    Raises CaptureError where there is no header, or one of another schema.
    """
    try:
        content = memoryview(Path(path).read_bytes())
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror}") from None
    if bytes(content[: len(MAGIC)]) != MAGIC:
        raise CaptureError(f"{path}: not a capture file of this suite")
    frames = _frames(content, len(MAGIC))
    head, sound, _ = next(frames, (None, False, 0))
    if head is None or not sound:
        raise CaptureError(
            f"{path}: its header is {'incomplete' if head is None else 'damaged'}, so nothing is known of it"
        )
    capture = Capture(path, _header(path, head))
    for number, (rest, sound, crc32) in enumerate(frames):
        if rest is None:
            capture.problems.append(
                f"entry {number}, the last one, is incomplete, as when the engine is killed; those before it are read"
            )
            break
        try:
            length = _LENGTH.unpack_from(rest)[0] + _LENGTH.size
            fields = msgspec.json.decode(rest[_LENGTH.size : length], type=_Fields)
        except (*UNREADABLE, struct.error):
            fields = None
        if not sound or fields is None:
            what = f" ({fields.operator}, step {fields.step})" if fields is not None else ""
            why = "cannot be decoded" if sound else "has a wrong checksum"
            capture.problems.append(f"entry {number}{what} {why} and is left out")
            continue
        capture.by_number[number] = Entry(capture, number, fields, rest[length:], crc32)
    return capture


def _header(path: str | Path, content: memoryview) -> Header:
    try:
        plain = msgspec.json.decode(content, type=dict[str, Any])
        if plain.get("schema") != SCHEMA:
            raise CaptureError(
                f"{path}: schema {plain.get('schema')!r}, this suite reads {SCHEMA}; "
                "capture again, or read it with the version that wrote it"
            )
        return msgspec.convert(plain, Header)
    except UNREADABLE as error:
        raise CaptureError(f"{path}: its header cannot be read ({error}); capture again") from None


def _frames(content: memoryview, start: int) -> Iterator[tuple[memoryview | None, bool, int]]:
    """(rest, or None if incomplete; whether its checksum is right; checksum) of each frame from ``start`` on."""
    while start < len(content):
        if start + _FRAME.size > len(content):
            yield None, False, 0
            return
        length, checksum = _FRAME.unpack_from(content, start)
        rest = content[start + _FRAME.size : start + _FRAME.size + length]
        if len(rest) < length:
            yield None, False, 0
            return
        start += _FRAME.size + length
        yield rest, _checksum(rest) == checksum, checksum


def _framed(rest: bytes) -> bytes:
    return _FRAME.pack(len(rest), _checksum(rest)) + rest


def _checksum(rest: bytes | memoryview) -> int:
    return zlib.crc32(rest, zlib.crc32(_LENGTH.pack(len(rest))))


def _stored(value: Any) -> tuple[_Stored, bytes]:
    """How a tensor is written, and its bytes."""
    if isinstance(value, Omitted):
        dtype = np.dtype(value.dtype)
        return _Stored(dtype=dtype.str, shape=tuple(value.shape), fill=value.fill), b""
    array = _on_host(value.array if isinstance(value, Used) else value)
    if not isinstance(value, Used):
        blob = _encoded(array)
        return _Stored(dtype=array.dtype.str, shape=array.shape, size=len(blob)), blob
    mask = _on_host(value.mask)
    if mask.shape != array.shape or mask.dtype != bool:
        raise ValueError(f"the mask of {array.shape} is {mask.dtype} {mask.shape}; it must be bool, of the same shape")
    edges = _encoded(np.flatnonzero(np.diff(mask.ravel().astype(np.int8), prepend=0, append=0)).astype("<i8"))
    blob = edges + _encoded(array[mask])
    stored = _Stored(dtype=array.dtype.str, shape=array.shape, size=len(blob), edges=len(edges), fill=value.fill)
    return stored, blob


def _on_host(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _encoded(array: np.ndarray) -> bytes:
    """First bytes of all elements, then the second ones ...: the high bytes of small integers are all zero."""
    columns = np.frombuffer(array.tobytes(), np.uint8).reshape(-1, array.dtype.itemsize)
    return zlib.compress(columns.T.tobytes(), 6)


def _decoded(blob: memoryview, dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    columns = np.frombuffer(zlib.decompress(blob), np.uint8).reshape(kind.itemsize, -1)
    return np.frombuffer(columns.T.tobytes(), kind)
