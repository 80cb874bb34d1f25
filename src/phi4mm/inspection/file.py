"""One file: its role, types, sizes, constants, and what a bundle would want and it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from phi4mm.errors import ModelFileError
from phi4mm.measurement.fingerprint import identify, sha256
from phi4mm.modelfile import keys
from phi4mm.modelfile.header import TensorInfo
from phi4mm.modelfile.hparams import AdapterHParams
from phi4mm.modelfile.hparams.fields import bundle_id_of, is_own
from phi4mm.modelfile.keys import Key
from phi4mm.modelfile.part import (
    DecoderPart,
    Role,
    open_adapter,
    open_decoder,
    open_mmproj,
    role_of,
)
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import LORA_A_SUFFIX

# What a decoder file of another program may lack, and what follows from that.
_WANTED: Final[Mapping[Key, str]] = {
    keys.Own.BUNDLE_ID: "that encoders and adapters are of the same checkpoint cannot be checked",
    keys.Decoder.ROPE_ATTN_FACTOR: "attention comes out weaker than the reference's",
    keys.Tokenizer.EOT_ID: "the end of a turn is found by its name; other programs may talk on",
    keys.Tokenizer.CHAT_TEMPLATE: "no harm here; other programs may guess another",
    keys.Decoder.IMAGE_TOKEN_ID: "no harm: pictures are placed without it",
    keys.Decoder.AUDIO_TOKEN_ID: "no harm: clips are placed without it",
}


@dataclass(frozen=True, slots=True)
class TypeUse:
    """Tensors of one element type.

    Attributes:
        n_tensors: how many.
        n_weights: their elements, columns of padding included.
        n_bytes: their size.
    """

    n_tensors: int
    n_weights: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class FileReport:
    """What one file is.

    Attributes:
        path: the file.
        n_bytes: its size.
        role: which part of a model; None if it is none of this one's.
        title: the role for people: ``decoder``, ``vision adapter``.
        is_own: whether this project made it.
        bundle_id: identity of the checkpoint it was made from, if it says so.
        fingerprint: tells it from other files; None where it cannot be read.
        sha256: of the whole file; None unless asked for.
        types: use of each element type.
        constants: its hyper-parameters, by group.
        lacks: what a bundle would want and the file does not have.
        fault: why it cannot be used; None if it can.
    """

    path: Path
    n_bytes: int
    role: Role | None = None
    title: str = "unreadable"
    is_own: bool = False
    bundle_id: str | None = None
    fingerprint: str | None = None
    sha256: str | None = None
    types: Mapping[str, TypeUse] | None = None
    constants: Mapping[str, Mapping[str, Any]] | None = None
    lacks: tuple[str, ...] = ()
    fault: str | None = None

    @property
    def bits_per_weight(self) -> float | None:
        """Bits of tensor data per weight."""
        uses = list((self.types or {}).values())
        n_weights = sum(use.n_weights for use in uses)
        return 8 * sum(use.n_bytes for use in uses) / n_weights if n_weights else None


def inspect_file(
    path: Path, decoder: DecoderPart | None = None, *, with_sha256: bool = False
) -> FileReport:
    """Describe a file; what is wrong with it is part of the answer.

    Args:
        path: the file.
        decoder: what an adapter's shapes are checked against; without it they are not.
        with_sha256: read it whole for its hash.

    Raises:
        ModelFileError: there is no such file.
    """
    if not path.exists():
        raise ModelFileError(f"{path}: no such file")
    report = FileReport(path, path.stat().st_size if path.is_file() else 0)
    try:
        with GGUFFile.open(path) as file:
            report = _describe_header(report, file)
        report = _describe_part(report, decoder)
    except ModelFileError as error:
        report = replace(report, fault=str(error))
    return replace(report, sha256=sha256(path)) if with_sha256 and path.is_file() else report


def _describe_header(report: FileReport, file: GGUFFile) -> FileReport:
    """What any GGUF file tells of itself."""
    metadata = file.metadata
    role = role_of(metadata)
    name = metadata.get(keys.Adapter.NAME)
    title = f"{name} adapter" if role == "adapter" and isinstance(name, str) else role
    return replace(
        report,
        role=role,
        title=title or f"another model ({metadata.get(keys.General.ARCHITECTURE)!r:.40})",
        fingerprint=identify(file).fingerprint,
        types=_types(file.tensors.values()),
        bundle_id=bundle_id_of(metadata),
        is_own=is_own(metadata),
        fault=None if role else f"{file.path}: no part of this model",
    )


def _describe_part(report: FileReport, decoder: DecoderPart | None) -> FileReport:
    """The checked constants of a part."""
    if report.role == "decoder":
        part = open_decoder(report.path)
        with part.file as file:
            absent = [key for key in _WANTED if key not in file.metadata]
            lacks = tuple(f"{key}: {_WANTED[key]}" for key in absent)
        return replace(report, constants={"decoder": _constants(part.hparams)}, lacks=lacks)
    if report.role == "mmproj":
        mmproj = open_mmproj(report.path)
        mmproj.file.close()
        encoders = {"vision": mmproj.vision, "audio": mmproj.audio}
        lacks = tuple(f"{name} encoder" for name, encoder in encoders.items() if encoder is None)
        found = {name: _constants(e) for name, e in encoders.items() if e is not None}
        return replace(report, constants=found, lacks=lacks)
    if report.role == "adapter":
        return replace(report, constants={"adapter": _constants(_adapter(report.path, decoder))})
    return report


def _adapter(path: Path, decoder: DecoderPart | None) -> AdapterHParams:
    if decoder is not None:
        part = open_adapter(path, decoder)
        part.file.close()
        return part.hparams
    with GGUFFile.open(path) as file:
        shapes = (i.shape for name, i in file.tensors.items() if name.endswith(LORA_A_SUFFIX))
        rank = next((shape[0] for shape in shapes), 0)
        return AdapterHParams.from_metadata(file.metadata, rank)


def _constants(hparams: Any) -> dict[str, Any]:
    values = asdict(hparams)
    values.pop("bundle_id", None)
    mel = values.pop("mel", {})
    return values | {f"mel_{name}": value for name, value in mel.items()}


def _types(infos: Iterable[TensorInfo]) -> dict[str, TypeUse]:
    by_type: dict[str, list[TensorInfo]] = {}
    for info in infos:
        by_type.setdefault(info.ggml_type.name, []).append(info)
    return {
        name: TypeUse(
            n_tensors=len(group),
            n_weights=sum(prod(info.shape) for info in group),
            n_bytes=sum(info.n_bytes for info in group),
        )
        for name, group in by_type.items()
    }
