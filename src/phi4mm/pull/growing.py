"""GGUF files that are written tensor by tensor, in whatever order the tensors can be made.

Each file has its whole size from the beginning, so that a disk cannot become full half-way, and is
called ``NAME.part`` until the set is complete.  What was written stays there when the work is
interrupted; ``journal`` tells what that is.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phi4mm.convert.writer import OutputFile, OutputTensor, write_tensor
from phi4mm.errors import InputError
from phi4mm.progress import Advance

_N_THREADS = min(4, os.cpu_count() or 1)


def part_path(path: Path) -> Path:
    """What a file is called until it is whole."""
    return path.with_name(path.name + ".part")


def layout_of(files: Sequence[OutputFile]) -> str:
    """Tells plans apart: what was written for one can be used for another with the same layout."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.path.name.encode() + b"\0" + file.header())
    return digest.hexdigest()


class GrowingFiles:
    """A set of files on its way.

    Args:
        files: their plans; the headers need not be final, but as long as the final ones.
    """

    def __init__(self, files: Sequence[OutputFile]) -> None:
        self._files = files
        self._offsets = [file.offsets for file in files]

    @property
    def n_missing(self) -> int:
        """Bytes of disk that are still to be taken."""
        parts = [part_path(file.path) for file in self._files]
        taken = sum(part.stat().st_size for part in parts if part.exists())
        return max(0, sum(file.n_bytes for file in self._files) - taken)

    def reserve(self) -> None:
        """Give every file its size.

        Raises:
            InputError: the disk is full.
        """
        for file in self._files:
            part = part_path(file.path)
            part.parent.mkdir(parents=True, exist_ok=True)
            try:
                with part.open("ab") as stream:
                    _allocate(stream.fileno(), file.n_bytes)
                    stream.truncate(file.n_bytes)
            except OSError as error:
                raise InputError(f"{part}: {error.strerror}: no room for the bundle") from None

    def write(
        self, file: int, tensors: Sequence[tuple[int, OutputTensor]], advance: Advance
    ) -> None:
        """Write some tensors of one file, by their place in it, and wait for the disk.

        Raises:
            ModelFileError: a weight cannot be stored in the type asked for.
        """
        path = part_path(self._files[file].path)
        with path.open("r+b") as stream, ThreadPoolExecutor(_N_THREADS) as pool:
            for place, tensor in tensors:
                stream.seek(self._offsets[file][place])
                write_tensor(stream, tensor, advance, pool, _N_THREADS)
            stream.flush()
            os.fsync(stream.fileno())

    def finish(self, final: Sequence[OutputFile]) -> None:
        """Write the final headers, and give all files their names.

        Args:
            final: the same files with the same lengths.
        """
        for planned, file in zip(self._files, final, strict=True):
            header = file.header()
            assert len(header) == len(planned.header())
            with part_path(planned.path).open("r+b") as stream:
                stream.write(header)
                stream.flush()
                os.fsync(stream.fileno())
        for file in final:
            part_path(file.path).replace(file.path)


def _allocate(descriptor: int, n_bytes: int) -> None:
    """Take disk space for a file, where system and file system know how to."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, n_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
