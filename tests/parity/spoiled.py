"""A copy of a bundle whose files are changed in place: one number or one tensor at a time."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.reader import GGUFFile

# GGUF's numbers for types of metadata, and their formats.
_FORMATS = {4: "<I", 6: "<f"}
_ARRAY = 9


class SpoiledBundle:
    """A bundle that may be changed; its parts are "decoder", "mmproj", "vision" and "speech".

    Args:
        original: folder of the bundle to copy.
        folder: where the copy goes.
    """

    def __init__(self, original: Path, folder: Path) -> None:
        self.folder = shutil.copytree(original, folder, dirs_exist_ok=True)
        with Bundle.open(self.folder) as bundle:
            self._paths = {
                "decoder": bundle.decoder.path,
                "mmproj": bundle.mmproj.path,
                **{name: part.path for name, part in bundle.adapters.items()},
            }

    def number(self, part: str, key: str, change: Callable[[float], float]) -> None:
        """Changes a metadata value, or every element of an array."""
        path = self._paths[part]
        data = bytearray(path.read_bytes())
        name = struct.pack("<Q", len(key)) + key.encode()
        assert data.count(name) == 1, f"{key} is not in {path}"
        start, n = data.index(name) + len(name), 1
        (kind,) = struct.unpack_from("<I", data, start)
        start += 4
        if kind == _ARRAY:
            kind, n = struct.unpack_from("<IQ", data, start)
            start += 12
        for offset in range(start, start + 4 * n, 4):
            (value,) = struct.unpack_from(_FORMATS[kind], data, offset)
            struct.pack_into(_FORMATS[kind], data, offset, change(value))
        path.write_bytes(data)

    def tensor(self, part: str, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Changes an F32 tensor: ``change`` gets a copy and returns the new values."""
        stored = self._map(part, name)
        stored[...] = change(np.array(stored))
        stored.flush()

    def swap(self, part: str, one: str, other: str) -> None:
        """Exchanges two tensors of one shape."""
        a, b = self._map(part, one), self._map(part, other)
        a[...], b[...] = np.array(b), np.array(a)
        a.flush()
        b.flush()

    def _map(self, part: str, name: str) -> np.memmap:
        with GGUFFile.open(self._paths[part]) as file:
            info = file.tensors[name]
        return np.memmap(self._paths[part], np.float32, "r+", info.offset, info.shape)
