"""The parts of a bundle: one checked file each, recognised by its metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from phi4mm.errors import ModelFileError
from phi4mm.modelfile import keys
from phi4mm.modelfile.hparams import AdapterHParams, AudioHParams, DecoderHParams, VisionHParams
from phi4mm.modelfile.hparams.fields import bundle_id_of, is_own
from phi4mm.modelfile.metadata import Metadata
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensor_check import check_rope_factors, check_tensors
from phi4mm.modelfile.tensors import (
    LORA_A_SUFFIX,
    OUTPUT,
    TensorSpec,
    adapter_tensors,
    decoder_tensors,
    mmproj_tensors,
)
from phi4mm.modelfile.vocabulary import check_vocabulary

Role = Literal["decoder", "mmproj", "adapter"]
ROLE_NAMES: Final[dict[Role, str]] = {
    "decoder": "a decoder",
    "mmproj": "an mmproj (the encoders)",
    "adapter": "an adapter",
}


@dataclass(frozen=True, slots=True)
class DecoderPart:
    """The decoder's file."""

    file: GGUFFile
    hparams: DecoderHParams

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.file.path

    @property
    def bundle_id(self) -> str | None:
        """Identity of the source checkpoint, if the file names one."""
        return self.hparams.bundle_id


@dataclass(frozen=True, slots=True)
class MmprojPart:
    """The encoders' file; one of the encoders may be absent."""

    file: GGUFFile
    vision: VisionHParams | None
    audio: AudioHParams | None
    bundle_id: str | None

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.file.path


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """An adapter's file."""

    file: GGUFFile
    hparams: AdapterHParams

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.file.path

    @property
    def bundle_id(self) -> str | None:
        """Identity of the source checkpoint, if the file names one."""
        return self.hparams.bundle_id


def role_of(metadata: Metadata) -> Role | None:
    """What a file is by its metadata; None if it is no part of this model."""
    arch = metadata.get(keys.General.ARCHITECTURE)
    type_ = metadata.get(keys.General.TYPE)
    if arch == keys.ARCH_DECODER and type_ in (None, keys.TYPE_MODEL):
        return "decoder"
    if arch == keys.ARCH_DECODER and type_ == keys.TYPE_ADAPTER:
        return "adapter"
    if arch == keys.ARCH_MMPROJ and type_ in (None, keys.TYPE_MMPROJ):
        return "mmproj"
    return None


def _require_role(file: GGUFFile, role: Role) -> None:
    metadata = file.metadata
    for group in keys.GROUPS:
        for key in keys.keys_of(group):
            metadata.check_type(key)
    found = role_of(metadata)
    if found is None:
        raise metadata.error(
            f"architecture {metadata.get(keys.General.ARCHITECTURE, 'none')!r:.60}, "
            f"type {metadata.get(keys.General.TYPE, 'none')!r:.60}: must be {ROLE_NAMES[role]}"
        )
    if found != role:
        raise metadata.error(f"this is {ROLE_NAMES[found]}, must be {ROLE_NAMES[role]}")
    _refuse_split(metadata)


def open_decoder(path: Path) -> DecoderPart:
    """Open and check a decoder file, this project's or another's.

    Raises:
        ModelFileError: libllama could not load it, or it is none of this model.
    """
    return check_decoder(GGUFFile.open(path))


def check_decoder(file: GGUFFile) -> DecoderPart:
    """Check a decoder file that is open.

    Raises:
        ModelFileError: libllama could not load it, or it is none of this model.
    """
    _require_role(file, "decoder")
    check_vocabulary(file.metadata)
    hparams = DecoderHParams.from_metadata(file.metadata)
    untied = {OUTPUT: TensorSpec((hparams.n_vocab, hparams.n_embd), "matrix")}
    check_tensors(file, decoder_tensors(hparams), untied)
    check_rope_factors(file)
    return DecoderPart(file, hparams)


def open_mmproj(path: Path) -> MmprojPart:
    """Open and check an mmproj file.

    Raises:
        ModelFileError: our graphs could not run it.
    """
    return check_mmproj(GGUFFile.open(path))


def check_mmproj(file: GGUFFile) -> MmprojPart:
    """Check an mmproj file that is open.

    Raises:
        ModelFileError: our graphs could not run it.
    """
    _require_role(file, "mmproj")
    metadata = file.metadata
    if not is_own(metadata):
        raise metadata.error(
            f"{keys.Own.FORMAT_VERSION} is missing: an mmproj of another program; "
            f"make one with phi4mm convert"
        )
    if not metadata.flag(keys.Clip.USE_GELU):
        raise metadata.error(f"{keys.Clip.USE_GELU} is false, must be true")
    has_vision, has_audio = metadata.flag(keys.Clip.HAS_VISION), metadata.flag(keys.Clip.HAS_AUDIO)
    if not has_vision and not has_audio:
        raise metadata.error("neither a vision nor an audio encoder, must have one")
    vision = VisionHParams.from_metadata(metadata) if has_vision else None
    audio = AudioHParams.from_metadata(metadata) if has_audio else None
    check_tensors(file, mmproj_tensors(vision, audio))
    return MmprojPart(file, vision, audio, bundle_id_of(metadata))


def open_adapter(path: Path, decoder: DecoderPart) -> AdapterPart:
    """Open an adapter file and check it against the decoder it is for.

    Raises:
        ModelFileError: libllama could not load it for this decoder.
    """
    return check_adapter(GGUFFile.open(path), decoder)


def check_adapter(file: GGUFFile, decoder: DecoderPart) -> AdapterPart:
    """Check an adapter file that is open, for a decoder.

    Raises:
        ModelFileError: libllama could not load it for this decoder.
    """
    _require_role(file, "adapter")
    hparams = AdapterHParams.from_metadata(file.metadata, _rank(file))
    try:
        check_tensors(file, adapter_tensors(hparams, decoder.hparams))
    except ModelFileError as error:
        raise ModelFileError(f"{error} (as an adapter for {decoder.path})") from None
    return AdapterPart(file, hparams)


def _rank(file: GGUFFile) -> int:
    for name, info in file.tensors.items():
        if name.endswith(LORA_A_SUFFIX) and len(info.shape) == 2:
            return info.shape[0]
    raise ModelFileError(f"{file.path}: no matrix {LORA_A_SUFFIX}, an adapter must have some")


def _refuse_split(metadata: Metadata) -> None:
    key = keys.General.SPLIT_COUNT
    if key in metadata and metadata.number(key) > 1:
        raise metadata.error(
            f"one of {metadata[key]} pieces of a split file, must be one file: "
            f"join them with llama-gguf-split --merge"
        )
