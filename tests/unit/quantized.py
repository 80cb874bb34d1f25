"""What the tests of quantising share: runs of the command, made once, and weights read back."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from phi4mm.cli.main import main
from phi4mm.modelfile.reader import GGUFFile


def run(*args: object) -> int:
    """Run a command in this process."""
    return main([str(arg) for arg in args])


def weights(file: GGUFFile, name: str) -> NDArray[np.float32]:
    """The weights of a tensor of any type, by the gguf package instead of ours."""
    kind = gguf.GGMLQuantizationType(int(file.tensors[name].ggml_type))
    data = file.data(name)
    rows = gguf.quants.dequantize(data.view(np.uint8) if data.dtype == np.uint16 else data, kind)
    return np.asarray(rows, np.float32)


def decoder_of(folder: Path) -> GGUFFile:
    """The decoder file of a bundle's folder."""
    from phi4mm.modelfile.bundle import Bundle

    return Bundle.open(folder).decoder.file
