"""Initial weights with structure, so that the first hours are not spent on finding circuits.

The decoder starts with a previous-token head and an induction head (copying works before the
first step), digits start on a circle and a line, the vision encoder starts with local attention
over sinusoidal positions, and the conformer with a bias that favours near frames.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor, nn

from .decoder import AdaptedLinear
from .geometry import DecoderGeometry, Geometry
from .model import SampleModel
from .tokenizer import Tokenizer

EMBEDDING_STD = 0.05
_RESIDUAL = (
    "o_proj.base_layer.weight",
    "down_proj.base_layer.weight",
    "out_proj.weight",
    "fc2.weight",
)


def _plain(name: str, p: Tensor, rng: torch.Generator) -> None:
    if name.endswith(("bias", ".b1", ".b2")) or "lora_B" in name or "bias_values" in name:
        p.zero_()
    elif "norm" in name:
        p.fill_(1.0)
    elif "position_embedding" in name or name.endswith(("_GN", "probe")):
        p.normal_(0, 0.1, generator=rng)
    elif p.dim() == 4 and "patch_embedding" not in name:
        p.normal_(0, math.sqrt(2 / p[0].numel()), generator=rng)
    else:
        scale = 0.4 if name.endswith(_RESIDUAL) else 1.0
        p.normal_(0, scale / math.sqrt(p[0].numel()), generator=rng)


def _common_direction(n: int, rng: torch.Generator) -> Tensor:
    direction = torch.randn(n, generator=rng)
    return direction / direction.norm()


def _token_table(
    g: DecoderGeometry, tokenizer: Tokenizer, common: Tensor, rng: torch.Generator
) -> Tensor:
    """Random rows with a shared component; spellings of one word start close together."""
    table = torch.randn(g.n_vocab, g.n_embd, generator=rng) * EMBEDDING_STD
    spellings: dict[str, list[int]] = defaultdict(list)
    for token, index in sorted(tokenizer.fast.get_vocab().items()):
        word = token.lstrip("\u0120").lower()
        if len(word) > 1 and not word.startswith("<|"):
            spellings[word].append(index)
    for first, *others in spellings.values():
        for other in others:
            table[other] = 0.85 * table[first] + 0.53 * table[other]
    _place_digits(table, tokenizer, rng)
    table -= torch.outer(table @ common, common)
    return table + common * EMBEDDING_STD * math.sqrt(g.n_embd)


def _place_digits(table: Tensor, tokenizer: Tokenizer, rng: torch.Generator) -> None:
    """Half of a digit's vector is its value: on circles of period 10, 5 and 2 and on a line."""
    value = torch.arange(10).float()
    waves = [
        f(2 * math.pi * value / period) for period in (10, 5, 2) for f in (torch.cos, torch.sin)
    ]
    code = torch.stack([*waves, 1.4 * (value - 4.5) / 4.5], 1)
    axes = torch.linalg.qr(torch.randn(table.shape[1], code.shape[1], generator=rng))[0]
    placed = code @ axes.T
    placed *= EMBEDDING_STD * math.sqrt(table.shape[1]) / placed.norm(dim=1, keepdim=True)
    rows = [tokenizer.encode(str(digit))[0] for digit in range(10)]
    table[rows] = math.sqrt(0.5) * (table[rows] + placed)


def _copying_heads(model: SampleModel, common: Tensor, rng: torch.Generator) -> None:
    """Layer 0: previous-token head; layer 1: induction head. Both use the first key head.

    Content is matched on dimensions that turn slowly or not at all; the previous token is found
    by the fast ones. The gains were found by trial: random repeats are about 93 % right before
    training.
    """
    g = model.g.decoder
    dim, group, half = g.n_head_dim, g.n_head // g.n_head_kv, g.n_rotary // 2
    basis = torch.linalg.qr(torch.randn(g.n_embd, g.n_embd, generator=rng))[0]
    basis = basis - torch.outer(common, common @ basis)
    slow = torch.cat(
        [
            torch.arange(half // 2, half),
            half + torch.arange(half // 2, half),
            torch.arange(2 * half, dim),
        ]
    )
    n = len(slow)
    content, previous, copied = (
        basis[:, :n].T,
        basis[:, n : 2 * n].T,
        basis[:, 2 * n : 2 * n + dim].T,
    )
    for layer in model.model.layers:
        layer.mlp.down_proj.base_layer.weight.mul_(0.1)
        layer.self_attn.o_proj.base_layer.weight.mul_(0.1)
    heads = []
    for layer in model.model.layers[:2]:
        qkv = layer.self_attn.qkv_proj.base_layer.weight.view(-1, dim, g.n_embd)
        out = layer.self_attn.o_proj.base_layer.weight
        q, k, v = qkv[:group], qkv[g.n_head], qkv[g.n_head + g.n_head_kv]
        for part in (q, k, v, out[:, : group * dim]):
            part.mul_(0.1)
        heads.append((q, k, v, out))
    (q, k, v, out), (q1, k1, v1, out1) = heads
    turn = g.rope_theta ** (-torch.arange(half).float() / half)
    fast = torch.zeros(half)
    fast[:8] = 10 / (16 * math.sqrt(0.5))  # the common part of a normed row is about 16 sqrt(1/2)
    k[: 2 * half] += torch.outer(torch.cat([fast * turn.cos(), fast * turn.sin()]), common)
    v[:n] += content
    k1[slow] += 2 * previous
    v1 += copied
    for head in range(group):
        q[head, : 2 * half] += torch.outer(torch.cat([fast, 0 * fast]), common)
        out[:, head * dim : head * dim + n] += 0.18 / group * previous.T
        q1[head, slow] += 2 * content
        out1[:, head * dim : (head + 1) * dim] += copied.T / group


def _local_vision(model: SampleModel, rng: torch.Generator) -> None:
    """Two-dimensional sinusoidal positions, and equal query and key maps (attend to the like)."""
    g, tower = model.g.vision, model.image.img_processor
    wave = math.pi / 2 ** torch.linspace(0, 3.5, g.n_embd // 4)
    angle = torch.arange(g.grid).float()[:, None] * wave
    line = torch.cat([angle.sin(), angle.cos()], -1)
    rows, cols = line[:, None].expand(-1, g.grid, -1), line[None].expand(g.grid, -1, -1)
    tower.embeddings.position_embedding.weight.copy_(torch.cat([rows, cols], -1).flatten(0, 1))
    for layer in tower.encoder.layers:
        shared = torch.linalg.qr(torch.randn(g.n_embd, g.n_embd, generator=rng))[0] * 1.2
        layer.self_attn.q_proj.weight.copy_(shared)
        layer.self_attn.k_proj.weight.copy_(shared)


def _local_audio(model: SampleModel) -> None:
    """A penalty that grows with distance, with another slope for each head."""
    bias = model.audio.encoder.relative_attention_bias_layer
    distance = (torch.arange(2 * bias.limit) - bias.limit).abs().float().clamp(max=20)
    slopes = 2.0 ** -torch.arange(model.g.audio.n_head)
    bias.bias_values.weight.copy_(-distance[:, None] * slopes)


@torch.no_grad()
def initial_model(g: Geometry, tokenizer: Tokenizer, seed: int = 1) -> SampleModel:
    """A model with the structured start; the same for the same seed."""
    model = SampleModel(g)
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        _plain(name, parameter, rng)
    common = _common_direction(g.decoder.n_embd, rng)
    model.table.copy_(_token_table(g.decoder, tokenizer, common, rng))
    _copying_heads(model, common, rng)
    _local_vision(model, rng)
    _local_audio(model)
    return model


def adapter_parameters(model: SampleModel, adapter: str) -> list[nn.Parameter]:
    """The low-rank matrices of one adapter."""
    maps = [m for m in model.modules() if isinstance(m, AdaptedLinear)]
    return [p for m in maps for p in (m.lora_A[adapter].weight, m.lora_B[adapter].weight)]
