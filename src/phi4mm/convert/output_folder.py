"""The folder that files are written to: what it may not hold, and whether there is room.

Everything here is checked before the first byte is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from phi4mm.errors import InputError, ModelFileError
from phi4mm.modelfile.hparams.fields import bundle_id_of
from phi4mm.modelfile.reader import GGUFFile


def refuse_other_parts(folder: Path, targets: Collection[Path]) -> None:
    """Refuse a folder with a GGUF file beside those to be written.

    Raises:
        InputError: there is one.
    """
    for other in sorted(folder.glob("*.gguf")) if folder.is_dir() else ():
        if other not in targets:
            raise InputError(
                f"{other} is in the way: a bundle's folder holds one model, choose another"
            )


def refuse_other_model(path: Path, bundle_id: str | None) -> None:
    """Refuse to replace a file, unless it was made from the same checkpoint.

    Raises:
        InputError: it is there, and of another model.
    """
    if not path.exists():
        return
    try:
        with GGUFFile.open(path) as file:
            same = bundle_id is not None and bundle_id_of(file.metadata) == bundle_id
    except ModelFileError:
        same = False
    if not same:
        raise InputError(f"{path} is there already and of another model: remove it first")


def check_space(folder: Path, n_bytes: int) -> None:
    """Check that the files will fit.

    Raises:
        InputError: there is no room, or the folder is a file.
    """
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise InputError(f"{existing} is a file, must be a folder")
    free = shutil.disk_usage(existing).free
    if free < n_bytes:
        raise InputError(
            f"{folder}: the files need {n_bytes / 1e9:.2f} GB, {free / 1e9:.2f} GB are free"
        )


@contextmanager
def readable_os_errors() -> Iterator[None]:
    """Missing permissions, full disks and the like are the user's to mend."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or 'output'}: {error.strerror or error}") from error
