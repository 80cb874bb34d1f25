"""The prompts that the goldens answer, and how much of each answer is kept.

No case depends on the machine: prompts are written out in full beside their goldens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oracle.media import CLIPS, PICTURES
from oracle.sizes import SPECIAL_TOKENS, Sizes

USER, ANSWER = "<|user|>", "<|end|><|assistant|>"
ASK = "What is shown in this image?"
HEAR = "Transcribe the audio clip into text."
N_ROWS_KEPT = 16
N_GREEDY_STEPS = 24
# A prompt of this many tokens fewer than the original context crosses it while answering.
N_BEFORE_CROSSING = 8


@dataclass(frozen=True)
class Case:
    """One prompt with its media.

    Attributes:
        prompt: raw template text; ``<|image_1|>`` and ``<|audio_1|>`` mark the media in order.
        adapter: the adapter that the reference applies: "vision", "speech" or None.
        tapped: whether named intermediate tensors are kept too.
    """

    name: str
    prompt: str
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    adapter: str | None = None
    tapped: bool = False


def stride(n_rows: int) -> int:
    """Every how many rows one is kept, so that at most ``N_ROWS_KEPT`` are.

    Odd, so that the rows of a square grid of patches are not all of one column.
    """
    return -(-n_rows // N_ROWS_KEPT) | 1


def all_cases(sizes: Sizes) -> list[Case]:
    return [*text_cases(sizes.n_ctx_orig), *picture_cases(), *clip_cases(), *mixed_cases()]


def text_cases(n_ctx_orig: int) -> list[Case]:
    system = "<|system|>You are helpful.<|end|>"
    question = f"{USER}The quick brown fox jumps over 13 lazy dogs?{ANSWER}"
    turns = (
        f"{system}{USER}Hello world.{ANSWER}Bonjour le monde.<|end|>"
        f"{USER}Describe 2024, please:\n\n  100% fun!{ANSWER}Guten Tag.<|end|>"
        f"{USER}And then?{ANSWER}"
    )
    lengths = (n_ctx_orig, n_ctx_orig + 1, n_ctx_orig + 76)
    return [
        *(Case(f"text_{a or 'base'}", system + question, adapter=a) for a in ADAPTERS),
        Case("text_three_turns", turns),
        *(Case(f"text_{n}", special_tokens(n)) for n in lengths),
    ]


ADAPTERS = (None, "vision", "speech")


def picture_cases() -> list[Case]:
    one = [
        Case(
            name.removesuffix(".png"),
            f"{USER}<|image_1|>{ASK}{ANSWER}",
            images=(name,),
            adapter="vision",
            tapped=name == "i150x333.png",
        )
        for name in PICTURES
    ]
    both = ("i700x500.png", "i150x333.png")
    prompt = f"{USER}<|image_1|><|image_2|>{ASK}{ANSWER}"
    return [*one, Case("two_images", prompt, images=both, adapter="vision")]


def clip_cases() -> list[Case]:
    one = [
        Case(
            name.removesuffix(".wav"),
            f"{USER}<|audio_1|>{HEAR}{ANSWER}",
            audios=(name,),
            adapter="speech",
            tapped=name == "a48077_16000.wav",
        )
        for name in CLIPS
        if name != "a33234_16000.wav"
    ]
    both = ("a48077_16000.wav", "a33234_16000.wav")
    prompt = f"{USER}<|audio_1|><|audio_2|>{HEAR}{ANSWER}"
    return [*one, Case("two_audios", prompt, audios=both, adapter="speech")]


def mixed_cases() -> list[Case]:
    odd, wide = "i150x333.png", "i700x500.png"
    long, short = "a48077_16000.wav", "a33234_16000.wav"
    one_each = f"{USER}<|image_1|><|audio_1|>"
    interleaved = f"{USER}<|image_1|>{ASK}<|audio_1|><|image_2|>{ANSWER}"
    return [
        Case("image_audio", one_each + ANSWER, (wide,), (long,), "vision"),
        Case("image_audio_text", one_each + ASK + ANSWER, (odd,), (short,), "vision"),
        Case("two_images_audio", interleaved, (odd, "i448x448.png"), (short,), "vision"),
    ]


def special_tokens(n: int, seed: int = 8) -> str:
    """``n`` special tokens, one token each, varied so that positions matter."""
    names = [token for token in SPECIAL_TOKENS if "endoftext" not in token]
    draws = np.random.RandomState(seed).random_sample(n)
    return "".join(names[int(x * len(names))] for x in draws)
