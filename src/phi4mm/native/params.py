"""What a context is made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from phi4mm.errors import InputError

CacheType = Literal["f32", "f16", "q8_0"]
FlashAttention = Literal["on", "off", "auto"]


@dataclass(frozen=True, slots=True)
class ContextParams:
    """Sizes and kinds of a context's buffers; nothing is chosen or clamped by the library.

    Attributes:
        n_ctx_seq: positions for each sequence; the library rounds up to a multiple of 256.
        n_threads: threads for a step of one row.
        n_threads_batch: threads for a step of more rows.
        n_seq_max: how many sequences the context holds, each with a cache of its own.
        n_batch: most rows in one decode.
        n_ubatch: rows computed at once; a decode is split into such pieces.
        n_outputs_max: most rows of one decode that may ask for logits, at least ``n_seq_max``.
            The buffer for them takes ``n_outputs_max`` times the vocabulary times 4 bytes.
        type_k: type of cached keys.
        type_v: type of cached values; a quantised one needs flash attention.
        flash_attn: the fused attention kernel.  The library rounds an f32 cache to f16 for it, so
            "on" is refused with one, and "auto" is off then; otherwise the library decides.
    """

    n_ctx_seq: int
    n_threads: int
    n_threads_batch: int
    n_seq_max: int = 1
    n_batch: int = 512
    n_ubatch: int = 512
    n_outputs_max: int = 1
    type_k: CacheType = "f16"
    type_v: CacheType = "f16"
    flash_attn: FlashAttention = "auto"

    def __post_init__(self) -> None:
        """Refuse what the library would clamp, or abort on.

        Raises:
            InputError: names the field, its value and what would be right.
        """
        for name in ("n_ctx_seq", "n_threads", "n_threads_batch", "n_seq_max", "n_ubatch"):
            self._require(name, at_least=1)
        self._require("n_batch", at_least=self.n_ubatch, at_most=self.n_ctx_seq * self.n_seq_max)
        self._require("n_outputs_max", at_least=self.n_seq_max, at_most=self.n_batch)
        for name, allowed in (
            ("type_k", get_args(CacheType)),
            ("type_v", get_args(CacheType)),
            ("flash_attn", get_args(FlashAttention)),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
        if self.flash_attn == "on" and self._is_f32:
            raise InputError("flash_attn is on, which rounds an f32 cache to f16: use f16 or off")
        if self.type_v == "q8_0" and (self.flash_attn == "off" or self._is_f32):
            raise InputError("type_v is q8_0, which needs flash attention, and type_k f16 or q8_0")

    @property
    def _is_f32(self) -> bool:
        return "f32" in (self.type_k, self.type_v)

    def native(self, lib: Any) -> Any:
        """A ``llama_context_params`` with these values, and the library's defaults elsewhere."""
        native = lib.llama_context_default_params()
        native.n_ctx = self.n_ctx_seq * self.n_seq_max
        native.kv_unified = False
        native.n_seq_max = self.n_seq_max
        native.n_batch = self.n_batch
        native.n_ubatch = self.n_ubatch
        native.n_outputs_max = self.n_outputs_max
        native.n_threads = self.n_threads
        native.n_threads_batch = self.n_threads_batch
        native.type_k = getattr(lib, f"GGML_TYPE_{self.type_k.upper()}")
        native.type_v = getattr(lib, f"GGML_TYPE_{self.type_v.upper()}")
        native.flash_attn_type = {
            "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
            "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        }["off" if self._is_f32 else self.flash_attn]
        return native

    def _require(self, name: str, *, at_least: int, at_most: int | None = None) -> None:
        value = getattr(self, name)
        if value < at_least or (at_most is not None and value > at_most):
            upper = "" if at_most is None else f" and at most {at_most}"
            raise InputError(f"{name} is {value}, expected at least {at_least}{upper}")
