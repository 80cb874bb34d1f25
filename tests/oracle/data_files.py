"""Writes ``data/NAME``: the configurations and the tokenizer of the tiny models.

    cd tests && python -m oracle.data_files

Needs torch, transformers and tokenizers; run by hand, never by the tests.
"""

from __future__ import annotations

from pathlib import Path

from oracle import torchvision_shim  # noqa: F401  (before transformers)

# isort: split
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Phi4MultimodalAudioConfig,
    Phi4MultimodalConfig,
    Phi4MultimodalFeatureExtractor,
    Phi4MultimodalImageProcessor,
    Phi4MultimodalProcessor,
    Phi4MultimodalVisionConfig,
    PreTrainedTokenizerFast,
)

from oracle.checkpoint import DATA, write_json
from oracle.sizes import (
    AUDIO_TOKEN,
    CROP_SIZE,
    IMAGE_TOKEN,
    N_MELS,
    PARTIAL_ROTARY,
    PATCH_SIZE,
    SIZES,
    SPECIAL_TOKENS,
    AudioSizes,
    Sizes,
)

END_OF_TEXT, END = "<|endoftext|>", "<|end|>"
# The pre-tokenizer of the real vocabulary (o200k).
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message "
    "and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + "
    "'<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)
CORPUS = """Transcribe the audio clip into text. What is shown in this image? Describe the picture,
please. The quick brown fox jumps over 13 lazy dogs; 2024 was 100% fun!

Hello world. Bonjour le monde. Guten Tag. You are helpful. And then? Once upon a time there was
a small model that could read, look and listen; nobody knew how many layers it had, though some
people guessed. When morning came, the birds began to sing above the roofs of the village, and a
grey cat walked slowly between the gardens. "Where are you going?" asked the old man by the well.
"I am looking for yesterday's moon," said the cat, "because it left without saying goodbye."
Eine kleine Katze suchte den Mond. Une petite souris regardait la lune. Ella busca la luna.
Numbers such as 7, 42, 365, 1000, 4096 and 131072 matter; so do signs: (a + b) * c = d / e - f.
def add(first, second):
    return first + second

The harbour was quiet that evening. Fishing boats rocked gently at their moorings while the last
light faded over the water, and somewhere a radio played an old song about summer, distance and
longing. Engineers measure twice before cutting; musicians listen twice before answering.
"""


def main() -> None:
    for name, sizes in SIZES.items():
        folder = DATA / name
        tokenizer = train_tokenizer(sizes)
        write_tokenizer(tokenizer, folder)
        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
        write_hf_files(sizes, ids, tokenizer, folder / "hf")
        write_ms_files(sizes, ids, folder / "ms")


def train_tokenizer(sizes: Sizes) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(O200K), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=sizes.n_bpe,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([CORPUS], trainer)
    if bpe.get_vocab_size() != sizes.n_bpe:
        raise ValueError(f"the corpus gives {bpe.get_vocab_size()} tokens, not {sizes.n_bpe}")
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END_OF_TEXT),
        extra_special_tokens={"image_token": IMAGE_TOKEN, "audio_token": AUDIO_TOKEN},
    )


def write_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    tokenizer.chat_template, tokenizer.padding_side = CHAT_TEMPLATE, "left"
    tokenizer.save_pretrained(folder)


def rope_factors(sizes: Sizes) -> dict[str, list[float]]:
    n = int(sizes.head_dim * PARTIAL_ROTARY) // 2
    ends = {"short_factor": 1.3, "long_factor": 20.0}
    return {k: [round(float(x), 4) for x in np.linspace(1.0, end, n)] for k, end in ends.items()}


# ---- the layout of transformers, saved by transformers itself


def write_hf_files(
    sizes: Sizes, ids: dict[str, int], tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    hf_config(sizes, ids).save_pretrained(folder)
    processor = Phi4MultimodalProcessor(
        Phi4MultimodalImageProcessor(), Phi4MultimodalFeatureExtractor(), tokenizer
    )
    write_json(folder / "processor_config.json", processor.to_dict())


def hf_config(s: Sizes, ids: dict[str, int]) -> Phi4MultimodalConfig:
    return Phi4MultimodalConfig(
        vocab_size=s.n_vocab,
        hidden_size=s.n_embd,
        intermediate_size=s.n_ff,
        num_hidden_layers=s.n_layer,
        num_attention_heads=s.n_head,
        num_key_value_heads=s.n_head_kv,
        max_position_embeddings=s.n_ctx_max,
        original_max_position_embeddings=s.n_ctx_orig,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": PARTIAL_ROTARY,
            **rope_factors(s),
        },
        sliding_window=262144,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=ids[END_OF_TEXT],
        eos_token_id=[ids[END_OF_TEXT], ids[END]],
        pad_token_id=ids[END_OF_TEXT],
        vision_config=Phi4MultimodalVisionConfig(
            hidden_size=s.vision.n_embd,
            intermediate_size=s.vision.n_ff,
            num_hidden_layers=s.vision.n_layer,
            num_attention_heads=s.vision.n_head,
            image_size=CROP_SIZE,
            patch_size=PATCH_SIZE,
            crop_size=CROP_SIZE,
            image_token_id=ids[IMAGE_TOKEN],
            feature_layer=-2,
        ),
        audio_config=Phi4MultimodalAudioConfig(
            hidden_size=s.audio.n_embd,
            intermediate_size=s.audio.n_ff,
            num_blocks=s.audio.n_layer,
            num_attention_heads=s.audio.n_head,
            ext_pw_out_channel=s.audio.n_embd,
            depthwise_separable_out_channel=s.audio.n_embd,
            nemo_conv_channels=s.audio.n_conv,
            bias_max_distance=s.audio.max_distance,
            audio_token_id=ids[AUDIO_TOKEN],
        ),
    )


# ---- Microsoft's layout, written out here


def write_ms_files(sizes: Sizes, ids: dict[str, int], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", ms_config(sizes, ids))
    write_json(
        folder / "preprocessor_config.json",
        {
            "processor_class": "Phi4MMProcessor",
            "image_processor_type": "Phi4MMImageProcessor",
            "feature_extractor_type": "Phi4MMAudioFeatureExtractor",
            "audio_compression_rate": 8,
            "audio_downsample_rate": 1,
            "audio_feat_stride": 1,
            "dynamic_hd": 36,
        },
    )
    end = ids[END_OF_TEXT]
    stops = [ids[END], end]
    generation = {"bos_token_id": end, "eos_token_id": stops, "pad_token_id": end}
    write_json(folder / "generation_config.json", generation)


def ms_config(s: Sizes, ids: dict[str, int]) -> dict[str, object]:
    """The real file's keys, and two that it lacks.

    The real vision geometry is fixed in code, and special ids stand in ``tokenizer.json`` alone.
    """
    end = ids[END_OF_TEXT]
    return {
        "architectures": ["Phi4MMForCausalLM"],
        "model_type": "phi4mm",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_processor": {"name": "cascades", "config": ms_audio_config(s.audio)},
        "embd_layer": MS_EMBEDDING_CONFIG,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "hidden_act": "silu",
        "hidden_size": s.n_embd,
        "intermediate_size": s.n_ff,
        "lm_head_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": s.n_ctx_max,
        "original_max_position_embeddings": s.n_ctx_orig,
        "num_attention_heads": s.n_head,
        "num_hidden_layers": s.n_layer,
        "num_key_value_heads": s.n_head_kv,
        "partial_rotary_factor": PARTIAL_ROTARY,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {"type": "longrope", **rope_factors(s)},
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": s.n_vocab,
        "vision_lora": {
            "r": s.vision_lora.rank,
            "lora_alpha": s.vision_lora.alpha,
            "dp": 0.0,
            "layer": r"layers.*((self_attn\.(qkv_proj|o_proj))|(mlp\.(gate_up|down)_proj))",
        },
        "speech_lora": {
            "r": s.speech_lora.rank,
            "lora_alpha": s.speech_lora.alpha,
            "dp": 0.01,
            "layer": r"((layers.*self_attn\.(qkv|o)_proj)|(layers.*mlp\.(gate_up|down)_proj))",
        },
        "tiny_vision_tower": {
            "hidden_size": s.vision.n_embd,
            "intermediate_size": s.vision.n_ff,
            "num_hidden_layers": s.vision.n_layer,
            "num_attention_heads": s.vision.n_head,
            "image_size": CROP_SIZE,
            "patch_size": PATCH_SIZE,
        },
        "tiny_special_ids": ids,
    }


MS_EMBEDDING_CONFIG = {
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
        "crop_size": CROP_SIZE,
        "embedding_cls": "tune_image",
        "hd_transform_order": "sub_glb",
        "image_token_compression_cls": "avg_pool_2d",
        "projection_cls": "mlp",
        "use_hd_transform": True,
        "with_learnable_separator": True,
    },
}


def ms_audio_config(a: AudioSizes) -> dict[str, object]:
    return {
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
        "encoder_embedding_config": {"input_size": N_MELS},
        "ext_pw_kernel_size": 1,
        "ext_pw_out_channel": a.n_embd,
        "input_layer": "nemo_conv",
        "input_size": N_MELS,
        "kernel_size": 3,
        "left_chunk": 18,
        "linear_units": a.n_ff,
        "nemo_conv_settings": {"conv_channels": a.n_conv},
        "num_blocks": a.n_layer,
        "relative_attention_bias_args": {"t5_bias_max_distance": a.max_distance, "type": "t5"},
        "time_reduction": 8,
    }


if __name__ == "__main__":
    main()
