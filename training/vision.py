"""The vision encoder and its projector, parameters named as in the original checkpoint.

Source: docs/model.md, "Vision": "Encoder" and "Compression and HD arrangement".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .geometry import VisionGeometry


class Attention(nn.Module):
    """Bidirectional attention over patches; masked patches are no keys and give zero."""

    def __init__(self, g: VisionGeometry) -> None:
        super().__init__()
        self.n_head = g.n_head
        self.q_proj = nn.Linear(g.n_embd, g.n_embd)
        self.k_proj = nn.Linear(g.n_embd, g.n_embd)
        self.v_proj = nn.Linear(g.n_embd, g.n_embd)
        self.out_proj = nn.Linear(g.n_embd, g.n_embd)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (
            p(x).view(batch, n, self.n_head, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        keys = None if mask is None else mask[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, keys).transpose(1, 2).reshape(x.shape)
        if mask is not None:
            # Differs from the transformers class: the shipped FlashAttention path zero-fills.
            y = y * mask[..., None]
        return self.out_proj(y)


class FeedForward(nn.Module):
    """Two-layer perceptron with the tanh form of GELU."""

    def __init__(self, g: VisionGeometry) -> None:
        super().__init__()
        self.fc1 = nn.Linear(g.n_embd, g.n_ff)
        self.fc2 = nn.Linear(g.n_ff, g.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Layer(nn.Module):
    """Pre-norm block."""

    def __init__(self, g: VisionGeometry) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(g.n_embd, g.eps)
        self.self_attn = Attention(g)
        self.layer_norm2 = nn.LayerNorm(g.n_embd, g.eps)
        self.mlp = FeedForward(g)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        return x + self.mlp(self.layer_norm2(x))


class Embeddings(nn.Module):
    """Patch embedding and learned positions."""

    def __init__(self, g: VisionGeometry) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, g.n_embd, g.patch, g.patch)
        self.position_embedding = nn.Embedding(g.grid**2, g.n_embd)

    def forward(self, pixels: Tensor, mask: Tensor | None) -> Tensor:
        batch, _, side, _ = pixels.shape
        size = self.patch_embedding.kernel_size[0]
        n = side // size
        cut = pixels.view(batch, 3, n, size, n, size).permute(0, 2, 4, 1, 3, 5).flatten(3)
        weight = self.patch_embedding.weight.flatten(1)
        x = F.linear(cut.reshape(batch, n * n, -1), weight, self.patch_embedding.bias)
        if mask is None:
            return x + self.position_embedding.weight
        return x + self.position_embedding(position_ids(mask.view(batch, n, n)))


def position_ids(mask: Tensor) -> Tensor:
    """Position of each patch: stretched over the valid part, 0 where masked. mask: [b, n, n]."""
    n = mask.shape[-1]
    rows, cols = mask[:, :, 0].sum(1, keepdim=True), mask[:, 0].sum(1, keepdim=True)
    steps = torch.arange(n)[None] * n
    ids = (steps // rows)[:, :, None] * n + (steps // cols)[:, None]
    return torch.where(mask, ids, 0).flatten(1)


class Head(nn.Module):
    """The pooling head of the original tower; nothing uses it."""

    def __init__(self, g: VisionGeometry) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, g.n_embd))
        self.attention = nn.MultiheadAttention(g.n_embd, g.n_head, batch_first=True)
        self.layernorm = nn.LayerNorm(g.n_embd, g.eps)
        self.mlp = FeedForward(g)


class Encoder(nn.Module):
    """The stack of layers; the last one is dead."""

    def __init__(self, g: VisionGeometry) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(g) for _ in range(g.n_layer))


class VisionTower(nn.Module):
    """Crops to patch features."""

    def __init__(self, g: VisionGeometry) -> None:
        super().__init__()
        self.embeddings = Embeddings(g)
        self.encoder = Encoder(g)
        self.post_layernorm = nn.LayerNorm(g.n_embd, g.eps)
        self.head = Head(g)

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> Tensor:
        """pixels: [n, 3, side, side]; mask: [n, patches] bool -> [n, patches, width]."""
        x = self.embeddings(pixels, mask)
        for layer in self.encoder.layers[:-1]:
            x = layer(x, mask)
        return x

    def live_parameters(self) -> list[nn.Parameter]:
        """Parameters that the features depend on."""
        modules = [self.embeddings, *self.encoder.layers[:-1]]
        return [p for module in modules for p in module.parameters()]


def pool(x: Tensor) -> Tensor:
    """Average 2x2 patches. [n, patches, width] -> [n, side/2, side/2, width]."""
    n, patches, width = x.shape
    half = int(patches**0.5) // 2
    return x.view(n, half, 2, half, 2, width).mean((2, 4))


class ImageEmbed(nn.Module):
    """Tower, separators and projector."""

    def __init__(self, g: VisionGeometry, n_out: int) -> None:
        super().__init__()
        self.g = g
        self.img_processor = VisionTower(g)
        self.glb_GN = nn.Parameter(torch.zeros(1, 1, g.n_embd))
        self.sub_GN = nn.Parameter(torch.zeros(1, 1, 1, g.n_embd))
        self.img_projection = nn.Sequential(
            nn.Linear(g.n_embd, n_out), nn.GELU(), nn.Linear(n_out, n_out)
        )

    def arrange(self, whole: Tensor, sub: Tensor) -> Tensor:
        """Sub rows, view separator, global rows, each row ended by the newline, projected.

        whole: [b, p, p, width]; sub: [b, rows, cols, width] -> [b, tokens, n_out].
        """
        batch, width = whole.shape[0], whole.shape[-1]

        def lines(x: Tensor) -> Tensor:
            newline = self.sub_GN.expand(batch, x.shape[1], 1, width)
            return torch.cat([x, newline], 2).flatten(1, 2)

        separator = self.glb_GN.expand(batch, 1, width)
        return self.img_projection(torch.cat([lines(sub), separator, lines(whole)], 1))

    def features(
        self, pixels: Tensor, mask: Tensor, rows_cols: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """(global, sub) pooled features of pictures that share a grid and a mask.

        pixels: [b, 1 + crops, 3, side, side], global view first; mask: [1 + crops, g, g] bool.
        """
        (rows, cols), batch, half = rows_cols, pixels.shape[0], self.g.grid // 2
        if rows * cols == 1 and bool(mask.all()):
            whole = pool(self.img_processor(pixels[:, 0]))
            return whole, whole
        flat = mask.flatten(1)
        keys = None if bool(mask.all()) else flat.repeat(batch, 1)
        x = pool(self.img_processor(pixels.flatten(0, 1), keys)).unflatten(0, (batch, -1))
        canvas = x[:, 1:].unflatten(1, (rows, cols)).permute(0, 1, 3, 2, 4, 5)
        canvas = canvas.reshape(batch, rows * half, cols * half, -1)
        used_rows, used_cols = used_size(mask, rows_cols)
        return x[:, 0], canvas[:, :used_rows, :used_cols]

    def forward(self, pixels: Tensor, mask: Tensor, rows_cols: tuple[int, int]) -> Tensor:
        return self.arrange(*self.features(pixels, mask, rows_cols))


def used_size(mask: Tensor, rows_cols: tuple[int, int]) -> tuple[int, int]:
    """Valid (rows, columns) of pooled cells over the whole canvas. mask: [1 + crops, g, g]."""
    rows, cols = rows_cols
    canvas = mask[1:].unflatten(0, (rows, cols)).transpose(1, 2).flatten(0, 1).flatten(1)
    return -(-int(canvas[:, 0].sum()) // 2), -(-int(canvas[0].sum()) // 2)
