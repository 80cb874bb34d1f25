"""What programs around stock llama.cpp need to know of a bundle, and what they cannot do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from phi4mm.convert.naming import slug
from phi4mm.convert.writer import OutputFile
from phi4mm.errors import InputError
from phi4mm.export.export_set import Maker
from phi4mm.export.stock_vision import stock_vision_file
from phi4mm.modality import Adapter
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.hparams import VisionHParams
from phi4mm.modelfile.reader import GGUFFile

STOPS: Final = ("<|end|>", "<|endoftext|>")
MODEL_NAME: Final = "phi4-mm"


@dataclass(frozen=True, slots=True)
class StockVision:
    """What the mmproj of stock llama.cpp is made from.

    Attributes:
        file: the bundle's mmproj; open as long as the bundle is.
        hparams: of its vision encoder.
    """

    file: GGUFFile
    hparams: VisionHParams


@dataclass(frozen=True, slots=True)
class StockModel:
    """The parts that stock llama.cpp loads.

    Attributes:
        decoder: its file.
        adapters: files of LoRA adapters.
        name: what the model is called.
        n_ctx: positions up to which the RoPE factors are the reference's.
        n_ctx_train: most positions.
        merged: the adapter inside the decoder, if one is.
        vision: the vision encoder, if there is one.
    """

    decoder: Path
    adapters: Mapping[Adapter, Path]
    name: str
    n_ctx: int
    n_ctx_train: int
    merged: Adapter | None
    vision: StockVision | None

    @classmethod
    def of(cls, bundle: Bundle) -> StockModel:
        """The parts of an opened bundle, by absolute paths."""
        hparams = bundle.decoder.hparams
        encoders = bundle.mmproj
        name = bundle.decoder.file.metadata.get(keys.General.NAME, MODEL_NAME)
        return cls(
            decoder=_absolute(bundle.decoder.path),
            adapters={name: _absolute(part.path) for name, part in bundle.adapters.items()},
            name=slug(str(name)),
            n_ctx=hparams.n_ctx_orig,
            n_ctx_train=hparams.n_ctx_train,
            merged=hparams.merged_adapter,
            vision=StockVision(encoders.file, encoders.vision)
            if encoders is not None and encoders.vision is not None
            else None,
        )

    @property
    def mmproj_name(self) -> str:
        """What the file of the encoder for pictures is called."""
        return f"mmproj-{self.name}-pictures-F16.gguf"

    def mmproj(self, place: str) -> dict[str, Maker]:
        """The encoder for pictures, by its place in an export's folder; nothing if there is none.

        Only while the bundle is open.
        """
        return {} if self.vision is None else {place: partial(self._planned_mmproj, self.vision)}

    def _planned_mmproj(self, vision: StockVision, path: Path) -> OutputFile:
        folder = path.parent
        if folder.exists() and folder.samefile(self.decoder.parent):
            raise InputError(
                f"{folder}: holds the bundle, which a second mmproj would make ambiguous: "
                "choose another folder, or --no-mmproj"
            )
        return stock_vision_file(vision.file, vision.hparams, path, self.name)

    def notes(
        self, program: str, context_flag: str, *, can_see: bool, sees: bool
    ) -> tuple[str, ...]:
        """What the program cannot do with this model, and what can.

        Args:
            program: its name.
            context_flag: how it is told the size of its context.
            can_see: whether it would be given the encoder for pictures, if that were written.
            sees: whether it is given it.
        """
        bundle = shlex.quote(str(self.decoder.parent))
        notes = (
            f"{program} {self._media(can_see, sees)}, and does not choose the adapter by what a "
            f"conversation holds. For these: phi4mm serve -m {bundle}, which any OpenAI client can "
            "use",
            f"{program} chooses the RoPE factors by its context size, not by the length of a "
            f"prompt: {context_flag} {self.n_ctx} gives the reference's answers; a larger one "
            f"changes all of them. For longer prompts: phi4mm serve -m {bundle} -c "
            f"{self.n_ctx_train}",
        )
        if self.merged is None:
            return notes
        return (*notes, f"the {self.merged} adapter is merged into this decoder: its text is that "
                        "of the adapter, not of the base model")  # fmt: skip

    def _media(self, can_see: bool, sees: bool) -> str:
        if self.vision is None or not sees:
            if can_see:
                return "answers text only as shown here (-o FOLDER writes an encoder for pictures)"
            return (
                "answers text only: it is given no encoder of this model, neither for pictures "
                "(HD crops) nor for sound"
            )
        side = self.vision.hparams.image_size
        return (
            f"sees a picture as one crop of {side}x{side} pixels on black, without HD crops (small "
            "print is lost) and with one row separator instead of one after each row, hears nothing"
        )


def _absolute(path: Path) -> Path:
    """By its own name: in the hub's cache a file is a link to one that is named after its hash."""
    return path.parent.resolve() / path.name
