"""Which GGUF files of a repository make one bundle, from the beginnings of their headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from phi4mm.convert.part_type import FILE_TYPES
from phi4mm.errors import InputError
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle_search import SUFFIX
from phi4mm.modelfile.header import peek_metadata
from phi4mm.modelfile.hparams.fields import ADAPTER_NAMES, bundle_id_of
from phi4mm.modelfile.part import Role, role_of
from phi4mm.pull.cache import Cache
from phi4mm.pull.download import Downloader
from phi4mm.pull.repository import RemoteFile
from phi4mm.quantize.recipe import RECIPES

# All keys but the tokenizer's, which come last.
_PEEK_BYTES: Final = 1 << 16
_TYPE_NAMES: Final[Mapping[int, str]] = {
    **{number: type_.name for type_, number in FILE_TYPES.items()},
    **{recipe.file_type: name for name, recipe in RECIPES.items()},
}


@dataclass(frozen=True, slots=True)
class Wish:
    """Which types a person wants of the parts; None where there is only one to have."""

    decoder: str | None = None
    mmproj: str | None = None
    lora: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GGUF file of a repository.

    Attributes:
        file: the file.
        role: which part it is; None if it is none of this model.
        adapter: which adapter, where it says so.
        bundle_id: identity of the checkpoint it was made from, if it says so.
        type_name: type of most matrices, if it says so.
    """

    file: RemoteFile
    role: Role | None
    adapter: object
    bundle_id: str | None
    type_name: str

    def is_of_type(self, name: str) -> bool:
        """Whether it is what a person calls so: files of others have more types than we know."""
        stem = PurePosixPath(self.file.name).stem.upper()
        return self.type_name == name.upper() or stem.endswith(f"-{name.upper()}")


def list_candidates(downloader: Downloader, cache: Cache) -> list[Candidate]:
    """Every GGUF file of a repository, by what it says of itself.

    Args:
        downloader: of the repository.
        cache: where files may be already.

    Raises:
        InputError: the hub does not give them.
        ModelFileError: one is not what its name says.
    """
    files = downloader.repository.files.values()
    return [
        _recognise(file, _head(downloader, cache, file))
        for file in sorted(files, key=lambda file: file.name)
        if file.name.lower().endswith(SUFFIX)
    ]


def _head(downloader: Downloader, cache: Cache, file: RemoteFile) -> bytes:
    repository = downloader.repository
    cached = cache.find(repository.id, repository.commit, file.name)
    if cached is None:
        return downloader.read(file, 0, _PEEK_BYTES)
    with cached.open("rb") as stream:
        return stream.read(_PEEK_BYTES)


def choose(candidates: Sequence[Candidate], wish: Wish, source: str) -> list[Candidate]:
    """The files of one bundle: a decoder, and what has the same bundle id.

    Args:
        candidates: what there is.
        wish: which of several.
        source: what messages call the repository.

    Raises:
        InputError: there is no decoder, or there are several and the wish does not tell which.
    """
    decoder = _the_one(candidates, "decoder", "decoder", wish.decoder, "--type", source)
    if decoder is None:
        raise InputError(f"{source}: neither a checkpoint nor a decoder file of this model")
    if decoder.bundle_id is None:
        return [decoder]
    own = [c for c in candidates if c.bundle_id == decoder.bundle_id]
    chosen = [decoder, _the_one(own, "mmproj", "mmproj", wish.mmproj, "--mmproj-type", source)]
    for name in ADAPTER_NAMES:
        adapters = [c for c in own if c.adapter == name]
        title = f"{name} adapter"
        chosen.append(_the_one(adapters, "adapter", title, wish.lora, "--lora-type", source))
    return [candidate for candidate in chosen if candidate is not None]


def _recognise(file: RemoteFile, head: bytes) -> Candidate:
    metadata = peek_metadata(memoryview(head), file.name)
    file_type = metadata.get(keys.General.FILE_TYPE)
    return Candidate(
        file,
        role_of(metadata),
        metadata.get(keys.Adapter.NAME),
        bundle_id_of(metadata),
        _TYPE_NAMES.get(file_type, "") if isinstance(file_type, int) else "",
    )


def _the_one(
    candidates: Iterable[Candidate], role: Role, title: str, wanted: str | None, flag: str,
    source: str,
) -> Candidate | None:  # fmt: skip
    present = [candidate for candidate in candidates if candidate.role == role]
    found = [c for c in present if wanted is None or c.is_of_type(wanted)]
    names = ", ".join(PurePosixPath(c.file.name).name for c in found or present)
    if present and not found:
        raise InputError(f"{source}: no {title} of type {wanted}; there are {names}")
    if len(found) > 1:
        raise InputError(f"{source}: several files for one {title}: {names}; say which with {flag}")
    return found[0] if found else None
