"""A file that appears under its name only when it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from phi4mm.errors import InputError


@contextmanager
def staged_file(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary name beside ``path``; renamed at the end, removed on failure.

    Raises:
        InputError: the file cannot be made or written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
