"""A bundle with weights that a disk or a download has spoilt."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from phi4mm.modelfile.reader import GGUFFile


def damaged(folder: Path, out: Path, tensor: str) -> Path:
    """A copy of a bundle in which a tensor of F32 is NaN throughout."""
    shutil.copytree(folder, out)
    for path in out.glob("*.gguf"):
        with GGUFFile.open(path) as file:
            stored = bytes(file.raw(tensor)) if tensor in file.tensors else None
        if stored is not None:
            content = path.read_bytes()
            assert content.count(stored) == 1
            nan = np.full(len(stored) // 4, np.nan, np.float32).tobytes()
            path.write_bytes(content.replace(stored, nan))
            return out
    raise LookupError(tensor)
