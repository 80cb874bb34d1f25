"""The files of a checkpoint, from the cache or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from phi4mm.convert.checkpoint import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
    ADAPTERS,
    INDEX_FILE,
    WEIGHTS_FILE,
    weight_map,
)
from phi4mm.convert.tensorfile import (
    PREFIX_BYTES,
    SourceTensor,
    describe_tensors,
    header_length,
    open_tensors,
)
from phi4mm.errors import ModelFileError
from phi4mm.progress import Advance
from phi4mm.pull.cache import Cache
from phi4mm.pull.download import Downloader
from phi4mm.pull.repository import RemoteFile, Repository
from phi4mm.pull.space import Need, check_room

_SMALL_FILES: Final = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json",
    INDEX_FILE, *(f"{name}-lora/{ADAPTER_CONFIG_FILE}" for name in ADAPTERS),
)  # fmt: skip


def is_checkpoint(repository: Repository) -> bool:
    """Whether it holds a model to be converted."""
    files = repository.files
    return "config.json" in files and (WEIGHTS_FILE in files or INDEX_FILE in files)


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The files of the checkpoint, from the cache or the hub.

    Attributes:
        downloader: of the repository.
        cache: where files may be already.
        target: where files go that are not.
    """

    downloader: Downloader
    cache: Cache
    target: Cache

    @property
    def repository(self) -> Repository:
        """Where they come from."""
        return self.downloader.repository

    def fetch_small(self) -> Path:
        """Everything but the weights, in one folder."""
        for name in _SMALL_FILES:
            if name in self.repository.files:
                self.downloader.fetch(self.repository.files[name], self.target, lambda _: None)
        return self.target.snapshot(self.repository.id, self.repository.commit)

    def weight_files(self, snapshot: Path) -> list[RemoteFile]:
        """The files with weights, those of adapters only where the shards lack them."""
        files = self.repository.files
        inside: set[str] = set()
        names = [WEIGHTS_FILE]
        if WEIGHTS_FILE not in files:
            shard_of = weight_map(snapshot / INDEX_FILE)
            names = sorted(set(shard_of.values()))
            inside = {a for a in ADAPTERS if any(f".lora_A.{a}." in name for name in shard_of)}
        names += [f"{a}-lora/{ADAPTER_WEIGHTS_FILE}" for a in ADAPTERS if a not in inside]
        if missing := [name for name in names if name not in files]:
            raise ModelFileError(f"{self.repository.id}: {missing[0]} is missing")
        return [files[name] for name in names]

    def describe(
        self, snapshot: Path, weights: Sequence[RemoteFile]
    ) -> dict[str, dict[str, SourceTensor]]:
        """The tensors of weight files, from their headers."""
        return {file.name: self._describe(snapshot / file.name, file) for file in weights}

    def _describe(self, path: Path, file: RemoteFile) -> dict[str, SourceTensor]:
        if (here := self._find(file)) is not None:
            return {n: replace(t, path=path, data=memoryview(b""))
                    for n, t in open_tensors(here).items()}  # fmt: skip
        n_header = header_length(path, self.downloader.read(file, 0, PREFIX_BYTES))
        header = self.downloader.read(file, PREFIX_BYTES, PREFIX_BYTES + n_header)
        return describe_tensors(path, header, file.n_bytes)

    def check_room(self, left: Sequence[RemoteFile], bundle: Need, *, stream: bool) -> None:
        """Check that what will be on the disks at the same time fits.

        Raises:
            InputError: it does not.
        """
        missing = [self._n_missing(file) for file in left]
        n_bytes = max(missing, default=0) if stream else sum(missing)
        what = "the largest weight file" if stream else "the checkpoint"
        check_room([bundle, Need(self.target.root, n_bytes, what)])

    def fetch(self, file: RemoteFile, advance: Advance) -> Path:
        """A weight file, checked."""
        here = self._find(file)
        cache = self.cache if here is not None and self._is_shared(file) else self.target
        return self.downloader.fetch(file, cache, advance)

    def drop(self, file: RemoteFile) -> None:
        """Remove a weight file that was fetched for this pull alone."""
        repo = self.repository
        if (path := self.target.find(repo.id, repo.commit, file.name)) is not None:
            self.target.drop(path)

    def _find(self, file: RemoteFile) -> Path | None:
        repo = self.repository
        return self.cache.find(repo.id, repo.commit, file.name) or self.target.find(
            repo.id, repo.commit, file.name
        )

    def _is_shared(self, file: RemoteFile) -> bool:
        repo = self.repository
        return self.cache.find(repo.id, repo.commit, file.name) is not None

    def _n_missing(self, file: RemoteFile) -> int:
        if self._find(file) is not None:
            return 0
        part = self.target.partial(self.repository.id, file.digest)
        return max(0, file.n_bytes - (part.stat().st_size if part.exists() else 0))
