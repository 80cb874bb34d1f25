"""The conformer and its two projectors, parameters named as in the original checkpoint.

Source: docs/model.md, "Audio": "Encoder" and "Projectors".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .geometry import AudioGeometry

PROJECTIONS = ("speech", "vision")


def linear_1x1(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """A pointwise convolution over [batch, time, width]."""
    return F.linear(x, conv.weight.squeeze(-1), conv.bias)


class GatedLinear(nn.Module):
    """Value half times swish of the gate half; the value comes first."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n_in, 2 * n_out)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.linear(x).chunk(2, -1)
        return value * F.silu(gate)


class FeedForward(nn.Module):
    """Half-step feed-forward of a conformer block."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(g.n_embd, g.eps)
        self.net = nn.ModuleDict(
            {"0": GatedLinear(g.n_embd, g.n_ff), "2": nn.Linear(g.n_ff, g.n_embd)}
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net["2"](self.net["0"](self.layer_norm(x)))


class Attention(nn.Module):
    """Full-context attention with a learned bias per distance and head."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.n_head = g.n_head
        self.linear_q = nn.Linear(g.n_embd, g.n_embd)
        self.linear_k = nn.Linear(g.n_embd, g.n_embd)
        self.linear_v = nn.Linear(g.n_embd, g.n_embd)
        self.linear_out = nn.Linear(g.n_embd, g.n_embd)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, time, _ = x.shape
        q, k, v = (
            p(x).view(batch, time, self.n_head, -1).transpose(1, 2)
            for p in (self.linear_q, self.linear_k, self.linear_v)
        )
        y = F.scaled_dot_product_attention(q, k, v, bias)
        return self.linear_out(y.transpose(1, 2).flatten(2))


class GatedPointwise(nn.Module):
    """Pointwise gate with an extra bias on each half."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.b1 = nn.Parameter(torch.zeros(1, g.n_embd, 1))
        self.b2 = nn.Parameter(torch.zeros(1, g.n_embd, 1))
        self.ext_pw_conv_1d = nn.Conv1d(g.n_embd, 2 * g.n_embd, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = linear_1x1(self.ext_pw_conv_1d, x).chunk(2, -1)
        return (value + self.b1.flatten()) * F.silu(gate + self.b2.flatten())


class DepthwiseSeparable(nn.Module):
    """Causal depthwise convolution, then a pointwise one."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.dw_conv = nn.Conv1d(g.n_embd, g.n_embd, g.kernel, groups=g.n_embd)
        self.pw_conv = nn.Conv1d(g.n_embd, g.n_embd, 1)

    def forward(self, x: Tensor) -> Tensor:
        time, weight = x.shape[1], self.dw_conv.weight[:, 0]
        size = weight.shape[-1]
        padded = F.pad(x, (0, 0, size - 1, 0))
        # Shifted sums: several times faster on a CPU than the grouped convolution.
        y = sum(padded[:, j : j + time] * weight[:, j] for j in range(size)) + self.dw_conv.bias
        return linear_1x1(self.pw_conv, y)


class Convolution(nn.Module):
    """The convolution module of a conformer block."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(g.n_embd, g.eps)
        self.glu = GatedPointwise(g)
        self.dw_sep_conv_1d = DepthwiseSeparable(g)
        self.ext_pw_conv_1d = nn.Conv1d(g.n_embd, g.n_embd, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.dw_sep_conv_1d(self.glu(self.layer_norm(x))))
        return linear_1x1(self.ext_pw_conv_1d, y)


class Block(nn.Module):
    """Half feed-forward, attention, convolution, half feed-forward, norm."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.feed_forward_in = FeedForward(g)
        self.layer_norm_att = nn.LayerNorm(g.n_embd, g.eps)
        self.self_attn = Attention(g)
        self.conv = Convolution(g)
        self.feed_forward_out = FeedForward(g)
        self.layer_norm = nn.LayerNorm(g.n_embd, g.eps)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_forward_in(x)
        x = x + self.self_attn(self.layer_norm_att(x), bias)
        x = x + self.conv(x)
        return self.layer_norm(x + 0.5 * self.feed_forward_out(x))


class MeanVariance(nn.Module):
    """Fixed normalisation of the mel features."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.register_buffer("global_mean", torch.zeros(g.n_mel))
        self.register_buffer("global_invstd", torch.ones(g.n_mel))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.global_mean) * self.global_invstd


class Subsampling(nn.Module):
    """Eight-fold subsampling in time and mel by strided convolutions."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        n = g.n_conv

        def depthwise() -> nn.Conv2d:
            return nn.Conv2d(n, n, 3, 2, 1, groups=n)

        parts: list[nn.Module] = [nn.Conv2d(1, n, 3, 2, 1), nn.ReLU()]
        for _ in range(2):
            parts += [depthwise(), nn.Conv2d(n, n, 1), nn.ReLU()]
        self.conv = nn.Sequential(*parts)
        self.out = nn.Linear(n * g.n_mel // 8, g.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x[:, None].contiguous(memory_format=torch.channels_last))
        return self.out(y.transpose(1, 2).flatten(2))


class RelativeBias(nn.Module):
    """Attention bias by distance, shared by all blocks."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.limit = g.bias_distance
        self.bias_values = nn.Embedding(2 * g.bias_distance, g.n_head)

    def forward(self, time: int) -> Tensor:
        steps = torch.arange(time)
        distance = (steps[None] - steps[:, None]).clamp(-self.limit, self.limit - 1)
        return self.bias_values(distance + self.limit).permute(2, 0, 1)[None]


class AudioEncoder(nn.Module):
    """Log-mel frames to one feature per 80 ms."""

    def __init__(self, g: AudioGeometry) -> None:
        super().__init__()
        self.g = g
        self.encoder_embedding = MeanVariance(g)
        self.embed = Subsampling(g)
        self.relative_attention_bias_layer = RelativeBias(g)
        self.encoders = nn.ModuleList(Block(g) for _ in range(g.n_layer))

    def forward(self, mel: Tensor) -> Tensor:
        """mel: [batch, frames, 80], clips of equal length -> [batch, ceil(frames / 8), width]."""
        x = self.embed(self.encoder_embedding(mel))
        batch, time, width = x.shape
        chunk = self.g.chunk
        if time > chunk:
            x = F.pad(x, (0, 0, 0, -time % chunk)).reshape(-1, chunk, width)
        bias = self.relative_attention_bias_layer(x.shape[1])
        for block in self.encoders:
            x = block(x, bias)
        return x.reshape(batch, -1, width)[:, :time]


class AudioEmbed(nn.Module):
    """Conformer and the two projectors."""

    def __init__(self, g: AudioGeometry, n_out: int) -> None:
        super().__init__()
        self.encoder = AudioEncoder(g)
        self.audio_projection = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(g.n_embd, n_out), nn.GELU(), nn.Linear(n_out, n_out))
                for name in PROJECTIONS
            }
        )

    def forward(self, mel: Tensor, projection: str) -> Tensor:
        return self.audio_projection[projection](self.encoder(mel))
