"""The sample model's sizes: everything that stands in its config.json, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

RATE = 16000


@dataclass(frozen=True)
class DecoderGeometry:
    """Sizes of the text decoder; all row lengths are multiples of 256, so that K-quants apply."""

    n_vocab: int = 1536
    n_embd: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 768
    n_ctx: int = 8192
    n_ctx_original: int = 1024
    partial_rotary: float = 0.75
    rope_theta: float = 10000.0
    eps: float = 1e-5

    @property
    def n_head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def n_rotary(self) -> int:
        return int(self.n_head_dim * self.partial_rotary)

    @property
    def short_factor(self) -> list[float]:
        return [round(float(x), 4) for x in np.linspace(1.0, 1.1, self.n_rotary // 2)]

    @property
    def long_factor(self) -> list[float]:
        return [round(float(x), 4) for x in np.geomspace(1.0, 8.0, self.n_rotary // 2)]


@dataclass(frozen=True)
class VisionGeometry:
    """Sizes of the vision encoder. Its last layer is dead: features leave after the one before."""

    n_embd: int = 256
    n_ff: int = 512
    n_layer: int = 5
    n_head: int = 4
    patch: int = 14
    crop: int = 168
    max_crops: int = 12
    eps: float = 1e-6

    @property
    def grid(self) -> int:
        """Patches along one side of a crop."""
        return self.crop // self.patch


@dataclass(frozen=True)
class AudioGeometry:
    """Sizes of the conformer."""

    n_embd: int = 256
    n_ff: int = 512
    n_layer: int = 4
    n_head: int = 4
    n_conv: int = 128
    n_mel: int = 80
    kernel: int = 3
    bias_distance: int = 500
    chunk: int = 500
    eps: float = 1e-5


@dataclass(frozen=True)
class AdapterGeometry:
    """Rank and scale of the two LoRA adapters."""

    rank: int = 32
    alpha: int = 64

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class Geometry:
    """The whole model."""

    decoder: DecoderGeometry = field(default_factory=DecoderGeometry)
    vision: VisionGeometry = field(default_factory=VisionGeometry)
    audio: AudioGeometry = field(default_factory=AudioGeometry)
    adapter: AdapterGeometry = field(default_factory=AdapterGeometry)
