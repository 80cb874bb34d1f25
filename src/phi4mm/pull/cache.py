"""A folder laid out as the hub's own cache, so that other programs find what is here.

    models--OWNER--NAME/refs/REVISION           the commit a branch or tag stood for
    models--OWNER--NAME/blobs/DIGEST            the contents of a file
    models--OWNER--NAME/snapshots/COMMIT/FILE   a link to them

Source: "Understand caching" of huggingface_hub's documentation.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache.

    Attributes:
        root: its folder.
    """

    root: Path

    @classmethod
    def of_hub(cls) -> Cache:
        """The one that all programs share: ``$HF_HUB_CACHE``, else in ``$HF_HOME``."""
        from huggingface_hub.constants import HF_HUB_CACHE

        return cls(Path(HF_HUB_CACHE))

    def folder(self, repo_id: str) -> Path:
        """What belongs to one repository."""
        return self.root / f"models--{repo_id.replace('/', '--')}"

    def snapshot(self, repo_id: str, commit: str) -> Path:
        """The files of one commit."""
        return self.folder(repo_id) / "snapshots" / commit

    def commit_of(self, repo_id: str, revision: str) -> str | None:
        """The commit of a branch or tag, or the commit itself, if something of it is here."""
        reference = self.folder(repo_id) / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        is_commit = re.fullmatch("[0-9a-f]{40}", commit) is not None
        return commit if is_commit and self.snapshot(repo_id, commit).is_dir() else None

    def files_of(self, repo_id: str, commit: str) -> Iterator[tuple[str, Path]]:
        """(name, path) of every file of a commit."""
        snapshot = self.snapshot(repo_id, commit)
        for path in sorted(snapshot.rglob("*")):
            if path.is_file():
                yield path.relative_to(snapshot).as_posix(), path

    def find(self, repo_id: str, commit: str, name: str) -> Path | None:
        """A file of a commit, if it is here."""
        path = self.snapshot(repo_id, commit) / name
        return path if path.is_file() else None

    def partial(self, repo_id: str, digest: str) -> Path:
        """Where the contents with this hash are gathered until they are whole; its folder is made.

        The name is this package's own: the hub's client begins its downloads anew.
        """
        blobs = self.folder(repo_id) / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        return blobs / f"{digest}.part"

    def keep(self, repo_id: str, commit: str, name: str, digest: str) -> Path:
        """Take in a file that is whole and checked, gathered in ``partial``; its path."""
        part = self.partial(repo_id, digest)
        blob = part.with_suffix("")
        part.replace(blob)
        path = self.snapshot(repo_id, commit) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:  # a file system without links
            blob.replace(path)
        return path

    def refer(self, repo_id: str, revision: str, commit: str) -> None:
        """Note which commit a branch or tag stands for."""
        reference = self.folder(repo_id) / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)

    def drop(self, path: Path) -> None:
        """Remove a file of a commit, and its contents."""
        path.resolve().unlink()
        path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)
