"""The text decoder with its two adapters, parameters named as in the original checkpoint.

Differs from the transformers class only in how it is computed: batches are padded on the right,
so that causal attention needs no mask. Source: docs/model.md, "Decoder".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .geometry import AdapterGeometry, DecoderGeometry

ADAPTERS = ("vision", "speech")
Rotation = tuple[Tensor, Tensor]


class AdaptedLinear(nn.Module):
    """A bias-free linear map with one low-rank addition per adapter."""

    def __init__(self, n_in: int, n_out: int, adapter: AdapterGeometry) -> None:
        super().__init__()
        self.scale = adapter.scale
        self.base_layer = nn.Linear(n_in, n_out, bias=False)
        self.lora_A = nn.ModuleDict(
            {a: nn.Linear(n_in, adapter.rank, bias=False) for a in ADAPTERS}
        )
        self.lora_B = nn.ModuleDict(
            {a: nn.Linear(adapter.rank, n_out, bias=False) for a in ADAPTERS}
        )

    def forward(self, x: Tensor, adapter: str | None) -> Tensor:
        y = self.base_layer(x)
        if adapter is None:
            return y
        return y + self.scale * self.lora_B[adapter](self.lora_A[adapter](x))


class RMSNorm(nn.Module):
    """Root-mean-square norm, no offset."""

    def __init__(self, n_embd: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_embd))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass
class Cache:
    """Keys and values of one layer, with their visibility for the next query."""

    keys: Tensor
    values: Tensor


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the first dimensions of every head; the rest pass. x: [batch, heads, time, dim]."""
    cos, sin = rotation
    n = cos.shape[-1]
    turned, rest = x[..., :n], x[..., n:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)


class SelfAttention(nn.Module):
    """Grouped-query attention with partial rotary positions."""

    def __init__(self, g: DecoderGeometry, adapter: AdapterGeometry) -> None:
        super().__init__()
        self.g = g
        width = (g.n_head + 2 * g.n_head_kv) * g.n_head_dim
        self.qkv_proj = AdaptedLinear(g.n_embd, width, adapter)
        self.o_proj = AdaptedLinear(g.n_head * g.n_head_dim, g.n_embd, adapter)

    def project(self, x: Tensor, rotation: Rotation, adapter: str | None) -> tuple[Tensor, ...]:
        g = self.g
        batch, time, _ = x.shape
        qkv = self.qkv_proj(x, adapter).view(batch, time, -1, g.n_head_dim).transpose(1, 2)
        q, k, v = qkv.split([g.n_head, g.n_head_kv, g.n_head_kv], 1)
        return rotate(q, rotation), rotate(k, rotation), v

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        adapter: str | None,
        cache: list[Cache] | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """cache: one entry that is extended in place, or an empty list that is filled."""
        q, k, v = self.project(x, rotation, adapter)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0].keys, k], 2), torch.cat([cache[0].values, v], 2)
            cache[:] = [Cache(k, v)]
        group = self.g.n_head // self.g.n_head_kv
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, visible, is_causal=visible is None)
        return self.o_proj(y.transpose(1, 2).flatten(2), adapter)


class FeedForward(nn.Module):
    """Gated feed-forward; gate rows come first."""

    def __init__(self, g: DecoderGeometry, adapter: AdapterGeometry) -> None:
        super().__init__()
        self.gate_up_proj = AdaptedLinear(g.n_embd, 2 * g.n_ff, adapter)
        self.down_proj = AdaptedLinear(g.n_ff, g.n_embd, adapter)

    def forward(self, x: Tensor, adapter: str | None) -> Tensor:
        gate, up = self.gate_up_proj(x, adapter).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up, adapter)


class DecoderLayer(nn.Module):
    """Pre-norm block."""

    def __init__(self, g: DecoderGeometry, adapter: AdapterGeometry) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(g.n_embd, g.eps)
        self.self_attn = SelfAttention(g, adapter)
        self.post_attention_layernorm = RMSNorm(g.n_embd, g.eps)
        self.mlp = FeedForward(g, adapter)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        adapter: str | None,
        cache: list[Cache] | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, adapter, cache, visible)
        return x + self.mlp(self.post_attention_layernorm(x), adapter)


class LongRope:
    """Rotation tables: short factors up to the original context, long ones beyond."""

    def __init__(self, g: DecoderGeometry) -> None:
        self.g = g
        power = g.rope_theta ** (torch.arange(0, g.n_rotary, 2).float() / g.n_rotary)
        self.short = 1 / (torch.tensor(g.short_factor) * power)
        self.long = 1 / (torch.tensor(g.long_factor) * power)
        stretch = math.log(g.n_ctx / g.n_ctx_original) / math.log(g.n_ctx_original)
        self.magnitude = math.sqrt(1 + stretch)

    def __call__(self, positions: Tensor, n_total: int) -> Rotation:
        """positions: any shape; n_total: length of the whole sequence, which picks the factors."""
        inverse = self.short if n_total <= self.g.n_ctx_original else self.long
        angle = positions.float()[..., None] * inverse
        angle = torch.cat([angle, angle], -1)
        return angle.cos() * self.magnitude, angle.sin() * self.magnitude
