"""Downloads files of a repository: goes on where it stopped, and checks what came.

The hub's client is asked for addresses, token and connection; the transfer is our own, because the
client throws away what came of a file when it is interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from phi4mm.errors import InputError, ModelFileError
from phi4mm.progress import Advance
from phi4mm.pull.cache import Cache
from phi4mm.pull.repository import RemoteFile, Repository

if TYPE_CHECKING:
    import httpx2

_MOST_FAILURES: Final = 5  # in a row, with nothing new from the hub
_FIRST_PAUSE_S: Final = 0.5
_TEMPORARY: Final = (408, 425, 429, 500, 502, 503, 504)


class _Interrupted(Exception):
    """The transfer broke off in a way that another try may mend."""


@dataclass(frozen=True, slots=True)
class Downloader:
    """Gets files of one repository.

    Attributes:
        repository: what there is.
    """

    repository: Repository

    def fetch(self, file: RemoteFile, cache: Cache, advance: Advance) -> Path:
        """A file of the repository, checked, in the cache; what is there already is not fetched.

        Args:
            file: which.
            cache: where it goes.
            advance: told how many bytes have come; also of those that were here.

        Raises:
            InputError: the hub does not give it, or the disk is full.
            ModelFileError: it is not what the hub said it is; it is removed.
        """
        repo, commit = self.repository.id, self.repository.commit
        path = cache.find(repo, commit, file.name)
        if path is not None:
            _check_or_remove(file, path.resolve())
            advance(file.n_bytes)
            return path
        self.fetch_to(file, cache.partial(repo, file.digest), advance)
        return cache.keep(repo, commit, file.name, file.digest)

    def fetch_to(self, file: RemoteFile, path: Path, advance: Advance) -> None:
        """The same, into a file of its own, which may hold the beginning already."""
        self._require_online(file)
        if path.exists() and path.stat().st_size > file.n_bytes:
            path.unlink()
        path.touch()
        advance(path.stat().st_size)
        n_failures = 0
        while (n_before := path.stat().st_size) < file.n_bytes:
            try:
                self._transfer(file, path, advance)
            except _Interrupted as error:
                n_failures = 0 if path.stat().st_size > n_before else n_failures + 1
                if n_failures == _MOST_FAILURES:
                    raise InputError(
                        f"{file.name}: {error}; what has come is kept: run the same command again "
                        "to go on"
                    ) from None
                time.sleep(_FIRST_PAUSE_S * 2**n_failures)
        _check_or_remove(file, path)

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop`` of a file, fewer where it ends before.

        Raises:
            InputError: the hub does not give them.
        """
        from httpx2 import HTTPError

        self._require_online(file)
        stop = min(stop, file.n_bytes)
        reason = ""
        for n_failures in range(_MOST_FAILURES):
            try:
                with self._open(file, start, stop) as answer:
                    skipped = start if answer.status_code == 200 else 0  # all of it is sent
                    content = _read_up_to(answer, skipped + stop - start)
                return content[skipped:]
            except (HTTPError, _Interrupted) as error:
                reason = _reason(error)
                time.sleep(_FIRST_PAUSE_S * 2**n_failures)
        raise InputError(f"{file.name}: its header cannot be read: {reason}")

    def _require_online(self, file: RemoteFile) -> None:
        if not self.repository.is_online:
            raise InputError(
                f"{self.repository.id}: {file.name} is not in the cache, and HF_HUB_OFFLINE "
                "forbids to ask the hub"
            )

    def _transfer(self, file: RemoteFile, path: Path, advance: Advance) -> None:
        """Append what is missing."""
        from httpx2 import HTTPError

        start = path.stat().st_size
        try:
            with self._open(file, start, file.n_bytes) as answer, path.open("ab") as part:
                if answer.status_code == 200 and start > 0:  # all of it is sent
                    part.truncate(0)
                    advance(-start)
                for block in answer.iter_bytes():  # as they come: what is gathered could be lost
                    _write(part, block)
                    advance(len(block))
        except HTTPError as error:
            raise _Interrupted(_reason(error)) from None

    @contextmanager
    def _open(self, file: RemoteFile, start: int, stop: int) -> Iterator[httpx2.Response]:
        """An answer with a part of a file, or with all of it.

        Raises:
            InputError: the hub refuses.
            _Interrupted: it has no time now.
        """
        from huggingface_hub import get_session, get_token, hf_hub_url
        from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

        repo, commit = self.repository.id, self.repository.commit
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        if token := get_token():
            headers["Authorization"] = f"Bearer {token}"
        url = hf_hub_url(repo, file.name, revision=commit)
        with get_session().stream(
            "GET", url, headers=headers, timeout=HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
        ) as answer:
            if answer.status_code in _TEMPORARY:
                raise _Interrupted(f"the hub answers {answer.status_code}")
            if answer.status_code not in (200, 206):
                raise InputError(f"{repo}: {file.name}: the hub answers {answer.status_code}")
            yield answer


def _read_up_to(answer: httpx2.Response, n_bytes: int) -> bytes:
    content = bytearray()
    for block in answer.iter_bytes():
        content += block
        if len(content) >= n_bytes:
            break
    return bytes(content[:n_bytes])


def _write(part: BinaryIO, block: bytes) -> None:
    """Write; a full disk is the user's to mend.

    Raises:
        InputError: it cannot be written.
    """
    try:
        part.write(block)
        part.flush()
    except OSError as error:
        raise InputError(
            f"{part.name}: {error.strerror}; what has come is kept: make room, and run the same "
            "command again to go on"
        ) from None


def _check_or_remove(file: RemoteFile, path: Path) -> None:
    """Check a file that is complete; a wrong one must not be found again.

    Raises:
        ModelFileError: size or hash differ.
    """
    try:
        file.check(path)
    except ModelFileError as error:
        path.unlink()
        raise ModelFileError(f"{error}; it was removed: run the same command again") from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
