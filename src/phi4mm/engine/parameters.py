"""What the user wants: of the engine at start, and of each answer.  Never mixed with hparams."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from phi4mm.errors import SettingError
from phi4mm.native.device import NO_OFFLOAD, Offload

DEFAULT_ENCODER_CACHE_BYTES = 256 << 20
KVType = Literal["f32", "f16", "q8_0"]
FlashAttention = Literal["on", "off", "auto"]


# More sequences than this libllama does not take (LLAMA_MAX_SEQ).
_MAX_SLOTS = 256
_MAX_THREADS = 512  # ggml's own limit
_MAX_INT32 = 2**31 - 1
_ENGINE_RANGES: tuple[tuple[str, int, int], ...] = (
    ("n_ctx", 1, _MAX_INT32),
    ("n_threads", 1, _MAX_THREADS),
    ("n_batch", 1, _MAX_INT32),
    ("n_slots", 1, _MAX_SLOTS),
    ("n_long_slots", 1, _MAX_SLOTS),
    ("max_waiting", 0, _MAX_INT32),
)


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Settings fixed when a bundle is loaded.

    Attributes:
        n_ctx: positions per sequence, prompt and answer together; None takes the smaller of 8192
            and what the model was trained for.
        n_threads: CPU threads; None takes all cores this process may use.
        offload: what goes to accelerators, and to which.
        type_k: element type of cached keys.
        type_v: element type of cached values.
        flash_attention: the decoder's attention kernel.
        n_batch: most tokens in one prefill step.
        n_slots: sequences at the same time within the original context.  With one, a prompt is
            computed in steps of ``n_batch``; with more, in steps of about a second, so that it
            does not hold up the others.
        n_long_slots: sequences at the same time beyond the original context.
        max_waiting: requests that may wait for a slot; more are refused.
        encoder_cache_bytes: bound on cached embeddings of pictures and clips.
        encoder_cache_dir: folder that keeps them as well, for the next process; None for none.
        encoder_cache_dir_bytes: bound on the files there.
    """

    n_ctx: int | None = None
    n_threads: int | None = None
    offload: Offload = NO_OFFLOAD
    type_k: KVType = "f16"
    type_v: KVType = "f16"
    flash_attention: FlashAttention = "auto"
    n_batch: int = 512
    n_slots: int = 1
    n_long_slots: int = 1
    max_waiting: int = 64
    encoder_cache_bytes: int = DEFAULT_ENCODER_CACHE_BYTES
    encoder_cache_dir: Path | None = None
    encoder_cache_dir_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        for name, low, high in _ENGINE_RANGES:
            _check_range(name, getattr(self, name), int, low, high)
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
        raise SettingError(name, f"is {value!r}: use one of {', '.join(choices)}")


_OPTIONAL = frozenset({"n_ctx", "n_threads", "seed", "max_tokens", "top_logprobs"})


def _check_range(
    name: str, value: object, kind: type[int] | type[float], low: float, high: float
) -> None:
    """Refuse a value of the wrong kind or out of range."""
    if value is None and name in _OPTIONAL:
        return
    kinds = (int,) if kind is int else (int, float)
    if isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high:
        return
    wanted = "a whole number" if kind is int else "a number"
    is_too_low = not isinstance(value, kinds) or value < low
    limits = f"at least {low:g}" if high >= _MAX_INT32 and is_too_low else f"from {low:g} to {high}"
    raise SettingError(name, f"is {value!r}: it must be {wanted}, {limits}")


_SAMPLING_RANGES: tuple[tuple[str, type[int] | type[float], float, float], ...] = (
    ("temperature", float, 0, sys.float_info.max),
    ("top_k", int, 0, _MAX_INT32),
    ("min_p", float, 0, 1),
    ("seed", int, 0, 2**64 - 1),
    ("max_tokens", int, 1, _MAX_INT32),
    ("presence_penalty", float, -2, 2),
    ("frequency_penalty", float, -2, 2),
    ("top_logprobs", int, 0, 20),
)


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
        stop: strings that end the answer; they and what follows are not part of it.
        presence_penalty: taken off the logit of every token already generated, -2 to 2.
        frequency_penalty: taken off it once for each time it was generated, -2 to 2.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt
            and answer; 1 changes nothing.
        logit_bias: (token id, number added to its logit), -100 to 100.
        top_logprobs: how many of the likeliest tokens each event lists beside the one taken, up
            to 20; None gives no log probabilities at all.
        json_schema: JSON text of a schema that the answer must fit.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None
    json_schema: str | None = None

    def __post_init__(self) -> None:
        for name, kind, low, high in _SAMPLING_RANGES:
            _check_range(name, getattr(self, name), kind, low, high)
        for name, low, high in (("top_p", 0, 1), ("repetition_penalty", 0, math.inf)):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and math.isfinite(value)
            if not (is_number and low < value <= high):
                upper = "" if high == math.inf else f" and at most {high}"
                raise SettingError(name, f"is {value}: it must be above {low}{upper}")
        if "" in self.stop:
            raise SettingError("stop", "holds an empty string: give at least one character")
        for token_id, bias in self.logit_bias:
            if token_id < 0 or not -100 <= bias <= 100:
                raise SettingError(
                    "logit_bias",
                    f"of token {token_id} is {bias}: it must be from -100 to 100, the id 0 or more",
                )
