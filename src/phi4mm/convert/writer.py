"""Writes GGUF files, tensor by tensor in blocks of rows, under temporary names until whole.

In: metadata and output tensors.  Out: a file, or nothing: ``StagedFiles`` removes what it wrote
unless every file of the set was finished.  Knows no model.
Source of the format: ``docs/gguf.md`` of the ggml project, version 3.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import numpy as np

from phi4mm.convert.encode import Bytes, Encode, NotFinite, encode_rows
from phi4mm.convert.rows import RowSource
from phi4mm.errors import ModelFileError
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import WritableMetadata, WritableValue
from phi4mm.modelfile.keys import Key, ValueType
from phi4mm.progress import Advance

ALIGNMENT: Final = 32
_ARRAY: Final = 9
_TYPES: Final[dict[ValueType, tuple[int, str]]] = {  # number, struct format
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
    "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "str": (8, ""), "u64": (10, "Q"),
    "i64": (11, "q"), "f64": (12, "d"),
}  # fmt: skip
# Weights of one block: small enough that a block and its encoding stay in a core's cache.
_BLOCK_WEIGHTS: Final = 1 << 18
_N_THREADS: Final = min(4, os.cpu_count() or 1)

_COPY_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One tensor of a file.

    Attributes:
        name: its name.
        shape: in the file: the last axis may be longer than the source's rows.
        ggml_type: a type that ``encode`` can make.
        rows: where its rows come from.
        encode: turns them into the type.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    rows: RowSource
    encode: Encode = encode_rows

    @property
    def n_bytes(self) -> int:
        """Bytes in the file."""
        n_rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return n_rows * self.ggml_type.row_bytes(self.shape[-1])

    @property
    def n_taken(self) -> int:
        """Bytes up to where the next tensor begins."""
        return _aligned(self.n_bytes)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A whole file, planned.

    Attributes:
        path: its final name.
        metadata: its keys, in the order they are written.
        tensors: its tensors, in the order they are written.
    """

    path: Path
    metadata: WritableMetadata
    tensors: Sequence[OutputTensor]

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return len(self.header()) + sum(tensor.n_taken for tensor in self.tensors)

    @property
    def offsets(self) -> list[int]:
        """Where each tensor's data begins in the file."""
        sizes = (tensor.n_taken for tensor in self.tensors)
        return list(accumulate(sizes, initial=len(self.header())))[:-1]

    def header(self) -> bytes:
        """Everything before the data."""
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.metadata))
        entries = b"".join(_entry(key, value) for key, value in self.metadata.items())
        infos, offset = [], 0
        for tensor in self.tensors:
            infos.append(_info(tensor, offset))
            offset += tensor.n_taken
        header = head + entries + b"".join(infos)
        return header + bytes(_aligned(len(header)) - len(header))


class StagedFiles:
    """A set of files that appears whole or not at all.

    Within the ``with`` block, ``write`` and ``copy`` make each file as ``NAME.part``.  When the
    block ends well they are all moved to their names; when it ends by an error or an interrupt they
    are all removed, with the folder if it was made here.
    """

    def __init__(self, folder: Path, n_threads: int = _N_THREADS) -> None:
        self._folder = folder
        self._n_threads = n_threads
        self._made: list[Path] = []
        self._parts: list[tuple[Path, Path]] = []

    def __enter__(self) -> StagedFiles:
        missing = [p for p in (self._folder, *self._folder.parents) if not p.exists()]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._made = missing
        return self

    def write(self, file: OutputFile, advance: Advance) -> None:
        """Write one file, calling ``advance`` with the number of bytes after each block."""
        with self._open(file.path) as stream:
            write_gguf(stream, file, advance, self._n_threads)

    def copy(self, source: Path, path: Path, advance: Advance) -> None:
        """Copy a file, calling ``advance`` with the number of bytes after each piece."""
        with source.open("rb") as original, self._open(path) as stream:
            while piece := original.read(_COPY_BYTES):
                stream.write(piece)
                advance(len(piece))

    @contextmanager
    def _open(self, path: Path) -> Iterator[BinaryIO]:
        part = path.with_name(path.name + ".part")
        self._parts.append((part, path))
        part.unlink(missing_ok=True)  # left behind by a process that was killed, or a link
        with part.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            for part, path in self._parts:
                part.replace(path)
            return
        for part, _ in self._parts:
            part.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else put something there meanwhile
            for folder in self._made:
                folder.rmdir()


def write_gguf(
    stream: BinaryIO, file: OutputFile, advance: Advance, n_threads: int = _N_THREADS
) -> None:
    """Write a file's header and its tensors.

    Raises:
        ModelFileError: a weight is not finite, or not within the range of its type.
    """
    header = file.header()
    stream.write(header)
    advance(len(header))
    with ThreadPoolExecutor(n_threads) as pool:
        for tensor in file.tensors:
            write_tensor(stream, tensor, advance, pool, n_threads)


def write_tensor(
    stream: BinaryIO,
    tensor: OutputTensor,
    advance: Advance,
    pool: ThreadPoolExecutor,
    n_threads: int = _N_THREADS,
) -> None:
    """Write a tensor's data where the stream stands, up to where the next tensor begins.

    Raises:
        ModelFileError: a weight is not finite, or not within the range of its type.
    """
    for encoded in _encoded_blocks(tensor, pool, 2 * n_threads):
        stream.write(encoded.data)
        advance(encoded.nbytes)
    padding = tensor.n_taken - tensor.n_bytes
    stream.write(bytes(padding))
    advance(padding)


def _encoded_blocks(
    tensor: OutputTensor, pool: ThreadPoolExecutor, n_ahead: int
) -> Iterator[Bytes]:
    """The tensor's bytes in order, ``n_ahead`` blocks being made ahead in the pool's threads."""
    n_rows = tensor.rows.n_rows
    step = max(1, _BLOCK_WEIGHTS // tensor.rows.n_cols)
    pending: deque[Future[Bytes]] = deque()
    for start in range(0, n_rows, step):
        pending.append(pool.submit(_encode_block, tensor, start, min(start + step, n_rows)))
        if len(pending) > n_ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _encode_block(tensor: OutputTensor, start: int, stop: int) -> Bytes:
    rows = tensor.rows.read(start, stop)
    padding = tensor.shape[-1] - rows.shape[1] if len(tensor.shape) == 2 else 0
    if padding > 0:
        rows = np.pad(rows, ((0, 0), (0, padding)))
    try:
        return tensor.encode(rows, tensor.ggml_type)
    except NotFinite as error:
        raise ModelFileError(f"{tensor.name}: {error}") from None


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key: Key, value: WritableValue) -> bytes:
    number, fmt = _TYPES[key.type]
    values = value if isinstance(value, list) else [value]
    assert isinstance(value, list) == key.is_array, key
    if key.type == "str":
        data = b"".join(_text(str(item)) for item in values)
    else:
        data = struct.pack(f"<{len(values)}{fmt}", *values)
    if key.is_array:
        return _text(key) + struct.pack("<IIQ", _ARRAY, number, len(values)) + data
    return _text(key) + struct.pack("<I", number) + data


def _info(tensor: OutputTensor, offset: int) -> bytes:
    ne = tensor.shape[::-1]
    dims = struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, tensor.ggml_type, offset)
    return _text(tensor.name) + dims
