"""What a model asks of a machine at least: operations, and bytes read, of each of its steps.

A product of a matrix with a vector takes two operations for each weight and reads the weight once;
norms, activations and softmax are left out, they are below a hundredth.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from phi4mm.bench.peak import Work
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import AudioHParams, DecoderHParams, VisionHParams
from phi4mm.modelfile.part import AdapterPart, DecoderPart
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import (
    TOKEN_EMBD,
    TensorTable,
    audio_tensors,
    decoder_matrix_shapes,
    vision_tensors,
)


def file_bytes(file: GGUFFile, prefixes: tuple[str, ...] = ("",)) -> int:
    """Bytes of the tensors whose names begin in one of these ways."""
    return sum(i.n_bytes for name, i in file.tensors.items() if name.startswith(prefixes))


def kv_bytes(h: DecoderHParams, n_tokens: int, type_k: str = "f16", type_v: str = "f16") -> int:
    """Bytes of the cached keys and values of so many positions."""
    types = (GGMLType[name.upper()] for name in (type_k, type_v))
    return n_tokens * h.n_layer * sum(kind.row_bytes(h.n_embd_gqa) for kind in types)


def generation_work(decoder: DecoderPart, adapter: AdapterPart | None, n_tokens: int) -> Work:
    """Generating tokens from an empty cache: all weights and what is cached are read each time."""
    h = decoder.hparams
    n_bytes = file_bytes(decoder.file) + (file_bytes(adapter.file) if adapter else 0)
    cached = sum(kv_bytes(h, position) for position in range(n_tokens))
    flops = n_tokens * (_layer_flops(h) + 2.0 * h.n_vocab * h.n_embd + _adapter_flops(adapter))
    return Work(flops + _attention_flops(h, n_tokens), n_tokens * n_bytes + cached)


def prefill_work(
    decoder: DecoderPart, adapter: AdapterPart | None, n_tokens: int, n_batch: int
) -> Work:
    """Prefill from an empty cache: the weights are read once for every ``n_batch`` tokens.

    Of the embedding, which is also the output matrix, one row is needed for each token, and all of
    it once, for the logits after the last.
    """
    h = decoder.hparams
    n_bytes = file_bytes(decoder.file) + (file_bytes(adapter.file) if adapter else 0)
    n_steps = -(-n_tokens // n_batch)
    body = n_bytes - decoder.file.tensors[TOKEN_EMBD].n_bytes
    flops = n_tokens * (_layer_flops(h) + _adapter_flops(adapter)) + 2.0 * h.n_vocab * h.n_embd
    return Work(flops + _attention_flops(h, n_tokens), n_bytes + (n_steps - 1) * body)


def crop_work(h: VisionHParams, file: GGUFFile) -> Work:
    """One crop, all of it valid, through the vision encoder and its projector."""
    table = vision_tensors(h)
    per_patch = _matrix_weights(table, "v.blk.") + 3 * h.patch_size**2 * h.n_embd
    attention = 4.0 * h.n_patches**2 * h.n_embd * h.n_layer
    projected = 2.0 * _matrix_weights(table, "mm.") * h.n_patches / h.pool**2
    flops = 2.0 * per_patch * h.n_patches + attention + projected
    return Work(flops, file_bytes(file, ("v.", "mm.0.", "mm.2.")))


def sound_work(h: AudioHParams, file: GGUFFile, seconds: float) -> Work:
    """A clip through the audio encoder and one of its projectors."""
    table = audio_tensors(h)
    hop_s = h.mel.hop_lengths[0] / h.mel.sample_rates[0]
    n_frames = seconds / hop_s
    n_tokens = n_frames / h.subsampling
    span = min(n_tokens, h.chunk_size)
    per_token = (
        _matrix_weights(table, "a.blk.")
        + _matrix_weights(table, "a.pre_encode.")
        + _matrix_weights(table, "mm.a.speech.")
    )
    attention = 4.0 * n_tokens * span * h.n_embd * h.n_layer
    flops = 2.0 * per_token * n_tokens + attention + _subsampling_flops(h, n_frames)
    return Work(flops, file_bytes(file, ("a.", "mm.a.speech.")))


def _subsampling_flops(h: AudioHParams, n_frames: float) -> float:
    """Three convolutions that each halve time and frequency, two of them with a square matrix."""
    places = [n_frames * h.n_mel / 4**stage for stage in (1, 2, 3)]
    return 2.0 * h.n_conv * (9 * sum(places) + h.n_conv * (places[1] + places[2]))


def _layer_flops(h: DecoderHParams) -> float:
    """Operations on one token in all layers' matrices."""
    return 2.0 * h.n_layer * sum(prod(shape) for shape in decoder_matrix_shapes(h).values())


def _attention_flops(h: DecoderHParams, n_tokens: int) -> float:
    """Scores and weighted sums over all earlier positions, for every position."""
    return 4.0 * h.n_embd * h.n_layer * n_tokens * (n_tokens + 1) / 2


def _adapter_flops(adapter: AdapterPart | None) -> float:
    return 2.0 * _weights(i.shape for i in adapter.file.tensors.values()) if adapter else 0.0


def _matrix_weights(table: TensorTable, prefix: str) -> int:
    """Weights of a table's matrices whose names begin like this."""
    return _weights(
        spec.shape
        for name, spec in table.items()
        if name.startswith(prefix) and spec.kind == "matrix"
    )


def _weights(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(map(prod, shapes))
