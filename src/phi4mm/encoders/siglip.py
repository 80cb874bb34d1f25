"""The vision encoder: SigLIP on every crop, pooling, the HD arrangement, the projector.

Crops of normalised pixels come in, one embedding per soft token goes out; where the pixels come
from and what the embeddings are for is not known here.  Source: docs/model.md, "Encoder" and
"Compression and HD arrangement".

Names for ``Taps``: ``vis.layer{k}`` (n_patches, n_embd) per crop, NaN where a patch has no part in
the result; ``vis.hd_tokens`` (n_tokens, n_embd); ``vis.projected`` (n_tokens, n_embd_out).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from phi4mm.encoders.layers import Block, gelu_tanh, split_heads, stored
from phi4mm.encoders.projector import Projector
from phi4mm.encoders.steps import finish
from phi4mm.encoders.tap import Taps
from phi4mm.media.crops import CropPlan
from phi4mm.modelfile.hparams import VisionHParams
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import (
    IMAGE_NEWLINE,
    POSITION_EMBD,
    VIEW_SEPARATOR,
    VisionLayer,
    patch_embd,
    vision_block,
    vision_projector,
    vision_tensors,
)
from phi4mm.native.ggml import Backend, Tensor, WeightData, Weights
from phi4mm.native.graph import Graph

Array: TypeAlias = NDArray[np.float32]
Indices: TypeAlias = NDArray[np.intp]

# Read by numpy, not by graphs.
_TABLES = (POSITION_EMBD, IMAGE_NEWLINE, VIEW_SEPARATOR)

# Operations of a layer: 34, and one more for every padded matrix and every tap.
_MAX_PER_LAYER = 64


@dataclass(frozen=True, slots=True)
class PatchOrder:
    """Which patches of a crop are computed, and in which order: valid ones first.

    A masked patch matters only where pooling averages it with a valid one.  It is no key of the
    attention, and its own attention output is zero; the reference's FlashAttention path does that.

    Attributes:
        rows: row of each computed patch.
        cols: column of each.
        n_valid: how many of them, the first ones, are valid.
        height: rows of the computed area, a multiple of the pooling.
        width: columns of it.
    """

    rows: Indices
    cols: Indices
    n_valid: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class EncodedCrop:
    """What is left of a crop once it is encoded.

    Attributes:
        pooled: (pooled rows, pooled cols, n_embd) of the valid part.
        tapped: intermediate tensors by name, (n_patches, n_embd).
    """

    pooled: Array
    tapped: dict[str, Array]


def order_patches(valid_rows: int, valid_cols: int, pool: int) -> PatchOrder:
    """The patches to compute of a crop whose top left ``valid_rows`` x ``valid_cols`` are valid."""
    height, width = (-(-n // pool) * pool for n in (valid_rows, valid_cols))
    valid = np.zeros((height, width), np.bool_)
    valid[:valid_rows, :valid_cols] = True
    rows, cols = np.concatenate([np.nonzero(valid), np.nonzero(~valid)], axis=1)
    return PatchOrder(rows, cols, valid_rows * valid_cols, height, width)


def position_ids(order: PatchOrder, valid_rows: int, valid_cols: int, n_side: int) -> Indices:
    """Rows of the position table: stretched over the valid patches, 0 for masked ones.

    Source: docs/model.md, "Encoder".
    """
    ids = (order.rows * n_side // valid_rows) * n_side + order.cols * n_side // valid_cols
    ids[order.n_valid :] = 0
    return ids


def cut_patches(crop: Array, patch_size: int) -> Array:
    """(3, side, side) -> (n_side, n_side, 3 * patch_size**2), values as in a kernel's rows."""
    n_side = crop.shape[1] // patch_size
    split = crop.reshape(3, n_side, patch_size, n_side, patch_size)
    patches: Array = split.transpose(1, 3, 0, 2, 4).reshape(n_side, n_side, -1)
    return patches


def average_pool(grid: Array, pool: int) -> Array:
    """(height, width, n_embd) -> (height / pool, width / pool, n_embd)."""
    height, width, n_embd = grid.shape
    cells = grid.reshape(height // pool, pool, width // pool, pool, n_embd)
    means: Array = cells.mean(axis=(1, 3), dtype=np.float32)
    return means


def arrange(crops: list[Array], plan: CropPlan, newline: Array, separator: Array) -> Array:
    """Lay the pooled crops out as the decoder reads them.

    Sub-crops are put together to one picture, read row by row with a newline after each row, then
    the separator, then the global crop in the same way.

    Args:
        crops: pooled tokens of the valid part of every crop, (rows, cols, n_embd), global first.
        plan: of the picture.
        newline: (n_embd,), the image newline.
        separator: (n_embd,), the view separator.

    Returns:
        (n_tokens, n_embd).
    """
    grid = [crops[1 + r * plan.cols : 1 + (r + 1) * plan.cols] for r in range(plan.rows)]
    picture = np.concatenate([np.concatenate(row, axis=1) for row in grid])
    whole = crops[0]
    return np.concatenate(
        [_read_rows(picture, newline), separator[None], _read_rows(whole, newline)]
    )


def _read_rows(grid: Array, newline: Array) -> Array:
    """(rows, cols, n_embd) -> (rows * (cols + 1), n_embd): a newline after each row."""
    rows, _, n_embd = grid.shape
    newlines = np.broadcast_to(newline, (rows, 1, n_embd))
    return np.concatenate([grid, newlines], axis=1).reshape(-1, n_embd)


def attention(block: Block[VisionLayer], x: Tensor, n_head: int, n_valid: int) -> Tensor:
    """Attention among the first ``n_valid`` patches; zero for the others.

    ne=[n_embd, n_patches] -> ne=[n_embd, n_patches], after the output projection.
    """
    g = block.graph
    n_embd, n_patches = x.ne[:2]
    valid = g.rows(x, 0, n_valid)
    q, k, v = (
        split_heads(g, block.linear(n, valid), n_head) for n in ("attn_q", "attn_k", "attn_v")
    )
    heads = g.flash_attention(q, k, v, scale=(n_embd // n_head) ** -0.5)
    merged = g.reshape(heads, n_embd, n_valid)
    if n_valid < n_patches:
        merged = g.pad(merged, 0, n_patches - n_valid)
    return block.linear("attn_out", merged)


def feed_forward(block: Block[VisionLayer], x: Tensor) -> Tensor:
    """Linear, GELU in its tanh form, linear; ne=[n_embd, n_patches] on both sides."""
    return block.linear("ffn_down", gelu_tanh(block.graph, block.linear("ffn_up", x)))


def layer(block: Block[VisionLayer], x: Tensor, n_head: int, n_valid: int) -> Tensor:
    """One pre-norm transformer layer."""
    g = block.graph
    x = g.add(x, attention(block, block.layer_norm("ln1", x), n_head, n_valid))
    return g.add(x, feed_forward(block, block.layer_norm("ln2", x)))


class VisionEncoder:
    """The vision encoder of one mmproj file.

    Used by one thread at a time.

    Args:
        file: holds ``vision_tensors(hparams)``.  It may be closed; its mapping stays.
        hparams: of the encoder.
        backend: what computes it; must outlive the encoder.
    """

    def __init__(self, file: GGUFFile, hparams: VisionHParams, backend: Backend) -> None:
        self.hparams = hparams
        self._backend = backend
        self._positions, self._newline, self._separator = (file.data(name) for name in _TABLES)
        tensors = stored(file, vision_tensors(hparams).keys() - _TABLES)
        # The patch convolution is a matrix over the values of a patch.
        patch = tensors[patch_embd("weight")]
        matrix = (hparams.n_embd, 3 * hparams.patch_size**2)
        tensors[patch_embd("weight")] = WeightData(patch.ggml_type, matrix, patch.data)
        self._weights = Weights(backend, tensors)
        self._projector = Projector(backend, self._weights, vision_projector)

    def close(self) -> None:
        """Free the weights; the second call does nothing."""
        self._weights.close()

    def encode(
        self,
        crops: Array,
        plan: CropPlan,
        between: Callable[[], None] | None = None,
        taps: Taps | None = None,
    ) -> Array:
        """Encode one picture; ``between`` is called at each pause of ``steps``."""
        return finish(self.steps(crops, plan, taps), between)

    def steps(
        self, crops: Array, plan: CropPlan, taps: Taps | None = None
    ) -> Generator[None, None, Array]:
        """Encode one picture; pauses after each crop, about every ten seconds on two cores.

        Equal crops are encoded once.  A picture of one whole crop has two of them, since nothing
        is left to resample for the global one; the margins of a scanned page have more.

        Args:
            crops: float32 (1 + n_crops, 3, crop_size, crop_size), the global crop first.
            plan: of the picture.
            taps: records intermediate tensors.

        Returns:
            float32 (plan.n_tokens, n_embd_out).

        Raises:
            Cancelled: the backend's abort flag was set.
            NativeError: a computation failed.
        """
        h = self.hparams
        assert crops.shape == (1 + plan.n_crops, 3, h.image_size, h.image_size)
        taps = taps or Taps()
        encoded: dict[tuple[bytes, tuple[int, int]], EncodedCrop] = {}
        pooled = []
        for crop, valid in zip(crops, plan.crop_valid, strict=True):
            key = (hashlib.sha256(crop.tobytes()).digest(), valid)
            if key not in encoded:
                encoded[key] = self._encode_crop(crop, *valid, taps)
                yield
            pooled.append(encoded[key].pooled)
            taps.add_all(encoded[key].tapped)
        tokens = arrange(pooled, plan, self._newline, self._separator)
        assert len(tokens) == plan.n_tokens
        taps.add("vis.hd_tokens", tokens)
        projected = yield from self._projector.steps(tokens)
        taps.add("vis.projected", projected)
        return projected

    def _encode_crop(
        self, crop: Array, valid_rows: int, valid_cols: int, taps: Taps
    ) -> EncodedCrop:
        """Encode (3, crop_size, crop_size), of which the top left patches are valid."""
        h = self.hparams
        order = order_patches(valid_rows, valid_cols, h.pool)
        grid = np.full((h.n_side, h.n_side, h.n_embd), np.nan, np.float32)
        tapped = {}
        if order.n_valid > 0:
            patches = cut_patches(crop, h.patch_size)[order.rows, order.cols]
            positions = self._positions[position_ids(order, valid_rows, valid_cols, h.n_side)]
            outputs = self._compute(patches, positions, order.n_valid, taps)
            x = outputs.pop("x")
            for name, output in outputs.items():
                grid[order.rows, order.cols] = output
                tapped[name] = grid.reshape(h.n_patches, h.n_embd).copy()
            grid[order.rows, order.cols] = x
        return EncodedCrop(average_pool(grid[: order.height, : order.width], h.pool), tapped)

    def _compute(
        self, patches: Array, positions: Array, n_valid: int, taps: Taps
    ) -> dict[str, Array]:
        h, w = self.hparams, self._weights
        with Graph(self._backend, max_tensors=(1 + h.n_layer) * _MAX_PER_LAYER) as g:
            x = g.dense(w[patch_embd("weight")], g.input("patches", patches.shape))
            x = g.add(x, w[patch_embd("bias")])
            x = g.add(x, g.input("positions", positions.shape))
            for il in range(h.n_layer):
                block = Block(g, w, partial(vision_block, il), h.eps)
                x = taps.mark(g, f"vis.layer{il}", layer(block, x, h.n_head, n_valid))
            g.output("x", x)
            return g.compute({"patches": patches, "positions": positions})
