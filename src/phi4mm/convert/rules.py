"""Which source tensor becomes which tensor of the files, as tables; and what is dropped, and why.

Source names are written as in Microsoft's layout; ``Layout.rename`` gives the other one's.  The
tables are complete: ``resolve`` refuses a checkpoint with a tensor that no table names, or without
one that a table needs.  docs/model.md, "Tensors".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from phi4mm.convert.checkpoint import Checkpoint
from phi4mm.convert.tensorfile import SourceTensor
from phi4mm.errors import ModelFileError
from phi4mm.modality import Adapter
from phi4mm.modelfile import tensors as names
from phi4mm.modelfile.tensors import (
    AudioLayer,
    DecoderLayer,
    Leaf,
    Target,
    TensorTable,
    VisionLayer,
)

Transform = Literal["copy", "squeeze", "glu_bias"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One tensor of a file and where it comes from.

    Attributes:
        target: its name in the file.
        sources: names in Microsoft's layout.
        transform: ``copy`` keeps the shape; ``squeeze`` drops axes of length one; ``glu_bias`` adds
            the two biases of the gated unit to the bias of the convolution before them.
    """

    target: str
    sources: tuple[str, ...]
    transform: Transform = "copy"


@dataclass(frozen=True, slots=True)
class Drop:
    """Source tensors that no file needs.

    Attributes:
        prefix: what their names begin with, in Microsoft's layout.
        reason: why the output does not depend on them.
    """

    prefix: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A rule with its tensors found."""

    rule: Rule
    sources: tuple[SourceTensor, ...]


IMAGE = "model.embed_tokens_extend.image_embed."
SIGLIP = IMAGE + "img_processor."
AUDIO = "model.embed_tokens_extend.audio_embed."
LEAVES: tuple[Leaf, ...] = ("weight", "bias")

DECODER_MATRICES: dict[Target, str] = {
    "attn_qkv": "self_attn.qkv_proj",  # rows: q, k, v
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",  # rows: gate, up
    "ffn_down": "mlp.down_proj",
}
DECODER_NORMS: dict[DecoderLayer, str] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
VISION_LAYERS: dict[VisionLayer, str] = {
    "ln1": "layer_norm1",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
# "net.0.linear" holds the value rows first, then the gate rows: the order of the decoder's
# "gate_up_proj" turned round.
AUDIO_LAYERS: dict[AudioLayer, tuple[str, Transform]] = {
    "ffn_norm": ("feed_forward_in.layer_norm", "copy"),
    "ffn_up": ("feed_forward_in.net.0.linear", "copy"),
    "ffn_down": ("feed_forward_in.net.2", "copy"),
    "ln1": ("layer_norm_att", "copy"),
    "attn_q": ("self_attn.linear_q", "copy"),
    "attn_k": ("self_attn.linear_k", "copy"),
    "attn_v": ("self_attn.linear_v", "copy"),
    "attn_out": ("self_attn.linear_out", "copy"),
    "norm_conv": ("conv.layer_norm", "copy"),
    "conv_dw": ("conv.dw_sep_conv_1d.dw_conv", "squeeze"),
    "conv_pw2": ("conv.dw_sep_conv_1d.pw_conv", "squeeze"),
    "conv_pw3": ("conv.ext_pw_conv_1d", "squeeze"),
    "ffn_norm_1": ("feed_forward_out.layer_norm", "copy"),
    "ffn_up_1": ("feed_forward_out.net.0.linear", "copy"),
    "ffn_down_1": ("feed_forward_out.net.2", "copy"),
    "ln2": ("layer_norm", "copy"),
}
SUBSAMPLING: dict[int, Transform] = {0: "copy", 2: "copy", 3: "squeeze", 5: "copy", 6: "squeeze"}


def decoder_rules(n_layer: int) -> Iterator[Rule]:
    """The decoder's tensors; its RoPE factors come from the config instead."""
    yield Rule(names.TOKEN_EMBD, ("model.embed_tokens.weight",))
    yield Rule(names.OUTPUT_NORM, ("model.norm.weight",))
    for il in range(n_layer):
        for norm, source in DECODER_NORMS.items():
            yield Rule(names.decoder_block(il, norm), (f"model.layers.{il}.{source}.weight",))
        for target, source in DECODER_MATRICES.items():
            stored = f"model.layers.{il}.{source}.base_layer.weight"
            yield Rule(names.decoder_block(il, target), (stored,))


def adapter_rules(n_layer: int, adapter: Adapter) -> Iterator[Rule]:
    """The tensors of one of the two adapters."""
    for il in range(n_layer):
        for target, source in DECODER_MATRICES.items():
            stem = f"model.layers.{il}.{source}"
            yield Rule(names.lora(il, target, "a"), (f"{stem}.lora_A.{adapter}.weight",))
            yield Rule(names.lora(il, target, "b"), (f"{stem}.lora_B.{adapter}.weight",))


def vision_rules(n_layer: int) -> Iterator[Rule]:
    """The vision encoder up to its feature layer, and its projector."""
    for leaf in LEAVES:
        yield Rule(names.patch_embd(leaf), (f"{SIGLIP}embeddings.patch_embedding.{leaf}",))
    yield Rule(names.POSITION_EMBD, (f"{SIGLIP}embeddings.position_embedding.weight",))
    yield Rule(names.IMAGE_NEWLINE, (f"{IMAGE}sub_GN",), "squeeze")
    yield Rule(names.VIEW_SEPARATOR, (f"{IMAGE}glb_GN",), "squeeze")
    for il in range(n_layer):
        for layer, source in VISION_LAYERS.items():
            for leaf in LEAVES:
                stored = f"{SIGLIP}encoder.layers.{il}.{source}.{leaf}"
                yield Rule(names.vision_block(il, layer, leaf), (stored,))
    for leaf in LEAVES:
        yield Rule(names.vision_projector(0, leaf), (f"{IMAGE}img_projection.0.{leaf}",))
        yield Rule(names.vision_projector(2, leaf), (f"{IMAGE}img_projection.2.{leaf}",))


def audio_rules(n_layer: int) -> Iterator[Rule]:
    """The audio encoder and its two projectors."""
    encoder = f"{AUDIO}encoder."
    yield Rule(names.MEL_MEAN, (f"{encoder}encoder_embedding.global_mean",))
    yield Rule(names.MEL_INV_STD, (f"{encoder}encoder_embedding.global_invstd",))
    table = f"{encoder}relative_attention_bias_layer.bias_values.weight"
    yield Rule(names.REL_ATTN_BIAS, (table,))
    for leaf in LEAVES:
        for index, transform in SUBSAMPLING.items():
            stored = f"{encoder}embed.conv.{index}.{leaf}"
            yield Rule(names.audio_conv(index, leaf), (stored,), transform)
        yield Rule(names.audio_pre_encode(leaf), (f"{encoder}embed.out.{leaf}",))
    for il in range(n_layer):
        yield from _audio_block_rules(il, f"{encoder}encoders.{il}.")
    for projector in names.AUDIO_PROJECTORS:
        for leaf in LEAVES:
            stem = f"{AUDIO}audio_projection.{projector}"
            yield Rule(names.audio_projector(projector, 0, leaf), (f"{stem}.0.{leaf}",))
            yield Rule(names.audio_projector(projector, 2, leaf), (f"{stem}.2.{leaf}",))


def _audio_block_rules(il: int, stem: str) -> Iterator[Rule]:
    for layer, (source, transform) in AUDIO_LAYERS.items():
        for leaf in LEAVES:
            stored = f"{stem}{source}.{leaf}"
            yield Rule(names.audio_block(il, layer, leaf), (stored,), transform)
    gate = f"{stem}conv.glu."
    pointwise = f"{gate}ext_pw_conv_1d."
    yield Rule(names.audio_block(il, "conv_pw1", "weight"), (f"{pointwise}weight",), "squeeze")
    biases = (f"{pointwise}bias", f"{gate}b1", f"{gate}b2")
    yield Rule(names.audio_block(il, "conv_pw1", "bias"), biases, "glu_bias")


def drops(n_vision_used: int, n_vision_stored: int) -> list[Drop]:
    """What of the checkpoint no file holds."""
    after = [
        Drop(f"{SIGLIP}encoder.layers.{il}.", "vision layer after the feature layer")
        for il in range(n_vision_used, n_vision_stored)
    ]
    return [
        *after,
        Drop(f"{SIGLIP}post_layernorm.", "acts after the feature layer"),
        Drop(f"{SIGLIP}head.", "pooling head of the vision encoder, never run"),
        Drop("lm_head.weight", "the output matrix is tied to the token embedding"),
    ]


def resolve(
    checkpoint: Checkpoint, rules: dict[str, list[Rule]], dropped: list[Drop]
) -> dict[str, list[Resolved]]:
    """Find every source of every part's rules.

    Args:
        checkpoint: the opened checkpoint.
        rules: the rules of each part.
        dropped: what may be in the checkpoint besides.

    Raises:
        ModelFileError: a source is missing, or a tensor of the checkpoint is named by no rule.
    """
    rename = checkpoint.layout.rename
    found: dict[str, list[Resolved]] = {}
    used: set[str] = set()
    for part, part_rules in rules.items():
        found[part] = []
        for rule in part_rules:
            stored = tuple(rename(name) for name in rule.sources)
            sources = tuple(_find(checkpoint, name) for name in stored)
            found[part].append(Resolved(rule, sources))
            used.update(stored)
    prefixes = tuple(rename(drop.prefix) for drop in dropped)
    unknown = [n for n in checkpoint.tensors if n not in used and not n.startswith(prefixes)]
    if unknown:
        name = checkpoint.tensors[unknown[0]].name
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise ModelFileError(
            f"{checkpoint.path}: tensor {name!r}{more} is not one of this model's; "
            "nothing is dropped without a rule"
        )
    return found


def count_dropped(checkpoint: Checkpoint, dropped: list[Drop]) -> dict[str, int]:
    """How many tensors of the checkpoint each reason dropped."""
    counts: dict[str, int] = {}
    for drop in dropped:
        prefix = checkpoint.layout.rename(drop.prefix)
        n = sum(name.startswith(prefix) for name in checkpoint.tensors)
        if n:
            counts[drop.reason] = counts.get(drop.reason, 0) + n
    return counts


def check_table(
    part: str, resolved: Sequence[Resolved], table: TensorTable, made: Collection[str] = ()
) -> None:
    """Check that the rules produce the part's table exactly, each tensor with its shape.

    Args:
        part: what messages call the part.
        resolved: the part's rules, with sources.
        table: what the part's file must contain.
        made: tensors of the table that are made from the config instead.

    Raises:
        ModelFileError: a shape differs; the message names the source tensor.
    """
    targets = {item.rule.target for item in resolved}.union(made)
    assert targets == table.keys(), f"{part}: rules and table differ: {targets ^ table.keys()}"
    for item in resolved:
        _check_shape(item, table[item.rule.target].shape)


def _find(checkpoint: Checkpoint, name: str) -> SourceTensor:
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise ModelFileError(
            f"{checkpoint.path}: tensor {name!r} is missing ({checkpoint.layout.title})"
        )
    return tensor


def _check_shape(item: Resolved, expected: tuple[int, ...]) -> None:
    first, *rest = item.sources
    produced = first.shape
    if item.rule.transform == "squeeze":
        produced = squeezed(first.shape, expected)
    if produced != expected:
        raise _wrong_shape(first, expected)
    for bias in rest:  # glu_bias: two halves
        half = (1, expected[0] // 2, 1)
        if bias.shape != half:
            raise _wrong_shape(bias, half)


def squeezed(shape: tuple[int, ...], expected: tuple[int, ...]) -> tuple[int, ...]:
    """``expected`` if ``shape`` is it with axes of length one added, else ``shape``."""
    same = [n for n in shape if n != 1] == [n for n in expected if n != 1]
    return expected if same and len(shape) > len(expected) else shape


def _wrong_shape(tensor: SourceTensor, expected: tuple[int, ...]) -> ModelFileError:
    return ModelFileError(
        f"{tensor.path}: {tensor.name!r} has shape {list(tensor.shape)}, must be {list(expected)}"
    )
