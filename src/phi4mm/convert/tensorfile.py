"""A strict reader of one safetensors file: header checks first, then rows on demand.

In: a path.  Out: a table of ``SourceTensor`` whose rows are read, in blocks, as float32.  Nothing
is read beyond the header until a row is asked for, and no whole tensor is ever held.  Knows no
model.  Source of the format: the safetensors specification (eight-byte header length, JSON header,
contiguous little-endian data).
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from phi4mm.errors import ModelFileError

Rows = npt.NDArray[np.float32]
SourceKey: TypeAlias = tuple[Path, str]

PREFIX_BYTES = 8  # the length of the header
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors specification
_LFS_SIGNATURE = b"version https://git-lfs.github.com/spec/"
_STORED_TYPES: dict[str, np.dtype[np.generic]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor of a checkpoint, still on disk.

    Attributes:
        name: its name in the checkpoint.
        dtype: ``F32``, ``F16`` or ``BF16``.
        shape: as stored, slowest axis first.
        path: the file it lies in.
        data: its bytes, mapped; its length is ``n_elements`` times the type's size.  Empty where
            only the header of the file is here.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    data: memoryview = field(repr=False, compare=False)

    @property
    def key(self) -> SourceKey:
        """Tells it from all other tensors of a checkpoint."""
        return self.path, self.name

    @property
    def sources(self) -> tuple[SourceTensor, ...]:
        """Itself: it is a source of rows."""
        return (self,)

    @property
    def n_rows(self) -> int:
        """Length of the slowest axis; 1 for a vector."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def n_bytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * _STORED_TYPES[self.dtype].itemsize

    @property
    def n_cols(self) -> int:
        """Elements of one row: everything but the slowest axis."""
        return math.prod(self.shape[1:]) if len(self.shape) > 1 else math.prod(self.shape)

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop`` as float32, shape ``(stop - start, n_cols)``, exactly."""
        stored = _STORED_TYPES[self.dtype]
        flat = np.frombuffer(self.data, stored)[start * self.n_cols : stop * self.n_cols]
        rows = flat.reshape(stop - start, self.n_cols)
        if self.dtype == "BF16":  # bfloat16 is the upper half of a float32
            widened = np.left_shift(rows, 16, dtype=np.uint32, casting="unsafe")
            return np.asarray(widened).view(np.float32)
        return rows.astype(np.float32)


def open_tensors(path: Path) -> dict[str, SourceTensor]:
    """The tensors of a safetensors file, by name, in the order of their data.

    Raises:
        ModelFileError: the file is a Git LFS pointer, truncated, or its header is not what the
            format asks for.
    """
    refuse_lfs_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        n_header = header_length(path, file.read(PREFIX_BYTES))
        start = PREFIX_BYTES + n_header
        if start > size:
            raise _truncated(path, start, size)
        described = describe_tensors(path, file.read(n_header), size)
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[start:]
    end = 0
    tensors = {}
    for tensor in described.values():  # they follow each other
        begin, end = end, end + tensor.n_bytes
        tensors[tensor.name] = replace(tensor, data=data[begin:end])
    return tensors


def header_length(path: Path, prefix: bytes) -> int:
    """Bytes of the JSON header, from the first ``PREFIX_BYTES`` of the file.

    Raises:
        ModelFileError: no safetensors file begins like this.
    """
    n_header = int.from_bytes(prefix, "little")
    if len(prefix) < PREFIX_BYTES or not 2 <= n_header <= _MAX_HEADER_BYTES:
        raise ModelFileError(f"{path}: not a safetensors file (header length {n_header})")
    return n_header


def describe_tensors(path: Path, header: bytes, size: int) -> dict[str, SourceTensor]:
    """The tensors of a file of which only the header is here, in the order of their data.

    Args:
        path: what the file is or will be called.
        header: the JSON header.
        size: bytes of the whole file.

    Raises:
        ModelFileError: the header is not what the format asks for, or of a file of another size.
    """
    start = PREFIX_BYTES + len(header)
    found = list(_tensors(path, _parse_header(path, header)))
    whole = start + sum(tensor.n_bytes for tensor in found)
    if whole > size:
        raise _truncated(path, whole, size)
    if whole < size:
        raise ModelFileError(f"{path}: {size - whole} bytes after the last tensor")
    return {tensor.name: tensor for tensor in found}


def refuse_lfs_pointer(path: Path) -> None:
    """Raise ``ModelFileError`` if the file is a Git LFS pointer instead of the file itself."""
    with path.open("rb") as file:
        head = file.read(1024)
    if not head.startswith(_LFS_SIGNATURE):
        return
    sizes = [line[5:] for line in head.decode("ascii", "replace").splitlines() if "size " in line]
    stands_for = f" of {sizes[0]} bytes" if sizes else ""
    raise ModelFileError(
        f"{path}: a Git LFS pointer, not the file{stands_for} it stands for; "
        "run `git lfs pull` in its folder"
    )


def parse_json_object(path: Path, text: bytes | str) -> dict[str, object]:
    """A JSON object with unique keys, or ``ModelFileError`` naming the file and the place."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ModelFileError(f"{path}: broken JSON (nested too deeply)") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError and duplicates
        raise ModelFileError(f"{path}: broken JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds a JSON {type(value).__name__}, not an object")
    return value


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return found


def _parse_header(path: Path, text: bytes) -> dict[str, object]:
    header = parse_json_object(path, text)
    header.pop("__metadata__", None)
    return header


def _tensors(path: Path, header: dict[str, object]) -> Iterator[SourceTensor]:
    entries = sorted((_entry(path, name, entry) for name, entry in header.items()), key=_begin)
    expected = 0
    for name, dtype, shape, (begin, end) in entries:
        if begin != expected:
            raise ModelFileError(
                f"{path}: data of {name!r} begins at byte {begin}, not {expected}: "
                "tensors overlap or leave a gap"
            )
        yield SourceTensor(name, dtype, shape, path, memoryview(b""))
        expected = end


_Entry = tuple[str, str, tuple[int, ...], tuple[int, int]]


def _begin(entry: _Entry) -> tuple[int, int]:
    return entry[3]


def _entry(path: Path, name: str, entry: object) -> _Entry:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise ModelFileError(f"{path}: {name!r}: no dtype, shape and data_offsets of two")
    if dtype not in _STORED_TYPES:
        known = ", ".join(_STORED_TYPES)
        raise ModelFileError(f"{path}: {name!r}: dtype {dtype} is not supported ({known} are)")
    if not all(type(n) is int and n > 0 for n in shape):
        raise ModelFileError(f"{path}: {name!r}: bad shape {shape}")
    n_bytes = math.prod(shape) * _STORED_TYPES[dtype].itemsize
    if begin < 0 or end - begin != n_bytes:
        raise ModelFileError(
            f"{path}: {name!r}: {dtype} {shape} takes {n_bytes} bytes, "
            f"its data_offsets [{begin}, {end}] hold {end - begin}"
        )
    return name, dtype, tuple(shape), (begin, end)


def _truncated(path: Path, whole: int, size: int) -> ModelFileError:
    return ModelFileError(f"{path}: truncated: {size} of {whole} bytes; download it again")
