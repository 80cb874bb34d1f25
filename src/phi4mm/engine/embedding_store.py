"""Embeddings of pictures and clips in a folder, so that they outlive the process."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phi4mm.errors import InputError
from phi4mm.modality import AudioProjection
from phi4mm.modelfile.bundle import Bundle

Embeddings = npt.NDArray[np.float32]  # (n_tokens, n_embd)
Key = tuple[str, AudioProjection | None]  # content digest, audio projection

_log = logging.getLogger(__name__)
_SUFFIX = ".embeddings.npy"


class EmbeddingStore:
    """One file for each medium; the ones that were used least recently are dropped.

    Several processes may share the folder.

    Args:
        folder: is made if it is not there.
        encoder: what the embeddings depend on besides the content.
        max_bytes: bound on the files together.

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, folder: Path, encoder: str, max_bytes: int) -> None:
        self._folder, self._encoder, self._max_bytes = folder, encoder, max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"encoder cache {folder}: {error.strerror}") from None

    def get(self, key: Key, n_tokens: int) -> Embeddings | None:
        """The embeddings of a medium, if they are here and whole."""
        path = self._path(key)
        try:
            embeddings: Embeddings = np.load(path, allow_pickle=False)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError) as error:
            _log.warning("encoder cache: %s cannot be read (%s)", path, error)
            return None
        if embeddings.dtype != np.float32 or embeddings.ndim != 2 or len(embeddings) != n_tokens:
            _log.warning("encoder cache: %s holds something else", path)
            return None
        return embeddings

    def put(self, key: Key, embeddings: Embeddings) -> None:
        """Keep embeddings; what cannot be written is not kept, and the log says so."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                np.save(file, embeddings, allow_pickle=False)
            os.replace(file.name, self._path(key))
            self._drop_oldest()
        except OSError as error:
            _log.warning("encoder cache: nothing is kept in %s (%s)", self._folder, error)

    def _drop_oldest(self) -> None:
        files = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # another process may have dropped it
                files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        n_bytes = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if n_bytes <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            n_bytes -= size

    def _path(self, key: Key) -> Path:
        digest, projection = key
        name = hashlib.sha256(f"{self._encoder}:{digest}:{projection}".encode()).hexdigest()
        return self._folder / (name + _SUFFIX)


def encoder_identity(bundle: Bundle) -> str:
    """What embeddings depend on besides the content: the encoders' file."""
    assert bundle.mmproj is not None
    path = Path(bundle.mmproj.path)
    status = path.stat()
    return f"{bundle.bundle_id}:{path.name}:{status.st_size}:{status.st_mtime_ns}"
