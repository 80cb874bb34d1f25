"""What a repository of the hub holds at one commit: names, sizes and hashes of its files.

In: ``OWNER/NAME`` and a revision.  Out: ``Repository``.  Where the hub may not be asked
(``HF_HUB_OFFLINE``), it is what the cache has of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phi4mm.errors import InputError, ModelFileError
from phi4mm.pull.cache import Cache

_SHA256: Final = re.compile("[0-9a-f]{64}")
_GIT_SHA1: Final = re.compile("[0-9a-f]{40}")
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        name: its path within the repository.
        n_bytes: its size.
        digest: SHA-256 of its contents where it is kept in large-file storage (64 digits), else
            git's SHA-1 of it as a blob (40 digits); the cache names it after this.
    """

    name: str
    n_bytes: int
    digest: str

    def check(self, path: Path) -> None:
        """Check a download against size and hash.

        Raises:
            ModelFileError: it is another file, or damaged.
        """
        size = path.stat().st_size
        if size != self.n_bytes:
            raise ModelFileError(f"{self.name}: {size} bytes came, must be {self.n_bytes}")
        found = self._digest(path)
        if found != self.digest:
            raise ModelFileError(f"{self.name}: its hash is {found}, must be {self.digest}")

    def _digest(self, path: Path) -> str:
        is_large = _SHA256.fullmatch(self.digest) is not None
        digest = hashlib.sha256() if is_large else hashlib.sha1(usedforsecurity=False)
        if not is_large:
            digest.update(f"blob {self.n_bytes}\0".encode())
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit.

    Attributes:
        id: ``OWNER/NAME``.
        commit: of git, 40 digits.
        files: its files by name.
        is_online: whether the hub may be asked for them.
    """

    id: str
    commit: str
    files: Mapping[str, RemoteFile]
    is_online: bool

    @property
    def name(self) -> str:
        """Without the owner."""
        return self.id.rpartition("/")[2]


def open_repository(repo_id: str, revision: str | None, cache: Cache) -> Repository:
    """Ask the hub what a repository holds.

    Args:
        repo_id: ``OWNER/NAME``.
        revision: branch, tag or commit; None for ``main``.
        cache: what is used where the hub may not be asked.

    Raises:
        InputError: there is no such repository or revision, it may not be read, or the hub cannot
            be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import is_offline_mode

    if is_offline_mode():
        return _cached(repo_id, revision or "main", cache)
    with hub_errors(repo_id, revision):
        info = HfApi().model_info(repo_id, revision=revision, files_metadata=True)
    assert info.sha is not None
    files = {}
    for sibling in info.siblings or []:
        digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if sibling.size is None or digest is None:
            raise InputError(f"{repo_id}: the hub tells neither size nor hash of its files")
        files[sibling.rfilename] = RemoteFile(sibling.rfilename, sibling.size, digest)
    return Repository(repo_id, info.sha, files, is_online=True)


@contextmanager
def hub_errors(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Say in one line what the hub or the network refused.

    Raises:
        InputError: in the place of their errors.
    """
    from httpx2 import HTTPError
    from huggingface_hub import errors

    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except errors.GatedRepoError:
        raise InputError(
            f"{repo_id}: access must be asked for on its page; then log in with `hf auth login`, "
            "or set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            f"{repo_id}: no such repository, or it is private: log in with `hf auth login`, or "
            "set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise InputError(f"{repo_id}: there is no revision {revision!r}") from None
    except errors.HFValidationError as error:
        raise InputError(f"{repo_id!r} is no repository, must be OWNER/NAME: {error}") from None
    except HTTPError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{repo_id}{at}: the hub cannot be reached: {reason}") from None


def _cached(repo_id: str, revision: str, cache: Cache) -> Repository:
    commit = cache.commit_of(repo_id, revision)
    if commit is None:
        raise InputError(
            f"{repo_id}: nothing of revision {revision!r} is in the cache {cache.root}, and "
            "HF_HUB_OFFLINE forbids to ask the hub"
        )
    files = {}
    for name, path in cache.files_of(repo_id, commit):
        blob = path.resolve()
        known = _SHA256.fullmatch(blob.name) or _GIT_SHA1.fullmatch(blob.name)
        if known:  # else the file system has no links, and its hash is not known
            files[name] = RemoteFile(name, blob.stat().st_size, blob.name)
    return Repository(repo_id, commit, files, is_online=False)
