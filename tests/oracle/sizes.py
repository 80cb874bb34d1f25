"""The two tiny models of the tests: the real architecture with small numbers in it.

``tiny`` is small and quick.  ``heads`` has the real head sizes (128 decoder, 72 vision, 64 audio),
rows that no quantisation block divides, another vocabulary and another original context.
"""

from __future__ import annotations

from dataclasses import dataclass

N_MELS = 80
PATCH_SIZE = 14
CROP_SIZE = 448
PARTIAL_ROTARY = 0.75

IMAGE_TOKEN = "<|endoftext10|>"
AUDIO_TOKEN = "<|endoftext11|>"
SPECIAL_TOKENS = (
    "<|endoftext|>",
    IMAGE_TOKEN,
    AUDIO_TOKEN,
    "<|endofprompt|>",
    "<|assistant|>",
    "<|end|>",
    "<|user|>",
    "<|system|>",
    "<|tool|>",
    "<|/tool|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|tool_response|>",
    "<|tag|>",
)


@dataclass(frozen=True)
class VisionSizes:
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int


@dataclass(frozen=True)
class AudioSizes:
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_conv: int
    max_distance: int


@dataclass(frozen=True)
class AdapterSizes:
    rank: int
    alpha: int


@dataclass(frozen=True)
class Sizes:
    """Everything that tells one tiny model from another.

    Attributes:
        n_bpe: tokens of the tokenizer before the special ones.
        n_vocab: rows of the embedding; those past the tokenizer's are unused, as in the real model.
        n_ctx_orig: the original context, beyond which the long RoPE factors apply.
    """

    seed: int
    n_bpe: int
    n_vocab: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_layer: int
    n_ctx_orig: int
    n_ctx_max: int
    vision: VisionSizes
    audio: AudioSizes
    vision_lora: AdapterSizes
    speech_lora: AdapterSizes

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def n_qkv(self) -> int:
        return (self.n_head + 2 * self.n_head_kv) * self.head_dim

    @property
    def n_used_vocab(self) -> int:
        return self.n_bpe + len(SPECIAL_TOKENS)

    @property
    def adapters(self) -> dict[str, AdapterSizes]:
        return {"vision": self.vision_lora, "speech": self.speech_lora}


SIZES = {
    "tiny": Sizes(
        seed=1234,
        n_bpe=480,
        n_vocab=512,
        n_embd=256,
        n_head=4,
        n_head_kv=2,
        n_ff=512,
        n_layer=2,
        n_ctx_orig=1024,
        n_ctx_max=4096,
        vision=VisionSizes(n_embd=64, n_ff=96, n_layer=3, n_head=4),
        audio=AudioSizes(n_embd=64, n_ff=96, n_layer=2, n_head=4, n_conv=32, max_distance=20),
        vision_lora=AdapterSizes(rank=8, alpha=16),
        speech_lora=AdapterSizes(rank=10, alpha=20),
    ),
    "heads": Sizes(
        seed=99,
        n_bpe=700,
        n_vocab=768,
        n_embd=512,
        n_head=4,
        n_head_kv=2,
        n_ff=1024,
        n_layer=3,
        n_ctx_orig=512,
        n_ctx_max=16384,
        vision=VisionSizes(n_embd=216, n_ff=304, n_layer=4, n_head=3),
        audio=AudioSizes(n_embd=192, n_ff=224, n_layer=3, n_head=3, n_conv=40, max_distance=50),
        vision_lora=AdapterSizes(rank=32, alpha=64),
        speech_lora=AdapterSizes(rank=64, alpha=192),
    ),
}
