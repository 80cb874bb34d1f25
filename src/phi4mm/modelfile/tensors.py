"""Tensor names of the GGUF files, and for each part the table of every tensor it must contain.

Shapes are ``(rows, cols)``, the order of numpy and safetensors; ggml's ``ne`` is the reverse.
The tables serve the converter (completeness, types), the checks on reading, and docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from phi4mm.modelfile.hparams import AdapterHParams, AudioHParams, DecoderHParams, VisionHParams

Kind = Literal["matrix", "f32"]
Leaf = Literal["weight", "bias"]
LoraSide = Literal["a", "b"]
Target = Literal["attn_qkv", "attn_output", "ffn_up", "ffn_down"]
AudioProjectorName = Literal["speech", "vision"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor must be.

    Attributes:
        shape: true shape, ``(rows, cols)`` order.
        kind: ``matrix`` takes the type of its part; ``f32`` always stays F32.
        may_pad: whether the file may hold a matrix with zero columns added up to the block of
            its type (the graph pads the activation to match, so nothing changes).
    """

    shape: tuple[int, ...]
    kind: Kind
    may_pad: bool = False


TensorTable = dict[str, TensorSpec]

# ---- decoder

TOKEN_EMBD: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"  # only in files of others: this model ties it to TOKEN_EMBD
OUTPUT_NORM: Final = "output_norm.weight"
ROPE_FACTORS_LONG: Final = "rope_factors_long.weight"
ROPE_FACTORS_SHORT: Final = "rope_factors_short.weight"
LORA_A_SUFFIX: Final = ".lora_a"
LORA_B_SUFFIX: Final = ".lora_b"
TARGETS: Final[tuple[Target, ...]] = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")

DecoderLayer = Literal["attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"]


def decoder_block(il: int, layer: DecoderLayer) -> str:
    """Name of a weight of decoder layer ``il``."""
    return f"blk.{il}.{layer}.weight"


def lora(il: int, target: Target, side: LoraSide) -> str:
    """Name of half the adapter of a decoder matrix: ``a`` is (rank, in), ``b`` (out, rank)."""
    return f"{decoder_block(il, target)}{LORA_A_SUFFIX if side == 'a' else LORA_B_SUFFIX}"


# ---- vision

PATCH_EMBD: Final = "v.patch_embd"
POSITION_EMBD: Final = "v.position_embd.weight"
IMAGE_NEWLINE: Final = "v.image_newline"
VIEW_SEPARATOR: Final = "v.view_seperator"  # upstream's spelling

VisionLayer = Literal["ln1", "attn_q", "attn_k", "attn_v", "attn_out", "ln2", "ffn_up", "ffn_down"]


def patch_embd(leaf: Leaf) -> str:
    """Name of the patch convolution's weight or bias."""
    return f"{PATCH_EMBD}.{leaf}"


def vision_block(il: int, layer: VisionLayer, leaf: Leaf) -> str:
    """Name of a tensor of vision layer ``il``."""
    return f"v.blk.{il}.{layer}.{leaf}"


def vision_projector(index: Literal[0, 2], leaf: Leaf) -> str:
    """Name of a tensor of the vision projector: 0 first linear layer, 2 second (1 is the GELU)."""
    return f"mm.{index}.{leaf}"


# ---- audio

MEL_MEAN: Final = "a.mel_mean"
MEL_INV_STD: Final = "a.mel_inv_std"
REL_ATTN_BIAS: Final = "a.rel_attn_bias.weight"
AUDIO_PROJECTORS: Final[tuple[AudioProjectorName, ...]] = ("speech", "vision")
CONV_INDICES: Final = (0, 2, 3, 5, 6)

AudioLayer = Literal[
    "ffn_norm", "ffn_up", "ffn_down", "ln1", "attn_q", "attn_k", "attn_v", "attn_out", "norm_conv",
    "conv_pw1", "conv_dw", "conv_pw2", "conv_pw3", "ffn_norm_1", "ffn_up_1", "ffn_down_1", "ln2",
]  # fmt: skip


def audio_conv(index: int, leaf: Leaf) -> str:
    """Name of a subsampling convolution: 0 full, 2 and 5 depthwise, 3 and 6 pointwise."""
    return f"a.conv2d.{index}.{leaf}"


def audio_pre_encode(leaf: Leaf) -> str:
    """Name of the linear layer after subsampling; its input is ``channel * n_freq + freq``."""
    return f"a.pre_encode.out.{leaf}"


def audio_block(il: int, layer: AudioLayer, leaf: Leaf) -> str:
    """Name of a tensor of audio block ``il``."""
    return f"a.blk.{il}.{layer}.{leaf}"


def audio_projector(name: AudioProjectorName, index: Literal[0, 2], leaf: Leaf) -> str:
    """Name of a tensor of one of the two audio projectors."""
    return f"mm.a.{name}.{index}.{leaf}"


# ---- tables


def decoder_tensors(h: DecoderHParams) -> TensorTable:
    """Every tensor of a decoder file."""
    table = {
        TOKEN_EMBD: TensorSpec((h.n_vocab, h.n_embd), "matrix"),
        OUTPUT_NORM: TensorSpec((h.n_embd,), "f32"),
        ROPE_FACTORS_LONG: TensorSpec((h.n_rot // 2,), "f32"),
        ROPE_FACTORS_SHORT: TensorSpec((h.n_rot // 2,), "f32"),
    }
    shapes = decoder_matrix_shapes(h)
    for il in range(h.n_layer):
        table[decoder_block(il, "attn_norm")] = TensorSpec((h.n_embd,), "f32")
        table[decoder_block(il, "attn_qkv")] = TensorSpec(shapes["attn_qkv"], "matrix")
        table[decoder_block(il, "attn_output")] = TensorSpec(shapes["attn_output"], "matrix")
        table[decoder_block(il, "ffn_norm")] = TensorSpec((h.n_embd,), "f32")
        table[decoder_block(il, "ffn_up")] = TensorSpec(shapes["ffn_up"], "matrix")
        table[decoder_block(il, "ffn_down")] = TensorSpec(shapes["ffn_down"], "matrix")
    return table


def decoder_matrix_shapes(h: DecoderHParams) -> dict[Target, tuple[int, int]]:
    """Shapes (out, in) of a layer's matrices, the ones an adapter may change."""
    return {
        "attn_qkv": (h.n_embd + 2 * h.n_embd_gqa, h.n_embd),  # rows: q, k, v
        "attn_output": (h.n_embd, h.n_embd),
        "ffn_up": (2 * h.n_ff, h.n_embd),  # rows: gate, up
        "ffn_down": (h.n_embd, h.n_ff),
    }


def adapter_tensors(h: AdapterHParams, decoder: DecoderHParams) -> TensorTable:
    """Every tensor of an adapter file for this decoder."""
    table = {}
    shapes = decoder_matrix_shapes(decoder)
    for il in range(decoder.n_layer):
        for target in TARGETS:
            n_out, n_in = shapes[target]
            table[lora(il, target, "a")] = TensorSpec((h.rank, n_in), "matrix")
            table[lora(il, target, "b")] = TensorSpec((n_out, h.rank), "matrix")
    return table


def vision_tensors(h: VisionHParams) -> TensorTable:
    """Every tensor of the vision encoder and its projector."""
    patch = (h.n_embd, 3, h.patch_size, h.patch_size)
    table = {
        patch_embd("weight"): TensorSpec(patch, "f32"),
        patch_embd("bias"): TensorSpec((h.n_embd,), "f32"),
        POSITION_EMBD: TensorSpec((h.n_patches, h.n_embd), "f32"),
        IMAGE_NEWLINE: TensorSpec((h.n_embd,), "f32"),
        VIEW_SEPARATOR: TensorSpec((h.n_embd,), "f32"),
    }
    for il in range(h.n_layer):
        table.update(_stem(f"v.blk.{il}", _vision_layers(h)))
    table.update(_stem("mm", _projector(h.n_embd, h.n_embd_out)))
    return table


def audio_tensors(h: AudioHParams) -> TensorTable:
    """Every tensor of the audio encoder and its two projectors."""
    table = {
        MEL_MEAN: TensorSpec((h.n_mel,), "f32"),
        MEL_INV_STD: TensorSpec((h.n_mel,), "f32"),
        REL_ATTN_BIAS: TensorSpec((2 * h.bias_distance, h.n_head), "f32"),
    }
    table.update(_stem("a.conv2d", _subsampling(h)))
    table.update(_linear("a.pre_encode.out", h.n_embd, h.n_conv * h.n_freq))
    for il in range(h.n_layer):
        table.update(_stem(f"a.blk.{il}", _audio_layers(h)))
    for name in AUDIO_PROJECTORS:
        table.update(_stem(f"mm.a.{name}", _projector(h.n_embd, h.n_embd_out)))
    return table


def mmproj_tensors(vision: VisionHParams | None, audio: AudioHParams | None) -> TensorTable:
    """Every tensor of an mmproj file with these encoders."""
    table: TensorTable = {}
    if vision is not None:
        table.update(vision_tensors(vision))
    if audio is not None:
        table.update(audio_tensors(audio))
    return table


def _stem(stem: str, table: TensorTable) -> TensorTable:
    return {f"{stem}.{name}": spec for name, spec in table.items()}


def _linear(name: str, n_out: int, n_in: int) -> TensorTable:
    return {
        f"{name}.weight": TensorSpec((n_out, n_in), "matrix", may_pad=True),
        f"{name}.bias": TensorSpec((n_out,), "f32"),
    }


def _norm(name: str, n_embd: int) -> TensorTable:
    spec = TensorSpec((n_embd,), "f32")
    return {f"{name}.weight": spec, f"{name}.bias": spec}


def _convolution(name: str, shape: tuple[int, ...]) -> TensorTable:
    return {
        f"{name}.weight": TensorSpec(shape, "f32"),
        f"{name}.bias": TensorSpec(shape[:1], "f32"),
    }


def _projector(n_embd: int, n_embd_out: int) -> TensorTable:
    return _linear("0", n_embd_out, n_embd) | _linear("2", n_embd_out, n_embd_out)


def _attention(n_embd: int) -> Iterator[TensorTable]:
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        yield _linear(name, n_embd, n_embd)


def _vision_layers(h: VisionHParams) -> TensorTable:
    table = _norm("ln1", h.n_embd)
    for linear in _attention(h.n_embd):
        table |= linear
    return (
        table
        | _norm("ln2", h.n_embd)
        | _linear("ffn_up", h.n_ff, h.n_embd)
        | _linear("ffn_down", h.n_embd, h.n_ff)
    )


def _subsampling(h: AudioHParams) -> TensorTable:
    kernel = (h.n_conv, 1, 3, 3)
    return (
        _convolution("0", kernel)
        | _convolution("2", kernel)
        | _linear("3", h.n_conv, h.n_conv)
        | _convolution("5", kernel)
        | _linear("6", h.n_conv, h.n_conv)
    )


def _audio_layers(h: AudioHParams) -> TensorTable:
    table = _feed_forward("", h) | _norm("ln1", h.n_embd)
    for linear in _attention(h.n_embd):
        table |= linear
    return (
        table
        | _norm("norm_conv", h.n_embd)
        | _linear("conv_pw1", 2 * h.n_embd, h.n_embd)  # rows: value, gate
        | _convolution("conv_dw", (h.n_embd, h.conv_kernel_size))
        | _linear("conv_pw2", h.n_embd, h.n_embd)
        | _linear("conv_pw3", h.n_embd, h.n_embd)
        | _feed_forward("_1", h)
        | _norm("ln2", h.n_embd)
    )


def _feed_forward(suffix: str, h: AudioHParams) -> TensorTable:
    return (
        _norm(f"ffn_norm{suffix}", h.n_embd)
        | _linear(f"ffn_up{suffix}", 2 * h.n_ff, h.n_embd)  # rows: value, gate
        | _linear(f"ffn_down{suffix}", h.n_embd, h.n_ff)
    )
