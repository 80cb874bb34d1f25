"""A GGUF file, opened read-only and mapped: checked metadata, tensors, views of their data."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from phi4mm.errors import ModelFileError
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.header import MAGIC, TensorInfo, parse_header
from phi4mm.modelfile.metadata import Metadata

_DTYPES: dict[GGMLType, np.dtype[Any]] = {
    GGMLType.F32: np.dtype("<f4"),
    GGMLType.F16: np.dtype("<f2"),
    GGMLType.BF16: np.dtype("<u2"),
    GGMLType.F64: np.dtype("<f8"),
    GGMLType.I8: np.dtype("i1"),
    GGMLType.I16: np.dtype("<i2"),
    GGMLType.I32: np.dtype("<i4"),
    GGMLType.I64: np.dtype("<i8"),
}


class GGUFFile:
    """One GGUF file.

    Closing lets go of the mapping; it is unmapped when the last view of its data is gone, so a
    view stays valid as long as someone holds it.

    Attributes:
        path: the file.
        version: GGUF version.
        metadata: checked access to the metadata.
        tensors: descriptions by name, in file order.
    """

    def __init__(self, path: Path, buffer: memoryview) -> None:
        header = parse_header(buffer, str(path))
        self.path = path
        self.version: int = header.version
        self.metadata: Metadata = header.metadata
        self.tensors: dict[str, TensorInfo] = header.tensors
        self._buffer: memoryview | None = buffer

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Open and check a file.

        Raises:
            ModelFileError: there is no such file, or it is not a whole and sound GGUF file.
        """
        path = Path(path)
        return cls(path, _map(path))

    def data(self, name: str) -> npt.NDArray[Any]:
        """Read-only view of a tensor's data, of its shape.

        F32, F16, F64 and integers have their own dtype; BF16 is uint16; a quantised tensor is
        uint8 with the bytes of a row as its last axis.
        """
        info = self.tensors[name]
        raw = self.raw(name)
        dtype = _DTYPES.get(info.ggml_type)
        if dtype is not None:
            return np.frombuffer(raw, dtype).reshape(info.shape)
        return raw.reshape(*info.shape[:-1], info.ggml_type.row_bytes(info.shape[-1]))

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Read-only view of a tensor's bytes, (n_bytes,) uint8."""
        if self._buffer is None:
            raise ValueError(f"{self.path} is closed")
        info = self.tensors[name]
        return np.frombuffer(self._buffer, np.uint8, info.n_bytes, info.offset)

    def close(self) -> None:
        """Let go of the mapping; closing twice is fine."""
        self._buffer = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _map(path: Path) -> memoryview:
    """Map a file that begins as a GGUF file does."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(f"{path}: a folder, must be a GGUF file")
        if not stat.S_ISREG(mode):
            raise ModelFileError(f"{path}: not a regular file, must be a GGUF file")
        with path.open("rb") as file:
            head = file.read(64)
            if not head.startswith(MAGIC):
                raise ModelFileError(f"{path}: {_what_instead(head)}")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name with a NUL character
        raise ModelFileError(f"{str(path)!r}: cannot be read: {error}") from None


def _what_instead(head: bytes) -> str:
    """Say what a file that is no GGUF file is."""
    if not head:
        return "an empty file, must be a GGUF file"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file itself: fetch it with git lfs pull"
    if head[8:10] in (b'{"', b"{ "):
        return "a safetensors file, must be a GGUF file: make one with phi4mm convert"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive or PyTorch checkpoint, must be a GGUF file"
    if head.lstrip()[:1] == b"<":
        return "a web page, not a GGUF file: the download went wrong"
    return f"not a GGUF file: it begins with {head[:4]!r}, must begin with {MAGIC!r}"
