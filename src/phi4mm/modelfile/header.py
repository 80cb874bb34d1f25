"""Strict parser of a GGUF header: bytes in, metadata and tensor descriptions out.

Every count, length and offset is checked before it is used, so that any bytes give either a header
that describes this very file or a :class:`~phi4mm.errors.ModelFileError`.  Where the format leaves
room, the rule is that of llama.cpp's reader or stricter, so nothing accepted here is refused there.
Source: ``docs/gguf.md`` and ``gguf.cpp`` of the ggml project.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Final, NoReturn

import numpy as np

from phi4mm.errors import ModelFileError
from phi4mm.modelfile import keys
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.keys import ValueType
from phi4mm.modelfile.metadata import Entry, Metadata, NumericArray, StringArray
from phi4mm.modelfile.string_walk import Lengths, short_lengths

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)

# Bounds above what the real model has: 200 064 tokens, as many merges, 1 400 tensors, 8 MB.
MAX_KEYS: Final = 4096
MAX_TENSORS: Final = 1 << 12
MAX_STRINGS: Final = 1 << 19  # elements of all string arrays together
MAX_HEADER_BYTES: Final = 16 << 20
MAX_STRING_BYTES: Final = 1 << 20
MAX_KEY_BYTES: Final = 255
MAX_NAME_BYTES: Final = 63  # GGML_MAX_NAME less its NUL
MAX_DIMS: Final = 4
DEFAULT_ALIGNMENT: Final = 32
ALIGNMENTS: Final = tuple(1 << n for n in range(5, 17))  # mapped weights must lie on 32 bytes

_TYPES: Final[tuple[ValueType | None, ...]] = (
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", None, "u64", "i64", "f64",
)  # fmt: skip
_ARRAY: Final = 9
_DTYPES: Final[dict[ValueType, np.dtype[np.generic]]] = {
    "u8": np.dtype("u1"), "i8": np.dtype("i1"), "u16": np.dtype("<u2"), "i16": np.dtype("<i2"),
    "u32": np.dtype("<u4"), "i32": np.dtype("<i4"), "u64": np.dtype("<u8"), "i64": np.dtype("<i8"),
    "f32": np.dtype("<f4"), "f64": np.dtype("<f8"), "bool": np.dtype("?"),
}  # fmt: skip
# Strings walked over between two searches for many, and how many a search must find to be worth
# it.  Where it is not, the walks grow: a file of strings that stop each search costs little.
_FEWEST_STEPS: Final = 64
_WORTH_A_SEARCH: Final = 1024
_TENSOR_TYPES: Final = frozenset(map(int, GGMLType))
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is.

    Attributes:
        name: tensor name.
        shape: ``(rows, cols)`` order; the reverse of ggml's ``ne``.
        ggml_type: element type.
        offset: first byte, counted from the start of the file.
        n_bytes: bytes of data.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header.

    Attributes:
        version: GGUF version.
        metadata: the metadata.
        tensors: tensors by name, in file order.
    """

    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


def parse_header(buffer: memoryview, source: str) -> Header:
    """Parse the header of a GGUF file.

    Args:
        buffer: the whole file.
        source: what error messages call it.

    Raises:
        ModelFileError: the bytes are not a GGUF file that can be read whole.
    """
    cursor = _Cursor(buffer, source)
    version = _read_version(cursor)
    n_tensors = cursor.count("tensors", MAX_TENSORS)
    n_keys = cursor.count("metadata keys", MAX_KEYS)
    entries: dict[str, Entry] = {}
    _read_entries(cursor, n_keys, entries)
    metadata = Metadata(source, entries)
    alignment = _alignment(metadata)
    tensors = _read_tensors(cursor, n_tensors, alignment)
    return Header(version, metadata, tensors)


def peek_metadata(buffer: memoryview, source: str) -> Metadata:
    """The metadata entries that lie whole in the first bytes of a file, which may be cut anywhere.

    Args:
        buffer: the beginning of the file.
        source: what error messages call it.

    Raises:
        ModelFileError: no GGUF file begins like this.
    """
    if bytes(buffer[: len(MAGIC)]) != MAGIC:
        raise ModelFileError(f"{source}: not a GGUF file")
    cursor = _Cursor(buffer, source)
    entries: dict[str, Entry] = {}
    try:
        _read_version(cursor)
        cursor.count("tensors", MAX_TENSORS)
        _read_entries(cursor, cursor.count("metadata keys", MAX_KEYS), entries)
    except _PastEnd:
        pass  # what came before is known
    return Metadata(source, entries)


class _PastEnd(ModelFileError):
    """The header goes on where the bytes end."""


class _Cursor:
    """A position in the buffer; every read is checked against the buffer's end."""

    def __init__(self, buffer: memoryview, source: str) -> None:
        self.buffer = buffer
        self.source = source
        self.end = min(len(buffer), MAX_HEADER_BYTES)
        self.pos = 0
        self.where = "the header"
        self.strings_left = MAX_STRINGS

    def fail(self, text: str) -> NoReturn:
        raise ModelFileError(f"{self.source}: {text}")

    def take(self, n: int) -> int:
        """Advance by ``n`` bytes and return where they begin."""
        start, self.pos = self.pos, self.pos + n
        if self.pos > self.end:
            self._past_end(start, n)
        return start

    def _past_end(self, start: int, n: int) -> NoReturn:
        if self.end < len(self.buffer):
            self.fail(
                f"{self.where} reaches past {MAX_HEADER_BYTES >> 20} MiB, "
                f"the most a header may have: the file is damaged"
            )
        raise _PastEnd(
            f"{self.source}: {self.where} needs {n} bytes at byte {start}, but the file has "
            f"{len(self.buffer)}: it is truncated or damaged"
        )

    def u32(self) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8))[0])

    def count(self, what: str, limit: int) -> int:
        n = self.u64()
        if n > limit:
            self.fail(
                f"the header announces {n} {what}, at most {limit} are possible: it is damaged"
            )
        return n

    def string(self, limit: int) -> str:
        n = self.u64()
        if n > limit:
            self.fail(f"{self.where} has a string of {n} bytes, at most {limit} are possible")
        start = self.take(n)
        try:
            return str(self.buffer[start : start + n], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{self.where} has a string that is not UTF-8: {error.reason}")

    def identifier(self, limit: int) -> str:
        text = self.string(limit)
        if not text or not text.isascii() or not text.isprintable():
            self.fail(f"{self.where} has the name {text!r}, must be printable ASCII, not empty")
        return text

    def skip_strings(self, n: int) -> Lengths:
        """Pass over ``n`` strings, checking their lengths, and return these."""
        lengths = np.empty(n, np.int64)
        n_done, n_steps = 0, _FEWEST_STEPS
        while n_done < n:
            walked = self._walk(min(n_steps, n - n_done))
            lengths[n_done : n_done + len(walked)] = walked
            n_done += len(walked)
            if n_done < n:
                short = short_lengths(self.buffer[self.pos : self.end])[: n - n_done]
                lengths[n_done : n_done + len(short)] = short
                self.take(int(short.sum()) + 8 * len(short))
                n_done += len(short)
                n_steps = _FEWEST_STEPS if len(short) > _WORTH_A_SEARCH else 2 * n_steps
        return lengths

    def _walk(self, n: int) -> list[int]:
        """Pass over strings one by one."""
        pos, lengths = self.pos, []
        unpack, buffer, last = _U64.unpack_from, self.buffer, self.end - 8
        for _ in range(n):
            if pos > last:
                self._past_end(pos, 8)
            (length,) = unpack(buffer, pos)
            if length > MAX_STRING_BYTES:
                self.fail(
                    f"{self.where} has a string of {length} bytes, "
                    f"at most {MAX_STRING_BYTES} are possible"
                )
            lengths.append(length)
            pos += 8 + length
        self.take(pos - self.pos)
        return lengths


def _read_version(cursor: _Cursor) -> int:
    cursor.take(len(MAGIC))
    version = cursor.u32()
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        cursor.fail("a big-endian GGUF file: only little-endian files can be read")
    cursor.fail(f"GGUF version {version}, must be 2 or 3")


def _read_entries(cursor: _Cursor, n_keys: int, entries: dict[str, Entry]) -> None:
    for index in range(n_keys):
        cursor.where = f"metadata key {index}"
        key = cursor.identifier(MAX_KEY_BYTES)
        if key in entries:
            cursor.fail(f"metadata key {key} appears twice")
        cursor.where = f"metadata key {key}"
        entries[key] = _read_entry(cursor)


def _read_entry(cursor: _Cursor) -> Entry:
    number = cursor.u32()
    if number == _ARRAY:
        return _read_array(cursor)
    type_ = _value_type(cursor, number)
    if type_ == "str":
        return Entry(type_, False, cursor.string(MAX_STRING_BYTES))
    value = _numbers(cursor, type_, 1)[0].item()
    return Entry(type_, False, value)


def _read_array(cursor: _Cursor) -> Entry:
    number = cursor.u32()
    if number == _ARRAY:
        cursor.fail(f"{cursor.where} is an array of arrays, which no reader supports")
    type_ = _value_type(cursor, number)
    n = cursor.u64()
    if type_ != "str":
        return Entry(type_, True, _numbers(cursor, type_, n))
    if n > cursor.strings_left:
        cursor.fail(f"{cursor.where} has {n} strings, at most {MAX_STRINGS} are possible in a file")
    cursor.strings_left -= n
    start = cursor.pos
    lengths = cursor.skip_strings(n)
    data = bytes(cursor.buffer[start : cursor.pos])  # a copy, so that the file can be unmapped
    return Entry(type_, True, StringArray(f"{cursor.source}: {cursor.where}", data, lengths))


def _value_type(cursor: _Cursor, number: int) -> ValueType:
    type_ = _TYPES[number] if number < len(_TYPES) else None
    if type_ is None:
        cursor.fail(f"{cursor.where} has value type {number}, must be 0 to {len(_TYPES) - 1}")
    return type_


def _numbers(cursor: _Cursor, type_: ValueType, n: int) -> NumericArray:
    dtype = _DTYPES[type_]
    start = cursor.take(n * dtype.itemsize)
    if type_ == "bool":
        raw = np.frombuffer(cursor.buffer, np.uint8, n, start)
        if n and raw.max() > 1:
            cursor.fail(f"{cursor.where} has a boolean of {raw.max()}, must be 0 or 1")
    values: NumericArray = np.frombuffer(cursor.buffer, dtype, n, start).copy()
    values.flags.writeable = False
    return values


def _alignment(metadata: Metadata) -> int:
    key = keys.General.ALIGNMENT
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    alignment = int(metadata.number(key))
    if alignment not in ALIGNMENTS:
        raise metadata.error(
            f"{key} is {alignment}, must be a power of two, {ALIGNMENTS[0]} to {ALIGNMENTS[-1]}"
        )
    return alignment


@dataclass(frozen=True, slots=True)
class _Description:
    """A tensor as the header tells it, before its place in the file is known to be right."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    n_bytes: int
    relative_offset: int


def _read_tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    described = [_read_description(cursor, index) for index in range(n_tensors)]
    start = offset = -(-cursor.pos // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for d in described:
        if d.name in tensors:
            cursor.fail(f"tensor {d.name} appears twice")
        if d.relative_offset != offset - start:
            cursor.fail(
                f"tensor {d.name} has offset {d.relative_offset}, must be {offset - start} "
                f"(tensors follow each other, aligned to {alignment})"
            )
        tensors[d.name] = TensorInfo(d.name, d.shape, d.ggml_type, offset, d.n_bytes)
        end = offset + d.n_bytes
        if end > len(cursor.buffer):
            cursor.fail(
                f"tensor {d.name} ends at byte {end}, but the file has {len(cursor.buffer)}: "
                f"it is truncated"
            )
        offset = -(-end // alignment) * alignment
    _check_tail(cursor, offset)
    return tensors


def _read_description(cursor: _Cursor, index: int) -> _Description:
    cursor.where = f"tensor {index}"
    name = cursor.identifier(MAX_NAME_BYTES)
    cursor.where = f"tensor {name}"
    n_dims = cursor.u32()
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"tensor {name} has {n_dims} dimensions, must have 1 to {MAX_DIMS}")
    shape = tuple(cursor.u64() for _ in range(n_dims))[::-1]
    if min(shape) < 1:
        cursor.fail(f"tensor {name} has shape {shape}, no dimension may be 0")
    number = cursor.u32()
    if number not in _TENSOR_TYPES:
        cursor.fail(f"tensor {name} has type {number}, which is not a GGUF tensor type")
    type_ = GGMLType(number)
    if shape[-1] % type_.block_size:
        cursor.fail(
            f"tensor {name} has rows of {shape[-1]}, "
            f"must be a multiple of {type_.block_size} for {type_.name}"
        )
    n_bytes = prod(shape[:-1]) * type_.row_bytes(shape[-1])
    return _Description(name, shape, type_, n_bytes, cursor.u64())


def _check_tail(cursor: _Cursor, end: int) -> None:
    surplus = len(cursor.buffer) - end
    if surplus > 0:
        cursor.fail(
            f"{surplus} bytes follow the last tensor, where the file must end: it is damaged"
        )
