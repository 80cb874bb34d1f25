"""What the tests of measuring share."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phi4mm.cli.main import main
from phi4mm.cli.options import sample_bundle
from phi4mm.modelfile.bundle import Bundle

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
