"""Writes the checkpoint in the original layout: python -m training.export --run-dir DIR --out DIR.

Stages that have not run yet keep their initial weights, so any state can be converted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .geometry import Geometry
from .plan import STAGES, assemble
from .tokenizer import END, SPECIALS, Tokenizer

N_SHARDS = 3
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + "
    "'<|/tool|>' + '<|end|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)
LORA_LAYERS = {
    "vision": r"layers.*((self_attn\.(qkv_proj|o_proj))|(mlp\.(gate_up|down)_proj))",
    "speech": r"((layers.*self_attn\.(qkv|o)_proj)|(layers.*mlp\.(gate_up|down)_proj))",
}


def audio_config(g: Geometry) -> dict[str, Any]:
    """The audio_processor entry."""
    a = g.audio
    config = {
        "activation": "swish",
        "attention_dim": a.n_embd,
        "attention_heads": a.n_head,
        "batch_norm": False,
        "bias_in_glu": True,
        "causal": True,
        "chunk_size": -1,
        "cnn_layer_norm": True,
        "conv_activation": "swish",
        "conv_glu_type": "swish",
        "depthwise_multiplier": 1,
        "depthwise_seperable_out_channel": a.n_embd,
        "dropout_rate": 0.0,
        "encoder_embedding_config": {"input_size": a.n_mel},
        "ext_pw_kernel_size": 1,
        "ext_pw_out_channel": a.n_embd,
        "input_layer": "nemo_conv",
        "input_size": a.n_mel,
        "kernel_size": a.kernel,
        "left_chunk": 18,
        "linear_units": a.n_ff,
        "nemo_conv_settings": {"conv_channels": a.n_conv},
        "num_blocks": a.n_layer,
        "relative_attention_bias_args": {"t5_bias_max_distance": a.bias_distance, "type": "t5"},
        "time_reduction": 8,
    }
    return {"name": "cascades", "config": config}


def embedding_config(g: Geometry) -> dict[str, Any]:
    """The embd_layer entry."""
    return {
        "embedding_cls": "image_audio",
        "audio_embd_layer": {
            "compression_rate": 8,
            "downsample_rate": 1,
            "embedding_cls": "audio",
            "projection_cls": "mlp",
            "use_conv_downsample": False,
            "use_qformer": False,
        },
        "image_embd_layer": {
            "crop_size": g.vision.crop,
            "embedding_cls": "tune_image",
            "hd_transform_order": "sub_glb",
            "image_token_compression_cls": "avg_pool_2d",
            "projection_cls": "mlp",
            "use_hd_transform": True,
            "with_learnable_separator": True,
        },
    }


def decoder_config(g: Geometry) -> dict[str, Any]:
    """The text decoder's fields."""
    d = g.decoder
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": d.n_embd,
        "intermediate_size": d.n_ff,
        "lm_head_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": d.n_ctx,
        "original_max_position_embeddings": d.n_ctx_original,
        "num_attention_heads": d.n_head,
        "num_hidden_layers": d.n_layer,
        "num_key_value_heads": d.n_head_kv,
        "partial_rotary_factor": d.partial_rotary,
        "rms_norm_eps": d.eps,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": d.short_factor,
            "long_factor": d.long_factor,
        },
        "rope_theta": d.rope_theta,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": d.n_vocab,
    }


def config(g: Geometry, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json. Its last key stands for the vision geometry that the original fixes in code."""
    v, stop = g.vision, tokenizer.specials["<|endoftext|>"]
    adapter = {"r": g.adapter.rank, "lora_alpha": g.adapter.alpha, "dp": 0.0}
    return {
        "architectures": ["Phi4MMForCausalLM"],
        "model_type": "phi4mm",
        **decoder_config(g),
        "audio_processor": audio_config(g),
        "embd_layer": embedding_config(g),
        "bos_token_id": stop,
        "eos_token_id": stop,
        "pad_token_id": stop,
        "torch_dtype": "float16",
        **{f"{name}_lora": {**adapter, "layer": layers} for name, layers in LORA_LAYERS.items()},
        "tiny_vision_tower": {
            "hidden_size": v.n_embd,
            "intermediate_size": v.n_ff,
            "num_hidden_layers": v.n_layer,
            "num_attention_heads": v.n_head,
            "image_size": v.crop,
            "patch_size": v.patch,
        },
    }


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer_config.json."""
    stop = SPECIALS[0]
    added = {
        str(index): {"content": name, "special": True, "normalized": False}
        for name, index in tokenizer.specials.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), stop),
        "chat_template": CHAT_TEMPLATE,
        "padding_side": "left",
    }


def save_shards(weights: dict[str, Tensor], out: Path) -> None:
    """Several safetensors files and their index."""
    names, index = sorted(weights), {}
    for number in range(N_SHARDS):
        file = f"model-{number + 1:05d}-of-{N_SHARDS:05d}.safetensors"
        part = {name: weights[name] for name in names[number::N_SHARDS]}
        save_file(part, str(out / file), metadata={"format": "pt"})
        index.update(dict.fromkeys(part, file))
    size = sum(t.numel() * t.element_size() for t in weights.values())
    dump(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))},
    )


def dump(path: Path, value: dict[str, Any]) -> None:
    """Indented JSON."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def export(run_dir: Path, out: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write everything below ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer, g = Tokenizer.load(), Geometry()
    model = assemble(run_dir, tokenizer, list(STAGES))
    save_shards({n: t.detach().to(dtype).contiguous() for n, t in model.state_dict().items()}, out)
    end, stop = tokenizer.specials[END], tokenizer.specials["<|endoftext|>"]
    dump(out / "config.json", config(g, tokenizer))
    dump(
        out / "generation_config.json",
        {"bos_token_id": stop, "eos_token_id": [end, stop], "pad_token_id": stop},
    )
    dump(
        out / "preprocessor_config.json",
        {
            "processor_class": "Phi4MMProcessor",
            "image_processor_type": "Phi4MMImageProcessor",
            "feature_extractor_type": "Phi4MMAudioFeatureExtractor",
            "audio_compression_rate": 8,
            "audio_downsample_rate": 1,
            "audio_feat_stride": 1,
            "dynamic_hd": g.vision.max_crops,
        },
    )
    tokenizer.fast.save(str(out / "tokenizer.json"))
    dump(out / "tokenizer_config.json", tokenizer_config(tokenizer))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--float32", action="store_true", help="default: float16")
    arguments = parser.parse_args()
    dtype = torch.float32 if arguments.float32 else torch.float16
    export(arguments.run_dir, arguments.out, dtype)


if __name__ == "__main__":
    main()
