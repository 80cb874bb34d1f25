"""A folder or a file: every part described, and what they can and cannot do together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from phi4mm.errors import ModelFileError
from phi4mm.inspection.file import FileReport, inspect_file
from phi4mm.modality import Mode, mode_of
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.bundle_search import SUFFIX
from phi4mm.modelfile.part import DecoderPart, open_decoder

_MODES: Final[Mapping[str, Mode]] = {
    "text": mode_of(n_images=0, n_audios=0),
    "pictures": mode_of(n_images=1, n_audios=0),
    "sound": mode_of(n_images=0, n_audios=1),
    "pictures and sound": mode_of(n_images=1, n_audios=1),
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found at a path.

    Attributes:
        path: the folder or file.
        files: every GGUF file, described.
        families: the files that are of one checkpoint, by bundle id; "" for those that name none.
        beside: of a decoder file, those of its folder that are used with it where it is named
            alone, and that ``answers`` counts in.
        answers: by kind of conversation, None if the files can answer it, else what is missing;
            empty where there is no decoder to ask.
        warnings: what could not be checked, or would keep a decoder file from being used alone.
        faults: what is wrong: files that cannot be used, or do not belong together.
    """

    path: Path
    files: tuple[FileReport, ...]
    families: Mapping[str, tuple[Path, ...]]
    beside: tuple[Path, ...]
    answers: Mapping[str, str | None]
    warnings: tuple[str, ...]
    faults: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        files = [asdict(f) | {"path": str(f.path), "bits_per_weight": f.bits_per_weight}
                 for f in self.files]  # fmt: skip
        families = {id_: list(map(str, paths)) for id_, paths in self.families.items()}
        beside = list(map(str, self.beside))
        paths = {"path": str(self.path), "families": families, "beside": beside}
        return asdict(self) | paths | {"files": files}


def families_of(files: Iterable[FileReport]) -> dict[str, tuple[Path, ...]]:
    """The parts that are of one checkpoint, by bundle id; "" for those that name none."""
    families: dict[str, tuple[Path, ...]] = {}
    for file in files:
        if file.role is not None and not file.fault:
            name = file.bundle_id or ""
            families[name] = (*families.get(name, ()), file.path)
    return families


def inspect_path(path: Path, *, with_sha256: bool = False) -> Inspection:
    """Describe a GGUF file, or a folder of them.

    Args:
        path: the file or folder.
        with_sha256: read every file whole for its hash.

    Raises:
        ModelFileError: there is nothing at the path, or no GGUF file in the folder.
    """
    if not path.is_dir():
        files: tuple[FileReport, ...] = (inspect_file(path, with_sha256=with_sha256),)
    else:
        paths = sorted(p for p in path.iterdir() if p.suffix.lower() == SUFFIX)
        if not paths:
            raise ModelFileError(f"{path}: no {SUFFIX} file in this folder")
        files = _inspect_all(paths, with_sha256)
    faults = [file.fault for file in files if file.fault]
    families = families_of(files)
    answers: dict[str, str | None] = {}
    beside: tuple[Path, ...] = ()
    warnings: list[str] = []
    if any(file.role == "decoder" and not file.fault for file in files):
        try:
            with Bundle.open(path) as bundle:
                answers = {name: bundle.missing_for(mode) for name, mode in _MODES.items()}
                warnings += bundle.warnings
                beside = () if path.is_dir() else tuple(_others(bundle))
        except ModelFileError as error:
            # a decoder file itself is in order where its neighbours are not
            (faults if path.is_dir() else warnings).append(str(error))
    if len(families) > 1 and not any(file.role == "decoder" for file in files):
        faults.append(f"{path}: files of {len(families)} models, and no decoder among them")
    found = tuple(dict.fromkeys(faults))
    return Inspection(path, files, families, beside, answers, tuple(warnings), found)


def _others(bundle: Bundle) -> Iterator[Path]:
    """The files of a bundle without its decoder's."""
    if bundle.mmproj is not None:
        yield bundle.mmproj.path
    yield from (adapter.path for adapter in bundle.adapters.values())


def _inspect_all(paths: list[Path], with_sha256: bool) -> tuple[FileReport, ...]:
    """Every file of a folder; adapters are checked against the folder's only decoder."""
    first = {path: inspect_file(path) for path in paths}
    decoders = [report.path for report in first.values() if report.role == "decoder"]
    decoder = _open_quietly(decoders[0]) if len(decoders) == 1 else None
    reports = tuple(inspect_file(path, decoder, with_sha256=with_sha256) for path in paths)
    if decoder is not None:
        decoder.file.close()
    return reports


def _open_quietly(path: Path) -> DecoderPart | None:
    """The decoder; None if it cannot be used, which its own report says."""
    try:
        return open_decoder(path)
    except ModelFileError:
        return None
