"""What the user wants: of the engine at start, and of each answer.  Never mixed with hparams."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from typing import Literal, get_args

from phi4mm.errors import InputError

DEFAULT_ENCODER_CACHE_BYTES = 256 << 20
KVType = Literal["f32", "f16", "q8_0"]
FlashAttention = Literal["on", "off", "auto"]


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Settings fixed when a bundle is loaded.

    Attributes:
        n_ctx: positions per sequence, prompt and answer together; None takes the smaller of 8192
            and what the model was trained for.
        n_threads: CPU threads; None takes all cores this process may use.
        n_gpu_layers: decoder layers on an accelerator, if the native library has one.
        type_k: element type of cached keys.
        type_v: element type of cached values.
        flash_attention: the decoder's attention kernel.
        n_batch: most tokens in one prefill step.
        encoder_cache_bytes: bound on cached embeddings of pictures and clips.
    """

    n_ctx: int | None = None
    n_threads: int | None = None
    n_gpu_layers: int = 0
    type_k: KVType = "f16"
    type_v: KVType = "f16"
    flash_attention: FlashAttention = "auto"
    n_batch: int = 512
    encoder_cache_bytes: int = DEFAULT_ENCODER_CACHE_BYTES

    def __post_init__(self) -> None:
        for name, low in (("n_ctx", 1), ("n_threads", 1), ("n_gpu_layers", 0), ("n_batch", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"{name} is {value}: it must be at least {low}")
        _check_choice("type_k", self.type_k, get_args(KVType))
        _check_choice("type_v", self.type_v, get_args(KVType))
        _check_choice("flash_attention", self.flash_attention, get_args(FlashAttention))

    @property
    def threads(self) -> int:
        """The thread count to use."""
        if self.n_threads is not None:
            return self.n_threads
        if sys.platform == "linux":
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} is {value!r}: use one of {', '.join(choices)}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to stop.

    Attributes:
        temperature: 0 takes the most likely token each time, as the reference does by default.
        top_k: keep this many candidates; 0 keeps all.
        top_p: keep the smallest set of candidates with at least this probability; 1 keeps all.
        min_p: drop candidates below this fraction of the best one's probability; 0 keeps all.
        seed: makes sampling repeatable; None draws a fresh one.
        max_tokens: most tokens to generate; None goes on until a stop token or a full context.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}: it must be a number from 0 up")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}: it must be 0 (all) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}: it must be above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p is {self.min_p}: it must lie between 0 and 1")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise InputError(f"seed is {self.seed}: it must lie between 0 and 2**64 - 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}: it must be at least 1")
