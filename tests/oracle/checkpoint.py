"""Writes a tiny random checkpoint in Microsoft's layout or in the one of transformers.

Random float weights do not compress, so they are not kept in the repository: they are drawn anew,
the same on every machine.  Each tensor has its own generator, seeded by its name, and the draws use
uniform numbers, additions, multiplications and square roots only, which IEEE 754 fixes to the last
bit.  Small files (configurations, tokenizer) come from ``data/NAME``.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import save_file

from oracle.sizes import CROP_SIZE, N_MELS, PATCH_SIZE, SIZES, AudioSizes, Sizes, VisionSizes

Layout = Literal["ms", "hf"]
Shapes = dict[str, tuple[int, ...]]
Tensors = dict[str, np.ndarray]

DATA = Path(__file__).parent / "data"
N_SHARDS = 3
IMAGE = "model.embed_tokens_extend.image_embed."
AUDIO = "model.embed_tokens_extend.audio_embed."

ADAPTER_TARGETS = r"model\.layers\.\d+\.((self_attn\.(qkv|o)_proj)|(mlp\.(gate_up|down)_proj))"

# Microsoft's name -> the one in transformers (docs/model.md, "Tensors").
MS_TO_HF = (
    (r"\.base_layer\.", "."),
    (r"(feed_forward_(?:in|out))\.net\.0\.linear", r"\1.gate_up_proj"),
    (r"(feed_forward_(?:in|out))\.net\.2", r"\1.down_proj"),
    (r"self_attn\.linear_([qkv])\b", r"self_attn.\1_proj"),
    (r"self_attn\.linear_out", "self_attn.o_proj"),
    (r"img_projection\.0", "img_projection_up"),
    (r"img_projection\.2", "img_projection_down"),
    (r"glb_GN", "global_img_feature_extensor"),
    (r"sub_GN", "sub_img_feature_extensor"),
    (r"audio_projection\.speech\.0", "up_proj_for_speech"),
    (r"audio_projection\.speech\.2", "down_proj_for_speech"),
    (r"audio_projection\.vision\.0", "up_proj_for_vision_speech"),
    (r"audio_projection\.vision\.2", "down_proj_for_vision_speech"),
)


def write_checkpoint(name: str, out_dir: Path, layout: Layout = "ms") -> Path:
    """Writes the model ``name`` of ``SIZES`` into ``out_dir`` and returns that folder."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for source in (DATA / name, DATA / name / layout):
        for file in source.glob("*.*"):
            shutil.copy(file, out_dir)
    sizes = SIZES[name]
    write_tensors(draw_tensors(sizes), sizes, out_dir, layout)
    return out_dir


def draw_tensors(sizes: Sizes) -> Tensors:
    """Every tensor of the model under Microsoft's name, adapters included."""
    shapes = (
        decoder_shapes(sizes)
        | vision_shapes(sizes.vision, sizes.n_embd)
        | audio_shapes(sizes.audio, sizes.n_embd)
    )
    tensors = {name: draw(name, shape, sizes.seed) for name, shape in shapes.items()}
    # Unused rows are faint, so that no unused token is ever the most likely one.
    tensors["model.embed_tokens.weight"][sizes.n_used_vocab :] *= np.float32(0.1)
    return tensors


def fingerprint(arrays: Tensors) -> str:
    """A number that changes with any bit of any array: 8 hexadecimal digits."""
    crc = 0
    for name in sorted(arrays):
        crc = zlib.crc32(
            np.ascontiguousarray(arrays[name]).tobytes(), zlib.crc32(name.encode(), crc)
        )
    return f"{crc:08x}"


def write_tensors(tensors: Tensors, sizes: Sizes, out_dir: Path, layout: Layout) -> None:
    """Writes tensors under Microsoft's names as the weight files of either layout."""
    for which, adapter in sizes.adapters.items():
        prefix = "base_model.model." if layout == "ms" else ""
        folder = out_dir / f"{which}-lora"
        folder.mkdir(exist_ok=True)
        save_file(
            {prefix + name: x for name, x in adapter_tensors(tensors, which).items()},
            folder / "adapter_model.safetensors",
        )
        write_json(folder / "adapter_config.json", adapter_config(adapter.rank, adapter.alpha))
    if layout == "ms":
        write_shards(tensors, out_dir)
    else:
        save_file(
            {hf_name(name): x for name, x in tensors.items() if ".lora_" not in name},
            out_dir / "model.safetensors",
            metadata={"format": "pt"},
        )


def write_shards(tensors: Tensors, out_dir: Path) -> None:
    """Deals the tensors out to the shards in turn, so that every block is spread over all three."""
    names = sorted(tensors)
    weight_map = {}
    for i in range(N_SHARDS):
        file = f"model-{i + 1:05d}-of-{N_SHARDS:05d}.safetensors"
        shard = {name: tensors[name] for name in names[i::N_SHARDS]}
        save_file(shard, out_dir / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(x.nbytes for x in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(out_dir / "model.safetensors.index.json", index)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def hf_name(name: str) -> str:
    for pattern, replacement in MS_TO_HF:
        name = re.sub(pattern, replacement, name)
    return name


def adapter_tensors(tensors: Tensors, which: str) -> Tensors:
    """The tensors of one adapter under the names they have in its own folder."""
    pattern = re.compile(rf"(.*\.lora_[AB])\.{which}\.weight")
    found = ((pattern.fullmatch(name), x) for name, x in tensors.items())
    return {f"{match[1]}.weight": x for match, x in found if match}


def adapter_config(rank: int, alpha: int) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ADAPTER_TARGETS,
        "fan_in_fan_out": False,
        "use_rslora": False,
        "base_model_name_or_path": "TBA",
    }


# ---- values


def draw(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """The values of one tensor: a function of its name, its shape and the model's seed alone."""
    rng = np.random.RandomState(zlib.crc32(f"{seed}/{name}".encode()))
    mean, std = moments(name, shape)
    return (mean + std * bell(rng, shape)).astype(np.float32)


def bell(rng: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of mean 0 and variance 1 within ±3, close to normal: the sum of three uniform ones.

    ``RandomState.randn`` goes through the C library's ``log``, which differs between platforms.
    """
    uniform = rng.random_sample
    return 2.0 * (uniform(shape) + uniform(shape) + uniform(shape) - 1.5)


def moments(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation that keep activations near 1 and make every tensor matter."""
    if name.endswith("global_mean"):
        return 8.0, 2.0
    if name.endswith("global_invstd"):
        return 0.35, 0.05
    if "norm" in name and name.endswith("weight"):
        return 1.0, 0.1
    if name.endswith("bias"):
        return 0.0, 0.1
    if "bias_values" in name:
        return 0.0, 1.0
    if re.search(r"position_embedding|_GN$|probe$|\.b[12]$", name):
        return 0.0, 0.5
    if name == "model.embed_tokens.weight":
        return 0.0, 0.08
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    return 0.0, (0.5 if ".lora_" in name else 1.2) / math.sqrt(fan_in)


# ---- names and shapes


def linear(name: str, n_out: int, n_in: int, *kernel: int) -> Shapes:
    return {f"{name}.weight": (n_out, n_in, *kernel), f"{name}.bias": (n_out,)}


def layer_norm(name: str, n: int) -> Shapes:
    return {f"{name}.weight": (n,), f"{name}.bias": (n,)}


def decoder_shapes(s: Sizes) -> Shapes:
    shapes: Shapes = {
        "model.embed_tokens.weight": (s.n_vocab, s.n_embd),
        "model.norm.weight": (s.n_embd,),
    }
    for i in range(s.n_layer):
        block = f"model.layers.{i}"
        shapes[f"{block}.input_layernorm.weight"] = (s.n_embd,)
        shapes[f"{block}.post_attention_layernorm.weight"] = (s.n_embd,)
        for name, n_out, n_in in (
            ("self_attn.qkv_proj", s.n_qkv, s.n_embd),
            ("self_attn.o_proj", s.n_embd, s.n_embd),
            ("mlp.gate_up_proj", 2 * s.n_ff, s.n_embd),
            ("mlp.down_proj", s.n_embd, s.n_ff),
        ):
            shapes[f"{block}.{name}.base_layer.weight"] = (n_out, n_in)
            for which, adapter in s.adapters.items():
                shapes[f"{block}.{name}.lora_A.{which}.weight"] = (adapter.rank, n_in)
                shapes[f"{block}.{name}.lora_B.{which}.weight"] = (n_out, adapter.rank)
    return shapes


def vision_shapes(v: VisionSizes, n_embd_out: int) -> Shapes:
    n = v.n_embd
    tower, head = f"{IMAGE}img_processor", f"{IMAGE}img_processor.head"
    shapes = (
        linear(f"{tower}.embeddings.patch_embedding", n, 3, PATCH_SIZE, PATCH_SIZE)
        | {f"{tower}.embeddings.position_embedding.weight": ((CROP_SIZE // PATCH_SIZE) ** 2, n)}
        | layer_norm(f"{tower}.post_layernorm", n)
        | {f"{head}.probe": (1, 1, n), f"{IMAGE}glb_GN": (1, 1, n), f"{IMAGE}sub_GN": (1, 1, 1, n)}
        | {f"{head}.attention.in_proj_weight": (3 * n, n)}
        | {f"{head}.attention.in_proj_bias": (3 * n,)}
        | linear(f"{head}.attention.out_proj", n, n)
        | layer_norm(f"{head}.layernorm", n)
        | linear(f"{head}.mlp.fc1", v.n_ff, n)
        | linear(f"{head}.mlp.fc2", n, v.n_ff)
        | linear(f"{IMAGE}img_projection.0", n_embd_out, n)
        | linear(f"{IMAGE}img_projection.2", n_embd_out, n_embd_out)
    )
    for i in range(v.n_layer):
        block = f"{tower}.encoder.layers.{i}"
        shapes |= layer_norm(f"{block}.layer_norm1", n) | layer_norm(f"{block}.layer_norm2", n)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= linear(f"{block}.self_attn.{projection}", n, n)
        shapes |= linear(f"{block}.mlp.fc1", v.n_ff, n) | linear(f"{block}.mlp.fc2", n, v.n_ff)
    return shapes


def audio_shapes(a: AudioSizes, n_embd_out: int) -> Shapes:
    encoder = f"{AUDIO}encoder"
    shapes: Shapes = {
        f"{encoder}.encoder_embedding.global_mean": (N_MELS,),
        f"{encoder}.encoder_embedding.global_invstd": (N_MELS,),
        f"{encoder}.relative_attention_bias_layer.bias_values.weight": (
            2 * a.max_distance,
            a.n_head,
        ),
    }
    for i, n_in, kernel in ((0, 1, 3), (2, 1, 3), (3, a.n_conv, 1), (5, 1, 3), (6, a.n_conv, 1)):
        shapes |= linear(f"{encoder}.embed.conv.{i}", a.n_conv, n_in, kernel, kernel)
    shapes |= linear(f"{encoder}.embed.out", a.n_embd, a.n_conv * N_MELS // 8)
    for i in range(a.n_layer):
        shapes |= audio_block_shapes(f"{encoder}.encoders.{i}", a)
    for which in ("speech", "vision"):
        projector = f"{AUDIO}audio_projection.{which}"
        shapes |= linear(f"{projector}.0", n_embd_out, a.n_embd)
        shapes |= linear(f"{projector}.2", n_embd_out, n_embd_out)
    return shapes


def audio_block_shapes(block: str, a: AudioSizes) -> Shapes:
    n, conv = a.n_embd, f"{block}.conv"
    shapes = (
        layer_norm(f"{block}.layer_norm_att", n)
        | layer_norm(f"{block}.layer_norm", n)
        | layer_norm(f"{conv}.layer_norm", n)
        | {f"{conv}.glu.b1": (1, n, 1), f"{conv}.glu.b2": (1, n, 1)}
        | linear(f"{conv}.glu.ext_pw_conv_1d", 2 * n, n, 1)
        | linear(f"{conv}.dw_sep_conv_1d.dw_conv", n, 1, 3)
        | linear(f"{conv}.dw_sep_conv_1d.pw_conv", n, n, 1)
        | linear(f"{conv}.ext_pw_conv_1d", n, n, 1)
    )
    for projection in ("linear_q", "linear_k", "linear_v", "linear_out"):
        shapes |= linear(f"{block}.self_attn.{projection}", n, n)
    for half in ("feed_forward_in", "feed_forward_out"):
        shapes |= layer_norm(f"{block}.{half}.layer_norm", n)
        shapes |= linear(f"{block}.{half}.net.0.linear", 2 * a.n_ff, n)
        shapes |= linear(f"{block}.{half}.net.2", n, a.n_ff)
    return shapes
