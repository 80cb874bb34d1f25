"""Made-up requests of known size, to time a model and to fill its memory.

Pictures and clips are noise from a seed: every one is new to the caches, and the same on every
machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from phi4mm.api import Phi4MM
from phi4mm.engine.parameters import SamplingParams
from phi4mm.prompt.message import user_message

_LOUDNESS = 0.1
_WORD = " so"


def noise_picture(width: int, height: int, seed: int) -> Image.Image:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def noise_clip(seconds: float, rate: int, seed: int) -> tuple[npt.NDArray[np.float32], int]:
    """A clip of white noise."""
    n_samples = round(seconds * rate)
    samples = np.random.default_rng(seed).standard_normal(n_samples, np.float32)
    return samples * np.float32(_LOUDNESS), rate


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests to make once, one after another.

    Attributes:
        words: lengths of prompts of text alone, in words of one token or two.
        picture: width and height of a picture to ask about; None for no picture.
        clip_s: seconds of sound to ask about; None for no clip.
    """

    words: tuple[int, ...]
    picture: tuple[int, int] | None = None
    clip_s: float | None = None

    def run(self, model: Phi4MM) -> None:
        """Make the requests.

        Raises:
            PromptTooLong: one does not fit the context.
        """
        one_token = SamplingParams(max_tokens=1)
        messages = [user_message(f"{n}:{_WORD * n}") for n in self.words]
        if self.picture is not None:
            messages.append(user_message("What?", images=[noise_picture(*self.picture, seed=0)]))
        if self.clip_s is not None:
            assert model.bundle.audio is not None
            rate = model.bundle.audio.mel.sample_rates[0]
            messages.append(user_message("What?", audios=[noise_clip(self.clip_s, rate, seed=0)]))
        for message in messages:
            for _ in model.generate([message], one_token):
                pass
