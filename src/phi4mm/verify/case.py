"""What both sides are asked, and what each answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Stages = dict[str, list[Array]]
"""Intermediate tensors by name, one for each piece; names as the encoders' taps have them."""

N_GREEDY: Final = 32
_MEDIA: Final = Path(str(files("phi4mm") / "sample" / "media"))
PICTURE: Final = _MEDIA / "picture.png"
CLIP: Final = _MEDIA / "clip.flac"


@dataclass(frozen=True, slots=True)
class Case:
    """A raw prompt.

    Attributes:
        name: for the report.
        prompt: special tokens are parsed.
        images: one for each picture marker.
        audios: one for each clip marker.
    """

    name: str
    prompt: str
    images: tuple[Path, ...] = ()
    audios: tuple[Path, ...] = ()


CASES: Final = (
    Case("text", "<|user|>What is the capital of France?<|end|><|assistant|>"),
    Case("picture", "<|user|><|image_1|>What is this?<|end|><|assistant|>", images=(PICTURE,)),
    Case(
        "sound",
        "<|user|><|audio_1|>Transcribe the audio clip into text.<|end|><|assistant|>",
        audios=(CLIP,),
    ),
    Case(
        "picture and sound",
        "<|user|><|image_1|><|audio_1|><|end|><|assistant|>",
        images=(PICTURE,),
        audios=(CLIP,),
    ),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the bundle answers to a case.

    Attributes:
        logits: after every token of the prompt, (n_tokens, n_vocab).
        tokens: the greedy answer.
    """

    logits: Array = field(repr=False)
    tokens: tuple[int, ...]
