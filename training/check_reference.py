"""Compares this package's model with the transformers class (eager), on weights stirred at random.

Not part of training: run it after a change of decoder.py, vision.py or audio.py. Needs
transformers, peft and torchvision. Largest logit differences are printed; 1e-4 is the limit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .audio import PROJECTIONS
from .frontend import log_mel, picture_input
from .geometry import Geometry
from .model import SampleModel

LIMIT = 1e-4
# Where the transformers class has other names than the original checkpoint.
RENAMED = [
    (r"\.net\.0\.linear\.", ".gate_up_proj."),
    (r"(feed_forward_(?:in|out))\.net\.2\.", r"\1.down_proj."),
    (r"\.linear_([qkv])\.", r".\1_proj."),
    (r"\.linear_out\.", ".o_proj."),
    (r"img_projection\.0", "img_projection_up"),
    (r"img_projection\.2", "img_projection_down"),
    (r"glb_GN", "global_img_feature_extensor"),
    (r"sub_GN", "sub_img_feature_extensor"),
    (r"audio_projection\.speech\.0", "up_proj_for_speech"),
    (r"audio_projection\.speech\.2", "down_proj_for_speech"),
    (r"audio_projection\.vision\.0", "up_proj_for_vision_speech"),
    (r"audio_projection\.vision\.2", "down_proj_for_vision_speech"),
]


# PyPI's torchvision needs two operators declared, and kept, to import beside a CPU torch.
_TORCHVISION = torch.library.Library("torchvision", "DEF")


def _import_transformers() -> Any:
    for name in ("nms(Tensor dets, Tensor scores", "qnms(Tensor dets, Tensor scores"):
        _TORCHVISION.define(f"{name}, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
    import transformers

    return transformers


def reference_config(g: Geometry, t: Any) -> Any:
    """The same sizes as a transformers configuration."""
    d, v, a = g.decoder, g.vision, g.audio
    vision = t.Phi4MultimodalVisionConfig(
        hidden_size=v.n_embd,
        intermediate_size=v.n_ff,
        num_hidden_layers=v.n_layer,
        num_attention_heads=v.n_head,
        image_size=v.crop,
        crop_size=v.crop,
        patch_size=v.patch,
        feature_layer=-2,
    )
    audio = t.Phi4MultimodalAudioConfig(
        hidden_size=a.n_embd,
        intermediate_size=a.n_ff,
        num_blocks=a.n_layer,
        num_attention_heads=a.n_head,
        ext_pw_out_channel=a.n_embd,
        depthwise_separable_out_channel=a.n_embd,
        nemo_conv_channels=a.n_conv,
        bias_max_distance=a.bias_distance,
    )
    rope = {
        "rope_type": "longrope",
        "rope_theta": d.rope_theta,
        "partial_rotary_factor": d.partial_rotary,
        "short_factor": d.short_factor,
        "long_factor": d.long_factor,
    }
    return t.Phi4MultimodalConfig(
        vocab_size=d.n_vocab,
        hidden_size=d.n_embd,
        intermediate_size=d.n_ff,
        num_hidden_layers=d.n_layer,
        num_attention_heads=d.n_head,
        num_key_value_heads=d.n_head_kv,
        max_position_embeddings=d.n_ctx,
        original_max_position_embeddings=d.n_ctx_original,
        rope_parameters=rope,
        tie_word_embeddings=True,
        rms_norm_eps=d.eps,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        vision_config=vision,
        audio_config=audio,
    )


def merged(model: SampleModel, adapter: str | None) -> dict[str, Tensor]:
    """Weights under the transformers names, with one adapter added into the base."""
    state = model.state_dict()
    out = {}
    for name, weight in state.items():
        if "lora_" in name:
            continue
        if ".base_layer" in name and adapter:
            a = state[name.replace("base_layer", f"lora_A.{adapter}")]
            b = state[name.replace("base_layer", f"lora_B.{adapter}")]
            weight = weight + model.g.adapter.scale * b @ a
        name = name.replace(".base_layer", "")
        for pattern, other in RENAMED:
            name = re.sub(pattern, other, name)
        out[name] = weight
    return out


def stirred(g: Geometry) -> SampleModel:
    """A model whose every weight matters."""
    torch.manual_seed(0)
    model = SampleModel(g)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if "invstd" in name or ("norm" in name and name.endswith("weight")):
                p.copy_(0.8 + 0.2 * torch.rand(p.shape))
            elif "lora_" in name:
                p.copy_(0.3 * torch.randn(p.shape) / np.sqrt(p.shape[1]))
            elif p.dim() < 2 or "bias" in name or "GN" in name or "position" in name:
                p.copy_(0.3 * torch.randn(p.shape))
            else:
                p.copy_(torch.randn(p.shape) / np.sqrt(p[0].numel()))
        model.table.mul_(1.2)
    return model.eval()


def _image(model: SampleModel, reference: Any, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Soft tokens of one picture by both; attention output of masked patches is zero in both."""
    g, embed = model.g.vision, reference.model.embed_tokens_extend.image_embed
    noise = np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), np.uint8)
    pixels, mask, canvas = picture_input(Image.fromarray(noise), g.crop, g.patch, g.max_crops)
    grid = (canvas.rows, canvas.cols)
    ours = model.image(pixels[None], mask[None][0], grid)[0]
    keep = mask.flatten(1).float()[..., None]
    hooks = [
        layer.self_attn.out_proj.register_forward_pre_hook(lambda _, x: (x[0] * keep,))
        for layer in embed.img_processor.encoder.layers
    ]
    ids = torch.full((1, len(ours)), reference.config.vision_config.image_token_id)
    sizes = torch.tensor([[canvas.rows * g.crop, canvas.cols * g.crop]])
    blank = torch.zeros(1, len(ours), model.g.decoder.n_embd)
    theirs = embed(ids, blank, pixels[None], sizes, mask[None].float())[0]
    for hook in hooks:
        hook.remove()
    return ours, theirs


def _audio(
    model: SampleModel, reference: Any, seconds: float, projection: str
) -> tuple[Tensor, Tensor]:
    embed = reference.model.embed_tokens_extend.audio_embed
    wave = 0.3 * torch.randn(1, int(16000 * seconds), generator=torch.Generator().manual_seed(2))
    mel = log_mel(wave)
    ours = model.audio(mel, projection)[0]
    ids = torch.full((1, len(ours)), reference.config.audio_config.audio_token_id)
    blank = torch.zeros(1, len(ours), model.g.decoder.n_embd)
    sizes = torch.tensor([len(ours)])
    theirs = embed(ids, blank, mel, audio_embed_sizes=sizes, audio_projection_mode=projection)[0]
    return ours, theirs


@torch.no_grad()
def differences() -> Iterator[tuple[str, float]]:
    """(case, largest difference)."""
    g, t = Geometry(), _import_transformers()
    model, settings = stirred(g), reference_config(Geometry(), t)
    make = t.Phi4MultimodalForCausalLM._from_config
    reference = make(settings, attn_implementation="eager").float().eval()
    for adapter in (None, "vision", "speech"):
        result = reference.load_state_dict(merged(model, adapter), strict=False)
        assert not result.unexpected_keys, result.unexpected_keys
        assert set(result.missing_keys) <= {"lm_head.weight"}, result.missing_keys
        for length in (40, 1100):
            ids = torch.randint(0, g.decoder.n_vocab, (1, length))
            theirs = reference(input_ids=ids, use_cache=False).logits
            ours = model.logits(model.table[ids], adapter)
            yield f"text {length}, adapter {adapter}", (ours - theirs).abs().max().item()
    for size in ((168, 168), (336, 168), (300, 220), (120, 77), (900, 700)):
        ours, theirs = _image(model, reference, size)
        yield f"picture {size}", (ours - theirs).abs().max().item()
    for seconds in (1.0, 3.3, 45.0):
        for projection in PROJECTIONS:
            ours, theirs = _audio(model, reference, seconds, projection)
            yield f"clip {seconds} s, {projection}", (ours - theirs).abs().max().item()


def main() -> None:
    """Print every case; exit 1 where one is above the limit."""
    worst = 0.0
    for case, difference in differences():
        print(f"{case:32s} {difference:.1e}", flush=True)
        worst = max(worst, difference)
    sys.exit(worst > LIMIT)


if __name__ == "__main__":
    main()
