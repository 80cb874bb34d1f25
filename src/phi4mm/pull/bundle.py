"""Pulls a bundle that is ready in a repository of GGUF files, and checks it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from phi4mm.convert.output_folder import refuse_other_parts
from phi4mm.modelfile.bundle import Bundle
from phi4mm.progress import Advance, Progress, counter
from phi4mm.pull.cache import Cache
from phi4mm.pull.download import Downloader
from phi4mm.pull.gguf_choice import Candidate, Wish, choose, list_candidates
from phi4mm.pull.growing import part_path
from phi4mm.pull.repository import RemoteFile, Repository
from phi4mm.pull.space import Need, check_room


@dataclass(frozen=True, slots=True)
class PulledBundle:
    """What was fetched.

    Attributes:
        files: the files of the bundle.
        bundle_id: the id they carry; None for a decoder of others.
        left_out: files of the repository that do not belong to it.
        warnings: what could not be checked.
    """

    files: tuple[Path, ...]
    bundle_id: str | None
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


def pull_bundle(
    repository: Repository,
    out_dir: Path,
    wish: Wish,
    *,
    cache: Cache,
    progress: Progress | None = None,
) -> PulledBundle:
    """Fetch the files that belong together; they get their names when all are here and checked.

    Args:
        repository: holds GGUF files.
        out_dir: the bundle's folder; made if missing.
        wish: which of several files for one part.
        cache: where a file may be already; nothing is added to it.
        progress: told of every byte that comes.

    Raises:
        InputError: the hub does not give the files, they are not clear, or there is no room.
        ModelFileError: they are no bundle, or arrived damaged.
    """
    downloader = Downloader(repository)
    candidates = list_candidates(downloader, cache)
    chosen = choose(candidates, wish, repository.id)
    targets = {c.file.name: out_dir / PurePosixPath(c.file.name).name for c in chosen}
    refuse_other_parts(out_dir, ())
    check_room([Need(out_dir, sum(_n_missing(c, targets) for c in chosen), "the bundle")])
    out_dir.mkdir(parents=True, exist_ok=True)
    advance = counter(sum(c.file.n_bytes for c in chosen), progress)
    for candidate in chosen:
        _place(downloader, candidate.file, cache, part_path(targets[candidate.file.name]), advance)
    for target in targets.values():
        part_path(target).replace(target)
    with Bundle.open(out_dir) as bundle:
        names = {c.file.name for c in candidates} - targets.keys()
        return PulledBundle(
            tuple(targets.values()), bundle.bundle_id, tuple(sorted(names)), bundle.warnings
        )


def _n_missing(candidate: Candidate, targets: dict[str, Path]) -> int:
    part = part_path(targets[candidate.file.name])
    here = part.stat().st_size if part.exists() else 0
    return max(0, candidate.file.n_bytes - here)


def _place(
    downloader: Downloader, file: RemoteFile, cache: Cache, part: Path, advance: Advance
) -> None:
    """Fetch a file, or take it from the cache: as a link where the disk allows it."""
    repository = downloader.repository
    cached = cache.find(repository.id, repository.commit, file.name)
    if cached is None:
        downloader.fetch_to(file, part, advance)
        return
    downloader.fetch(file, cache, advance)  # checks it
    part.unlink(missing_ok=True)
    try:
        os.link(cached.resolve(), part)
    except OSError:
        shutil.copyfile(cached, part)
