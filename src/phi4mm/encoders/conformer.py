"""The audio encoder: subsampling, attention chunks through the Conformer, a projector.

Log-mel frames come in, one embedding per soft token (80 ms) goes out.  Source: docs/model.md,
"Audio", "Encoder" and "Projectors".

Names for ``Taps``: ``aud.normed`` (n_frames, n_mel); ``aud.subsampled`` (n_tokens, n_embd);
``aud.block{k}`` and, before their residual addition, ``aud.block{k}.feed_forward_in``,
``.self_attn``, ``.conv``, ``.feed_forward_out`` (n_tokens, n_embd) per attention chunk;
``aud.encoder_out`` (n_tokens, n_embd); ``aud.projected.speech`` or ``.vision``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from phi4mm.encoders.layers import Block, linear, split_heads, stored
from phi4mm.encoders.projector import Projector
from phi4mm.encoders.steps import finish
from phi4mm.encoders.tap import Taps
from phi4mm.modality import AudioProjection
from phi4mm.modelfile.hparams import AudioHParams
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import (
    AUDIO_PROJECTORS,
    MEL_INV_STD,
    MEL_MEAN,
    REL_ATTN_BIAS,
    AudioLayer,
    audio_block,
    audio_conv,
    audio_pre_encode,
    audio_projector,
    audio_tensors,
)
from phi4mm.native.ggml import Backend, Tensor, WeightData, Weights
from phi4mm.native.graph import Graph

Array: TypeAlias = NDArray[np.float32]

# Read by numpy, not by graphs.
_TABLES = (MEL_MEAN, MEL_INV_STD, REL_ATTN_BIAS)

# Operations of a block: 72, and one more for every padded matrix and every tap.
_MAX_PER_BLOCK = 128

# Tokens subsampled at a time: bounds the memory of the first convolution's output, which is
# 160 times as large as the tokens.
_SLICE = 32


def relative_bias(table: Array, n: int) -> Array:
    """Bias of the attention scores by distance, (n_head, n queries, n keys).

    ``bias[h, q, k] = table[clip(k - q, -distance, distance - 1) + distance, h]``, where the table
    has ``2 * distance`` rows.
    """
    distance = len(table) // 2
    by_offset = table[np.clip(np.arange(1 - n, n), -distance, distance - 1) + distance]
    # Row q reads the offsets -q .. n-1-q: a window that moves by one.
    windows = np.lib.stride_tricks.sliding_window_view(by_offset.T, n, axis=1)
    return np.ascontiguousarray(windows[:, ::-1])


def fold(x: Array, size: int) -> Array:
    """(n, n_embd) -> (n_chunks, size, n_embd), zeros at the end; one chunk of n if that is less.

    The reference masks nothing in a single clip: the zero frames of the last chunk are attended to.
    """
    n, n_embd = x.shape
    if n <= size:
        return x[None]
    n_chunks = -(-n // size)
    padded = np.zeros((n_chunks * size, n_embd), np.float32)
    padded[:n] = x
    return padded.reshape(n_chunks, size, n_embd)


def first_kernel(weight: Array, bias: Array) -> Array:
    """The first convolution as a matrix: (n_conv, 1, 3, 3) -> (n_conv, 10), the bias last."""
    return np.concatenate([weight.reshape(-1, 9), bias[:, None]], axis=1)


def first_patches(mel: Array) -> Array:
    """What the first convolution sees: (n, n_mel) -> (ceil(n / 2), ceil(n_mel / 2), 10).

    Windows of 3x3 at a stride of 2 over the frames with one zero around them, and a one for the
    bias.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(mel, 1), (3, 3))[::2, ::2]
    patches = np.ones((*windows.shape[:2], 10), np.float32)
    patches[..., :9] = windows.reshape(*windows.shape[:2], 9)
    return patches


def subsample_stage(g: Graph, weights: Weights, x: Tensor, index: int) -> Tensor:
    """Depthwise 3x3 at a stride of 2, pointwise, ReLU.

    ne=[n_conv, n_freq, n] -> ne=[n_conv, ceil(n_freq/2), ceil(n/2)].
    """
    kernel = weights[audio_conv(index, "weight")]
    x = g.conv_2d_depthwise(kernel, x, stride=2, padding=(1, 1))
    x = g.add(x, weights[audio_conv(index, "bias")])
    return g.relu(linear(g, weights, partial(audio_conv, index + 1), x))


def flatten(g: Graph, x: Tensor) -> Tensor:
    """ne=[n_conv, n_freq, n] -> ne=[n_conv * n_freq, n], index = channel * n_freq + freq."""
    n_conv, n_freq, n = x.ne[:3]
    return g.reshape(g.cont(g.permute(x, (1, 0, 2, 3))), n_freq * n_conv, n)


def feed_forward(
    block: Block[AudioLayer],
    x: Tensor,
    layers: tuple[AudioLayer, AudioLayer, AudioLayer],
) -> Tensor:
    """Norm, linear to (value, gate), value * SiLU(gate), linear; ne=[n_embd, n]."""
    norm, up, down = layers
    hidden = block.linear(up, block.layer_norm(norm, x))  # ne=[2 * n_ff, n]
    return block.linear(down, block.graph.swiglu(hidden))


def rel_attention(block: Block[AudioLayer], x: Tensor, bias: Tensor) -> Tensor:
    """Full attention with a bias by relative distance; ne=[n_embd, n], bias ne=[n, n, n_head].

    ggml's flash attention takes the bias in 16 bits only, which is not exact enough.
    """
    g = block.graph
    n_embd, n = x.ne[:2]
    n_head = bias.ne[2]
    x = block.layer_norm("ln1", x)
    q, k, v = (split_heads(g, block.linear(m, x), n_head) for m in ("attn_q", "attn_k", "attn_v"))
    scores = g.mul_mat(k, g.cont(q))  # ne=[n keys, n queries, n_head]
    weights = g.soft_max(scores, (n_embd // n_head) ** -0.5, bias)
    transposed = g.cont(g.permute(v, (1, 0, 2, 3)))  # ne=[n, n_embd_head, n_head]
    heads = g.mul_mat(transposed, weights)  # ne=[n_embd_head, n, n_head]
    merged = g.reshape(g.cont(g.permute(heads, (0, 2, 1, 3))), n_embd, n)
    return block.linear("attn_out", merged)


def causal_conv(block: Block[AudioLayer], x: Tensor) -> Tensor:
    """Depthwise convolution in time that looks back only; ne=[n_embd, n]."""
    g = block.graph
    kernel = block.weight("conv_dw", "weight")  # ne=[n_taps, n_embd]
    n_taps, n_embd = kernel.ne[:2]
    n = x.ne[1]
    # A lone frame gets a zero frame after it, which no output that is kept looks at.
    image = g.pad(x, 0, 1) if n == 1 else x
    kernel = g.reshape(kernel, n_taps, 1, 1, n_embd)
    y = g.conv_2d_depthwise(kernel, image, stride=1, padding=(n_taps - 1, 0))
    return g.add(g.rows(y, 0, n), block.weight("conv_dw", "bias"))


def conv_module(block: Block[AudioLayer], x: Tensor) -> Tensor:
    """Norm, pointwise to (value, gate), value * SiLU(gate), depthwise, pointwise, SiLU, pointwise.

    ne=[n_embd, n] on both sides.
    """
    g = block.graph
    gated = g.swiglu(block.linear("conv_pw1", block.layer_norm("norm_conv", x)))
    return block.linear("conv_pw3", g.silu(block.linear("conv_pw2", causal_conv(block, gated))))


def conformer_block(
    block: Block[AudioLayer], x: Tensor, bias: Tensor, tap: Callable[[str, Tensor], Tensor]
) -> Tensor:
    """Half a feed-forward, attention, convolution, half a feed-forward, norm; ne=[n_embd, n]."""
    g = block.graph
    ff_in = tap("feed_forward_in", feed_forward(block, x, ("ffn_norm", "ffn_up", "ffn_down")))
    x = g.add(x, g.scale(ff_in, 0.5))
    x = g.add(x, tap("self_attn", rel_attention(block, x, bias)))
    x = g.add(x, tap("conv", conv_module(block, x)))
    ff_out = tap(
        "feed_forward_out", feed_forward(block, x, ("ffn_norm_1", "ffn_up_1", "ffn_down_1"))
    )
    return block.layer_norm("ln2", g.add(x, g.scale(ff_out, 0.5)))


class AudioEncoder:
    """The audio encoder of one mmproj file, with both its projectors.

    Used by one thread at a time.

    Args:
        file: holds ``audio_tensors(hparams)``.  It may be closed; its mapping stays.
        hparams: of the encoder.
        backend: what computes it; must outlive the encoder.
    """

    def __init__(self, file: GGUFFile, hparams: AudioHParams, backend: Backend) -> None:
        self.hparams = hparams
        self._backend = backend
        self._mean, self._inv_std, self._bias_table = (file.data(name) for name in _TABLES)
        first = [audio_conv(0, "weight"), audio_conv(0, "bias")]
        tensors = stored(file, audio_tensors(hparams).keys() - {*_TABLES, *first})
        kernel = first_kernel(*(file.data(name) for name in first))
        tensors[first[0]] = WeightData.of_array(kernel)
        self._weights = Weights(backend, tensors)
        self._projectors = {
            name: Projector(backend, self._weights, partial(audio_projector, name))
            for name in AUDIO_PROJECTORS
        }

    def close(self) -> None:
        """Free the weights; the second call does nothing."""
        self._weights.close()

    def encode(
        self,
        mel: Array,
        projection: AudioProjection,
        between: Callable[[], None] | None = None,
        taps: Taps | None = None,
    ) -> Array:
        """Encode one clip; ``between`` is called at each pause of ``steps``."""
        return finish(self.steps(mel, projection, taps), between)

    def steps(
        self, mel: Array, projection: AudioProjection, taps: Taps | None = None
    ) -> Generator[None, None, Array]:
        """Encode one clip; pauses after each slice and each attention chunk.

        Args:
            mel: float32 (n_frames, n_mel), at least one frame.
            projection: ``speech`` without pictures in the conversation, ``vision`` with one.
            taps: records intermediate tensors.

        Returns:
            float32 (ceil(n_frames / subsampling), n_embd_out).

        Raises:
            Cancelled: the backend's abort flag was set.
            NativeError: a computation failed.
        """
        assert len(mel) > 0
        assert mel.shape[1:] == (self.hparams.n_mel,)
        taps = taps or Taps()
        normed = (mel - self._mean) * self._inv_std
        taps.add("aud.normed", normed)
        x = yield from self._subsample(normed)
        taps.add("aud.subsampled", x)
        x = yield from self._encode_chunks(x, taps)
        taps.add("aud.encoder_out", x)
        projected = yield from self._projectors[projection].steps(x)
        taps.add(f"aud.projected.{projection}", projected)
        return projected

    def _subsample(self, mel: Array) -> Generator[None, None, Array]:
        """(n_frames, n_mel) -> (n_tokens, n_embd), slice by slice, as if done at once.

        A token looks at most 7 frames back beyond its own 8, and none ahead.  So a slice that
        begins one token early is exact from the second token on.
        """
        factor = self.hparams.subsampling
        n_tokens = -(-len(mel) // factor)
        slices = []
        for start in range(0, n_tokens, _SLICE):
            early = min(start, 1)
            frames = mel[(start - early) * factor : (start + _SLICE) * factor]
            slices.append(self._subsample_slice(frames)[early:])
            yield
        tokens = np.concatenate(slices)
        assert len(tokens) == n_tokens
        return tokens

    def _subsample_slice(self, mel: Array) -> Array:
        w = self._weights
        patches = first_patches(mel)
        with Graph(self._backend, max_tensors=64) as g:
            x = g.input("patches", patches.shape)
            x = g.relu(g.mul_mat(w[audio_conv(0, "weight")], x))
            for index in (2, 5):
                x = subsample_stage(g, w, x, index)
            g.output("tokens", linear(g, w, audio_pre_encode, flatten(g, x)))
            return g.compute({"patches": patches})["tokens"]

    def _encode_chunks(self, x: Array, taps: Taps) -> Generator[None, None, Array]:
        """(n_tokens, n_embd) through all blocks; attention chunks know nothing of each other."""
        chunks = fold(x, self.hparams.chunk_size)
        bias = relative_bias(self._bias_table, chunks.shape[1])
        encoded = []
        for chunk in chunks:
            outputs = self._compute(chunk, bias, taps)
            encoded.append(outputs.pop("x"))
            taps.add_all(outputs)
            yield
        return np.concatenate(encoded)[: len(x)]

    def _compute(self, tokens: Array, bias: Array, taps: Taps) -> dict[str, Array]:
        h = self.hparams
        with Graph(self._backend, max_tensors=(1 + h.n_layer) * _MAX_PER_BLOCK) as g:
            x = g.input("tokens", tokens.shape)
            biases = g.input("bias", bias.shape)
            for il in range(h.n_layer):
                name = f"aud.block{il}"
                block = Block(g, self._weights, partial(audio_block, il), h.eps)
                tap = partial(_mark_part, taps, g, name)
                x = taps.mark(g, name, conformer_block(block, x, biases, tap))
            g.output("x", x)
            return g.compute({"tokens": tokens, "bias": bias})


def _mark_part(taps: Taps, g: Graph, block: str, part: str, x: Tensor) -> Tensor:
    return taps.mark(g, f"{block}.{part}", x)
