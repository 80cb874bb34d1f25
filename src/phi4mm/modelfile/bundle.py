"""A bundle: the files that together are one model, opened and checked against each other.

A folder gives all its parts; a decoder file gives itself and the files beside it that name the same
bundle id.  Files are recognised by their metadata, never by name.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final

from phi4mm.errors import ModelFileError
from phi4mm.modality import Adapter as AdapterName
from phi4mm.modality import Mode
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle_search import find_files
from phi4mm.modelfile.hparams import AudioHParams, VisionHParams
from phi4mm.modelfile.hparams.fields import is_own
from phi4mm.modelfile.part import (
    AdapterPart,
    DecoderPart,
    MmprojPart,
    check_adapter,
    check_decoder,
    check_mmproj,
)

AnyPath = str | PathLike[str]

_log = logging.getLogger(__name__)

# what a bundle with a merged adapter cannot answer, by the adapter that the mode would need
_MODE_NAMES: Final[dict[AdapterName | None, str]] = {
    None: "text alone",
    "vision": "pictures",
    "speech": "sound without a picture",
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """The parts of one model.

    Attributes:
        decoder: the decoder.
        mmproj: the encoders, if there are any.
        adapters: LoRA adapters by the mode they serve.
        warnings: what could not be checked or was left out, one line each; logged as well.
    """

    decoder: DecoderPart
    mmproj: MmprojPart | None
    adapters: Mapping[AdapterName, AdapterPart]
    warnings: tuple[str, ...]

    @classmethod
    def open(
        cls,
        path: AnyPath,
        mmproj: AnyPath | None = None,
        vision_lora: AnyPath | None = None,
        speech_lora: AnyPath | None = None,
    ) -> Bundle:
        """Open a bundle.

        Args:
            path: its folder, or its decoder file.
            mmproj: the mmproj file to use instead of the one found.
            vision_lora: the vision adapter to use instead of the one found.
            speech_lora: the speech adapter to use instead of the one found.

        Raises:
            ModelFileError: a part is missing, malformed, of the wrong kind, or of another model.
        """
        loras: dict[AdapterName, AnyPath | None] = {"vision": vision_lora, "speech": speech_lora}
        named = {name: _path(lora) for name, lora in loras.items() if lora is not None}
        files = find_files(_path(path), None if mmproj is None else _path(mmproj), named)
        decoder = check_decoder(files.decoder)
        warnings = [*files.warnings, *_decoder_warnings(decoder)]
        encoders = None
        if files.mmproj is not None:
            encoders = check_mmproj(files.mmproj)
            _check_widths(decoder, encoders)
            warnings += _check_ids(decoder, encoders)
        adapters: dict[AdapterName, AdapterPart] = {}
        for name, file in files.adapters.items():
            if decoder.hparams.merged_adapter is not None:
                warnings.append(_unused_adapter(decoder, file.path, is_named=name in named))
                continue
            adapters[name] = check_adapter(file, decoder)
            warnings += _check_name(adapters[name], name) + _check_ids(decoder, adapters[name])
        for warning in warnings:
            _log.warning("%s", warning)
        return cls(decoder, encoders, adapters, tuple(warnings))

    @property
    def bundle_id(self) -> str | None:
        """Identity of the source checkpoint, if the decoder names one."""
        return self.decoder.bundle_id

    @property
    def vision(self) -> VisionHParams | None:
        """Hyper-parameters of the vision encoder, if there is one."""
        return self.mmproj.vision if self.mmproj else None

    @property
    def audio(self) -> AudioHParams | None:
        """Hyper-parameters of the audio encoder, if there is one."""
        return self.mmproj.audio if self.mmproj else None

    def only(self, mode: Mode) -> Bundle:
        """The same bundle with the parts that one mode needs, as far as they are here."""
        adapters = {name: part for name, part in self.adapters.items() if name == mode.adapter}
        needs_encoders = mode.adapter is not None or mode.audio_projection is not None
        return replace(self, mmproj=self.mmproj if needs_encoders else None, adapters=adapters)

    def supports(self, mode: Mode) -> bool:
        """Whether this bundle has what a mode needs."""
        return self.missing_for(mode) is None

    def missing_for(self, mode: Mode) -> str | None:
        """One line that says what a mode needs and this bundle lacks, and what to do; else None."""
        merged = self.decoder.hparams.merged_adapter
        if merged is not None and mode.adapter != merged:
            return (
                f"{self.decoder.path} has its {merged} adapter merged in and cannot answer "
                f"{_MODE_NAMES[mode.adapter]}: use a bundle converted without --merge"
            )
        if mode.adapter == "vision" and self.vision is None:
            return self._no_encoder("vision")
        if mode.audio_projection is not None and self.audio is None:
            return self._no_encoder("audio")
        if merged is None and mode.adapter is not None and mode.adapter not in self.adapters:
            return (
                f"this model has no {mode.adapter} adapter: put its file beside "
                f"{self.decoder.path}, or give it with --{mode.adapter}-lora"
            )
        return None

    def _no_encoder(self, name: str) -> str:
        if self.mmproj is not None:
            return f"{self.mmproj.path} has no {name} encoder: make one with phi4mm convert"
        return (
            f"this model has no {name} encoder: put its mmproj file beside "
            f"{self.decoder.path}, or give it with --mmproj"
        )

    def close(self) -> None:
        """Let go of all files; closing twice is fine."""
        for part in self._parts():
            part.file.close()

    def _parts(self) -> Iterator[DecoderPart | MmprojPart | AdapterPart]:
        yield self.decoder
        if self.mmproj is not None:
            yield self.mmproj
        yield from self.adapters.values()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _path(given: AnyPath) -> Path:
    """A path that can be looked up; an empty one would mean the working directory."""
    if not isinstance(given, (str, PathLike)):
        raise ModelFileError(f"a model is given by its path, not by {type(given).__name__}")
    if not os.fspath(given):
        raise ModelFileError("the path of the model is empty: give a bundle folder or a GGUF file")
    path = Path(given)
    try:
        path.exists()
    except (OSError, ValueError) as error:  # too long, or with a NUL character
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{str(path)[:80]}: cannot be looked up ({reason})") from None
    return path


def _decoder_warnings(decoder: DecoderPart) -> list[str]:
    """What a decoder file of another program leaves open."""
    metadata, h = decoder.file.metadata, decoder.hparams
    warnings = []
    if not is_own(metadata):
        warnings.append(
            f"{decoder.path}: made by another program: that it is the decoder of "
            f"Phi-4-multimodal cannot be checked"
        )
    key = keys.Decoder.ROPE_ATTN_FACTOR
    if key not in metadata and h.n_ctx_train > h.n_ctx_orig:
        right = math.sqrt(1 + math.log(h.n_ctx_train / h.n_ctx_orig) / math.log(h.n_ctx_orig))
        warnings.append(
            f"{decoder.path}: {key} is missing: 1 is used where the reference has {right:.6g}, "
            f"so answers will differ"
        )
    return warnings


def _check_ids(decoder: DecoderPart, part: MmprojPart | AdapterPart) -> list[str]:
    """Refuse a part of another checkpoint; warn where that cannot be known."""
    if decoder.bundle_id is not None and part.bundle_id is not None:
        if decoder.bundle_id != part.bundle_id:
            raise ModelFileError(
                f"{part.path}: of another model than {decoder.path}: "
                f"bundle ids {part.bundle_id} and {decoder.bundle_id}, must be equal"
            )
        return []
    nameless = decoder.path if decoder.bundle_id is None else part.path
    return [
        f"{part.path}: its shapes fit {decoder.path}, but that both are of one model cannot be "
        f"checked: {nameless.name} has no bundle id"
    ]


def _check_widths(decoder: DecoderPart, mmproj: MmprojPart) -> None:
    for name, encoder in (("vision", mmproj.vision), ("audio", mmproj.audio)):
        if encoder is not None and encoder.n_embd_out != decoder.hparams.n_embd:
            raise ModelFileError(
                f"{mmproj.path}: the {name} projector gives {encoder.n_embd_out} numbers, "
                f"must be {decoder.hparams.n_embd} for {decoder.path}"
            )


def _check_name(adapter: AdapterPart, wanted: AdapterName) -> list[str]:
    """Refuse an adapter in the other's place; warn where the file does not say which it is."""
    name = adapter.hparams.name
    if name is None:
        return [f"{adapter.path}: does not say which mode it serves; used as the {wanted} adapter"]
    if name != wanted:
        raise ModelFileError(
            f"{adapter.path}: this is the {name} adapter, must be the {wanted} adapter"
        )
    return []


def _unused_adapter(decoder: DecoderPart, file: Path, *, is_named: bool) -> str:
    """A merged decoder takes no adapter: refuse one that was asked for, leave out one found."""
    merged = decoder.hparams.merged_adapter
    text = f"{decoder.path} has its {merged} adapter merged in and takes no other"
    if is_named:
        raise ModelFileError(f"{file}: cannot be used: {text}")
    return f"{file}: left out, {text}"
