"""What programs around stock llama.cpp need to know of a bundle, and what they cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phi4mm.convert.naming import slug
from phi4mm.modality import Adapter
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle

STOPS: Final = ("<|end|>", "<|endoftext|>")
MODEL_NAME: Final = "phi4-mm"


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
    """

    decoder: Path
    adapters: Mapping[Adapter, Path]
    name: str
    n_ctx: int
    n_ctx_train: int
    merged: Adapter | None

    @classmethod
    def of(cls, bundle: Bundle) -> StockModel:
        """The parts of an opened bundle, by absolute paths."""
        hparams = bundle.decoder.hparams
        name = bundle.decoder.file.metadata.get(keys.General.NAME, MODEL_NAME)
        return cls(
            decoder=bundle.decoder.path.resolve(),
            adapters={name: part.path.resolve() for name, part in bundle.adapters.items()},
            name=slug(str(name)),
            n_ctx=hparams.n_ctx_orig,
            n_ctx_train=hparams.n_ctx_train,
            merged=hparams.merged_adapter,
        )

    def notes(self, program: str, context_flag: str) -> tuple[str, ...]:
        """What the program cannot do with this model, and what can."""
        bundle = self.decoder.parent
        notes = (
            f"{program} answers text only: it has no encoder of this model, neither for pictures "
            "(HD crops) nor for sound, and does not choose the adapter by what a conversation "
            f"holds. For these: phi4mm serve -m {bundle}, which any OpenAI client can use",
            f"{program} chooses the RoPE factors by its context size, not by the length of a "
            f"prompt: {context_flag} {self.n_ctx} gives the reference's answers; a larger one "
            f"changes all of them. For longer prompts: phi4mm serve -m {bundle} -c "
            f"{self.n_ctx_train}",
        )
        if self.merged is None:
            return notes
        return (*notes, f"the {self.merged} adapter is merged into this decoder: its text is that "
                        "of the adapter, not of the base model")  # fmt: skip
