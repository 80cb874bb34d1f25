"""What the tests of measuring share."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from phi4mm.cli.main import main
from phi4mm.cli.options import sample_bundle
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.reader import GGUFFile

_PLACES = [
    (first, second, third)
    for first in ("red", "old", "late")
    for second in ("ship", "lamp", "door")
    for third in ("sea", "hill", "night")
]
TEXT = "\n\n".join(
    f"The {first} {second} is {n} steps from the {third}, and {n * n} from anything else."
    for n, (first, second, third) in enumerate(_PLACES)
)


def run(*args: object) -> int:
    """Run a command in this process."""
    return main([str(arg) for arg in args])


def sample_decoder() -> Path:
    """The decoder file of the built-in bundle."""
    with Bundle.open(sample_bundle()) as bundle:
        return bundle.decoder.path


def sample_name() -> str:
    """What the built-in model is called."""
    return sample_decoder().name.removesuffix("-Q8_0.gguf")


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond this, as a disk does that fills up meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
