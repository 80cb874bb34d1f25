"""Finds the files of a bundle: which file of a folder is which part, by metadata alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phi4mm.errors import ModelFileError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile import keys
from phi4mm.modelfile.hparams.fields import ADAPTER_NAMES, bundle_id_of
from phi4mm.modelfile.part import Role, role_of
from phi4mm.modelfile.reader import GGUFFile

SUFFIX: Final = ".gguf"


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The files of a bundle, found and open but not yet checked against each other.

    Attributes:
        decoder: the decoder's file.
        mmproj: the encoders' file, if there is one.
        adapters: adapter files by the mode they serve.
        warnings: files that were left out, and why.
    """

    decoder: GGUFFile
    mmproj: GGUFFile | None
    adapters: Mapping[AdapterName, GGUFFile]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    file: GGUFFile
    role: Role | None
    adapter: object
    bundle_id: str | None


@dataclass(slots=True)
class _Found:
    """The candidates of a folder, and what was said about the others."""

    candidates: list[_Candidate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def find_files(
    path: Path, mmproj: Path | None, adapters: Mapping[AdapterName, Path]
) -> BundleFiles:
    """Find the parts in a folder, or beside a decoder file.

    Args:
        path: the folder or the decoder file.
        mmproj: the mmproj file, where the caller names it.
        adapters: the adapter files that the caller names.

    Raises:
        ModelFileError: there is no decoder, more than one file for the same part, or a file that
            is needed cannot be read.
    """
    if path.is_dir():
        found = _search_folder(path)
        decoder = _the_one(found.candidates, "decoder", path, "-m FILE")
        if decoder is None:
            raise ModelFileError(f"{path}: {_no_decoder(path)}")
    else:
        decoder = GGUFFile.open(path)
        found = _search_siblings(decoder)
    encoders = (
        _the_one(found.candidates, "mmproj", path, "--mmproj FILE")
        if mmproj is None
        else GGUFFile.open(mmproj)
    )
    chosen = {name: GGUFFile.open(adapter) for name, adapter in adapters.items()}
    for name in ADAPTER_NAMES:
        if name not in chosen:
            of_name = [c for c in found.candidates if c.adapter == name]
            adapter = _the_one(of_name, "adapter", path, f"--{name}-lora FILE")
            if adapter is not None:
                chosen[name] = adapter
    return BundleFiles(decoder, encoders, chosen, tuple(found.warnings))


def _search_folder(folder: Path) -> _Found:
    """All parts in a folder; a file that cannot be read is an error."""
    found = _Found()
    for path in _gguf_files(folder):
        candidate = _recognise(path)
        if candidate.role is None:
            found.warnings.append(f"{path}: left out, it is no part of this model")
        elif candidate.role == "adapter" and candidate.adapter not in ADAPTER_NAMES:
            found.warnings.append(
                f"{path}: left out, the adapter does not say which mode it serves: "
                f"give it with --vision-lora or --speech-lora"
            )
        else:
            found.candidates.append(candidate)
    return found


def _search_siblings(decoder: GGUFFile) -> _Found:
    """The parts beside a decoder file that name its bundle id; other files are not our business."""
    found = _Found()
    bundle_id = bundle_id_of(decoder.metadata)
    if bundle_id is None:
        return found
    for path in _gguf_files(decoder.path.parent):
        if path.name == decoder.path.name:
            continue
        try:
            candidate = _recognise(path)
        except ModelFileError as error:
            found.warnings.append(f"left out: {error}")
            continue
        if candidate.bundle_id == bundle_id and candidate.role in ("mmproj", "adapter"):
            found.candidates.append(candidate)
    return found


def _gguf_files(folder: Path) -> Iterable[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix.lower() == SUFFIX)
    except OSError as error:
        raise ModelFileError(f"{folder}: cannot be read: {error.strerror}") from None


def _recognise(path: Path) -> _Candidate:
    file = GGUFFile.open(path)
    metadata = file.metadata
    adapter, bundle_id = metadata.get(keys.Adapter.NAME), bundle_id_of(metadata)
    return _Candidate(file, role_of(metadata), adapter, bundle_id)


def _the_one(
    candidates: Iterable[_Candidate], role: Role, place: Path, option: str
) -> GGUFFile | None:
    files = [candidate.file for candidate in candidates if candidate.role == role]
    if len(files) > 1:
        names = ", ".join(file.path.name for file in files)
        raise ModelFileError(f"{place}: several files for one part: {names}; choose with {option}")
    return files[0] if files else None


def _no_decoder(folder: Path) -> str:
    if (folder / "config.json").exists():
        return "a checkpoint, not a bundle: make one with phi4mm convert"
    return f"no decoder in this folder (a {SUFFIX} file of architecture {keys.ARCH_DECODER})"
