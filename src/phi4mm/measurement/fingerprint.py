"""Tells files of a model apart without reading them whole.

A fingerprint covers the header (metadata, tensor names, types, places) and the beginning of every
tensor, so two quantisations of one checkpoint differ, and so do two with the same types.  It finds
mix-ups; it does not prove that a file is undamaged, which takes its SHA-256.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phi4mm.modelfile.reader import GGUFFile

_TENSOR_BYTES: Final = 4096
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """One file of a bundle.

    Attributes:
        name: file name without its folder.
        n_bytes: size.
        fingerprint: 32 hexadecimal digits.
    """

    name: str
    n_bytes: int
    fingerprint: str


def identify(file: GGUFFile) -> FileIdentity:
    """The identity of an open file."""
    with file.path.open("rb") as stream:
        first = min((info.offset for info in file.tensors.values()), default=0)
        digest = hashlib.sha256(stream.read(first))
        for info in file.tensors.values():
            stream.seek(info.offset)
            digest.update(stream.read(min(info.n_bytes, _TENSOR_BYTES)))
    return FileIdentity(file.path.name, file.path.stat().st_size, digest.hexdigest()[:32])


def sha256(path: Path) -> str:
    """The SHA-256 of a whole file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
