"""The encoders once more, in float64 numpy, written from docs/model.md and not from our graphs.

Everything is done at once and in the order of the text: masks are masks, convolutions are loops
over their taps.  Weights are a dict by tensor name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tensors = Mapping[str, NDArray[np.float32]]

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu_erf(x: Array) -> Array:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def soft_max(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(w: Tensors, name: str, x: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return normed * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(w: Tensors, name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"].T.astype(np.float64) + w[f"{name}.bias"]


def heads(x: Array, n_head: int) -> Array:
    return x.reshape(len(x), n_head, -1).swapaxes(0, 1)


def attention(q: Array, k: Array, v: Array, n_head: int, bias: Array | float) -> Array:
    """All (n, n_embd); bias broadcasts to (n_head, n queries, n keys)."""
    q, k, v = (heads(x, n_head) for x in (q, k, v))
    scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]) + bias
    return (soft_max(scores) @ v).swapaxes(0, 1).reshape(q.shape[1], -1)


def projector(w: Tensors, name: str, x: Array, gelu=gelu_erf) -> Array:
    return linear(w, f"{name}.2", gelu(linear(w, f"{name}.0", x)))


# ---- vision


def vision_layer(
    w: Tensors, block: str, x: Array, mask: NDArray[np.bool_], n_head: int, eps: float
) -> Array:
    """Every patch of the crop takes part; ``mask`` is True for the valid ones."""
    h = layer_norm(w, f"{block}.ln1", x, eps)
    q, k, v = (linear(w, f"{block}.attn_{n}", h) for n in "qkv")
    mixed = attention(q, k, v, n_head, np.where(mask, 0, -np.inf)) * mask[:, None]
    x = x + linear(w, f"{block}.attn_out", mixed)
    h = gelu_tanh(linear(w, f"{block}.ffn_up", layer_norm(w, f"{block}.ln2", x, eps)))
    return x + linear(w, f"{block}.ffn_down", h)


def vision_crop(w: Tensors, crop: Array, rows: int, cols: int, h) -> Array:
    """(3, side, side) -> (n_side, n_side, n_embd); the top left ``rows`` x ``cols`` are valid."""
    n, p = h.n_side, h.patch_size
    x = np.zeros((n, n, h.n_embd))
    for r in range(n):
        for c in range(n):
            patch = crop[:, r * p : (r + 1) * p, c * p : (c + 1) * p]
            kernel = w["v.patch_embd.weight"].astype(np.float64)
            valid = r < rows and c < cols
            position = (r * n // rows) * n + c * n // cols if valid else 0
            x[r, c] = (kernel * patch).sum((1, 2, 3)) + w["v.position_embd.weight"][position]
    x += w["v.patch_embd.bias"]
    mask = np.zeros((n, n), np.bool_)
    mask[:rows, :cols] = True
    flat = x.reshape(n * n, -1)
    for il in range(h.n_layer):
        flat = vision_layer(w, f"v.blk.{il}", flat, mask.ravel(), h.n_head, h.eps)
    return flat.reshape(n, n, -1)


def vision(w: Tensors, crops: Array, plan, h) -> Array:
    """The whole encoder, (n_tokens, n_embd_out)."""
    pooled = []
    for crop, (rows, cols) in zip(crops, plan.crop_valid, strict=True):
        x = vision_crop(w, crop.astype(np.float64), rows, cols, h)
        pooled.append((x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2]) / 4)
    return projector(w, "mm", arrangement(w, pooled, plan))


def arrangement(w: Tensors, pooled: list[Array], plan) -> Array:
    """Token by token, (n_tokens, n_embd)."""
    side = len(pooled[0])
    tokens = []
    for r in range(plan.pooled_rows):
        for c in range(plan.pooled_cols):
            crop = (r // side) * plan.cols + c // side
            tokens.append(pooled[1 + crop][r % side, c % side])
        tokens.append(w["v.image_newline"])
    tokens.append(w["v.view_seperator"])
    for row in pooled[0]:
        tokens.extend([*row, w["v.image_newline"]])
    return np.array(tokens, np.float64)


# ---- audio


def conv_2d(x: Array, kernel: NDArray[np.float32], stride: int, padding: tuple[int, int]) -> Array:
    """Depthwise: (channels, rows, cols) with kernel (channels, 1, rows, cols); zero padding."""
    x = np.pad(x, ((0, 0), padding, padding))
    n_rows = (x.shape[1] - kernel.shape[2]) // stride + 1
    n_cols = (x.shape[2] - kernel.shape[3]) // stride + 1
    y = np.zeros((len(kernel), n_rows, n_cols))
    for i in range(kernel.shape[2]):
        for j in range(kernel.shape[3]):
            window = x[:, i : i + stride * n_rows : stride, j : j + stride * n_cols : stride]
            y += kernel[:, 0, i, j, None, None] * window
    return y


def subsample(w: Tensors, mel: Array) -> Array:
    """(n_frames, n_mel) -> (n_tokens, n_embd), all frames at once."""
    x = np.repeat(mel[None].astype(np.float64), len(w["a.conv2d.0.weight"]), 0)
    for stage in (0, 2, 5):
        x = conv_2d(x, w[f"a.conv2d.{stage}.weight"], 2, (1, 1))
        x += w[f"a.conv2d.{stage}.bias"][:, None, None]
        if stage > 0:
            x = linear(w, f"a.conv2d.{stage + 1}", x.transpose(1, 2, 0)).transpose(2, 0, 1)
        x = np.maximum(x, 0)
    return linear(w, "a.pre_encode.out", x.swapaxes(0, 1).reshape(x.shape[1], -1))


def relative_bias(table: NDArray[np.float32], n: int) -> Array:
    """(n_head, n queries, n keys)."""
    top = len(table) // 2
    bias = np.zeros((table.shape[1], n, n))
    for q in range(n):
        for k in range(n):
            bias[:, q, k] = table[min(max(k - q, -top), top - 1) + top]
    return bias


def feed_forward(w: Tensors, block: str, x: Array, suffix: str, eps: float) -> Array:
    h = linear(w, f"{block}.ffn_up{suffix}", layer_norm(w, f"{block}.ffn_norm{suffix}", x, eps))
    value, gate = np.split(h, 2, axis=-1)
    return linear(w, f"{block}.ffn_down{suffix}", value * silu(gate))


def rel_attention(w: Tensors, block: str, x: Array, bias: Array, eps: float) -> Array:
    h = layer_norm(w, f"{block}.ln1", x, eps)
    q, k, v = (linear(w, f"{block}.attn_{n}", h) for n in "qkv")
    return linear(w, f"{block}.attn_out", attention(q, k, v, len(bias), bias))


def conv_module(w: Tensors, block: str, x: Array, eps: float) -> Array:
    h = linear(w, f"{block}.conv_pw1", layer_norm(w, f"{block}.norm_conv", x, eps))
    value, gate = np.split(h, 2, axis=-1)
    h = value * silu(gate)
    kernel = w[f"{block}.conv_dw.weight"]
    n_taps = kernel.shape[1]
    padded = np.pad(h, ((n_taps - 1, 0), (0, 0)))
    h = sum(padded[i : i + len(h)] * kernel[:, i] for i in range(n_taps))
    h = linear(w, f"{block}.conv_pw2", h + w[f"{block}.conv_dw.bias"])
    return linear(w, f"{block}.conv_pw3", silu(h))


def conformer_block(w: Tensors, block: str, x: Array, bias: Array, eps: float) -> Array:
    x = x + 0.5 * feed_forward(w, block, x, "", eps)
    x = x + rel_attention(w, block, x, bias, eps)
    x = x + conv_module(w, block, x, eps)
    x = x + 0.5 * feed_forward(w, block, x, "_1", eps)
    return layer_norm(w, f"{block}.ln2", x, eps)


def audio(w: Tensors, mel: Array, projection: str, h) -> Array:
    """The whole encoder, (n_tokens, n_embd_out)."""
    x = subsample(w, (mel - w["a.mel_mean"]) * w["a.mel_inv_std"])
    n, size = len(x), h.chunk_size
    if n > size:
        x = np.pad(x, ((0, -n % size), (0, 0)))
    bias = relative_bias(w["a.rel_attn_bias.weight"], min(n, size))
    chunks = [x[i : i + size] for i in range(0, len(x), size)]
    for il in range(h.n_layer):
        chunks = [conformer_block(w, f"a.blk.{il}", x, bias, h.eps) for x in chunks]
    return projector(w, f"mm.a.{projection}", np.concatenate(chunks)[:n])
