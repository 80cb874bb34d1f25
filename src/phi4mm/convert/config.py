"""A checkpoint's configuration, in either layout, as frozen hyper-parameters.

In: config.json, the processor's file and generation_config.json.  Out: ``ModelConfig``.  Whatever
the graphs do not compute (another activation, another order of crops) is refused here, by field and
value.  Source: docs/model.md, "Configuration" and "Decoder".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from phi4mm.convert.checkpoint import (
    ADAPTERS,
    MICROSOFT,
    TRANSFORMERS,
    Checkpoint,
    read_json,
    read_optional_json,
)
from phi4mm.convert.fields import Fields
from phi4mm.convert.lora import LoraConfig, read_lora_config
from phi4mm.errors import ModelFileError
from phi4mm.modality import Adapter
from phi4mm.modelfile.hparams import AudioHParams, DecoderHParams, MelHParams, VisionHParams

# Fixed in the reference's code, absent from its configuration (docs/model.md, "Configuration",
# "Vision" and "Audio").
MEL = MelHParams(
    sample_rates=(16000, 8000),
    window_lengths=(400, 200),
    hop_lengths=(160, 80),
    fft_sizes=(512, 256),
    preemphasis=0.97,
    scale=32768.0,
    max_hz=7690.0,
    floor=1.0,
)
CROP_SIZE = 448
POOL = 2
PIXEL_MEAN = PIXEL_STD = (0.5, 0.5, 0.5)
VISION_EPS = 1e-6
AUDIO_EPS = 1e-5
AUDIO_CHUNK_SIZE = 500
SIGLIP_SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": CROP_SIZE,
    "patch_size": 14,
}

# field -> the values the graphs compute; a field that is absent is the reference's own default
_ANY_FALSE = (False, None)
_EXPECTED_BOTH: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "tie_word_embeddings": (True,),
    "attention_bias": _ANY_FALSE,
    "mlp_bias": _ANY_FALSE,
    "lm_head_bias": _ANY_FALSE,
    "quantization_config": (None,),
    "rope_scaling.attention_factor": (None,),
    "rope_parameters.attention_factor": (None,),
    "rope_scaling.type": ("longrope",),
    "rope_scaling.rope_type": ("longrope",),
    "rope_parameters.rope_type": ("longrope",),
}
_IMAGE_EMBD = "embd_layer.image_embd_layer"
_AUDIO_EMBD = "embd_layer.audio_embd_layer"
_CASCADES = "audio_processor.config"
_EXPECTED: dict[str, dict[str, tuple[object, ...]]] = {
    MICROSOFT.model_type: {
        "embd_layer.embedding_cls": ("image_audio",),
        f"{_IMAGE_EMBD}.embedding_cls": ("tune_image",),
        f"{_IMAGE_EMBD}.hd_transform_order": ("sub_glb",),
        f"{_IMAGE_EMBD}.image_token_compression_cls": ("avg_pool_2d",),
        f"{_IMAGE_EMBD}.projection_cls": ("mlp",),
        f"{_IMAGE_EMBD}.use_hd_transform": (True,),
        f"{_IMAGE_EMBD}.with_learnable_separator": (True,),
        f"{_AUDIO_EMBD}.embedding_cls": ("audio",),
        f"{_AUDIO_EMBD}.projection_cls": ("mlp",),
        f"{_AUDIO_EMBD}.downsample_rate": (1,),
        f"{_AUDIO_EMBD}.use_conv_downsample": _ANY_FALSE,
        f"{_AUDIO_EMBD}.use_qformer": _ANY_FALSE,
        "audio_processor.name": ("cascades",),
        f"{_CASCADES}.activation": ("swish",),
        f"{_CASCADES}.conv_activation": ("swish",),
        f"{_CASCADES}.conv_glu_type": ("swish",),
        f"{_CASCADES}.batch_norm": _ANY_FALSE,
        f"{_CASCADES}.bias_in_glu": (True,),
        f"{_CASCADES}.causal": (True,),
        f"{_CASCADES}.chunk_size": (-1,),
        f"{_CASCADES}.depthwise_multiplier": (1,),
        f"{_CASCADES}.ext_pw_kernel_size": (1,),
        f"{_CASCADES}.input_layer": ("nemo_conv",),
        f"{_CASCADES}.relative_attention_bias_args.type": ("t5",),
        f"{_CASCADES}.time_reduction": (8,),
    },
    TRANSFORMERS.model_type: {
        "vision_config.hidden_act": ("gelu_pytorch_tanh",),
        "vision_config.num_channels": (3,),
        "vision_config.feature_layer": (-2,),
        "audio_config.activation": ("swish",),
        "audio_config.conv_activation": ("swish",),
        "audio_config.conv_glu_type": ("swish",),
        "audio_config.nemo_activation": ("relu",),
        "audio_config.bias_symmetric": _ANY_FALSE,
        "audio_config.chunk_size": (-1,),
        "audio_config.depthwise_multiplier": (1,),
        "audio_config.downsample_rate": (1,),
        "audio_config.time_reduction": (8,),
    },
}
# fields of the hyper-parameters, and where they stand
_DECODER_FIELDS = {
    "n_vocab": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_head_kv": "num_key_value_heads",
    "n_ff": "intermediate_size",
    "n_ctx_train": "max_position_embeddings",
    "n_ctx_orig": "original_max_position_embeddings",
}
_AUDIO_FIELDS = {
    MICROSOFT.model_type: {
        "n_mel": f"{_CASCADES}.input_size",
        "n_embd": f"{_CASCADES}.attention_dim",
        "n_ff": f"{_CASCADES}.linear_units",
        "n_layer": f"{_CASCADES}.num_blocks",
        "n_head": f"{_CASCADES}.attention_heads",
        "subsampling": f"{_CASCADES}.time_reduction",
        "conv_kernel_size": f"{_CASCADES}.kernel_size",
        "bias_distance": f"{_CASCADES}.relative_attention_bias_args.t5_bias_max_distance",
        "n_conv": f"{_CASCADES}.nemo_conv_settings.conv_channels",
        "width_after_pointwise": f"{_CASCADES}.ext_pw_out_channel",
        "width_after_depthwise": f"{_CASCADES}.depthwise_seperable_out_channel",
    },
    TRANSFORMERS.model_type: {
        "n_mel": "audio_config.input_size",
        "n_embd": "audio_config.hidden_size",
        "n_ff": "audio_config.intermediate_size",
        "n_layer": "audio_config.num_blocks",
        "n_head": "audio_config.num_attention_heads",
        "subsampling": "audio_config.time_reduction",
        "conv_kernel_size": "audio_config.kernel_size",
        "bias_distance": "audio_config.bias_max_distance",
        "n_conv": "audio_config.nemo_conv_channels",
        "width_after_pointwise": "audio_config.ext_pw_out_channel",
        "width_after_depthwise": "audio_config.depthwise_separable_out_channel",
    },
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the configuration files say, checked.

    Attributes:
        decoder: hyper-parameters of the decoder, its token ids and identity not yet filled in.
        vision: of the vision encoder.
        audio: of the audio encoder.
        adapters: rank and alpha of the two adapters.
        rope_long: RoPE factors beyond the original context, ``n_rot / 2`` of them.
        rope_short: RoPE factors within it.
        n_vision_stored: layers of the vision encoder in the checkpoint, those after the feature
            layer included.
        stop_ids: token ids that end generation, from every file that names them.
    """

    decoder: DecoderHParams
    vision: VisionHParams
    audio: AudioHParams
    adapters: dict[Adapter, LoraConfig]
    rope_long: list[float]
    rope_short: list[float]
    n_vision_stored: int
    stop_ids: frozenset[int]


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """Read and check the configuration of an opened checkpoint.

    Raises:
        ModelFileError: a field is missing or has a value the graphs do not compute.
    """
    fields = Fields(checkpoint.path / "config.json", checkpoint.config)
    for field, allowed in _EXPECTED_BOTH.items():
        fields.expect(field, allowed)
    for field, allowed in _EXPECTED[checkpoint.layout.model_type].items():
        fields.expect(field, allowed)
    decoder = _decoder(fields)
    tower = _vision_tower(fields)
    return ModelConfig(
        decoder=decoder,
        vision=_vision(fields, tower, _max_crops(checkpoint), decoder.n_embd),
        audio=_audio(fields, _AUDIO_FIELDS[checkpoint.layout.model_type], decoder.n_embd),
        adapters={name: _adapter(checkpoint, fields, name) for name in ADAPTERS},
        rope_long=_rope_factors(fields, "long_factor", decoder.n_rot // 2),
        rope_short=_rope_factors(fields, "short_factor", decoder.n_rot // 2),
        n_vision_stored=tower["num_hidden_layers"],
        stop_ids=_stop_ids(checkpoint, fields),
    )


def rope_attn_factor(n_ctx_train: int, n_ctx_orig: int) -> float:
    """The factor of cos and sin, the same in both RoPE regimes.

    Source: docs/model.md, "Decoder": sqrt(1 + ln(max / original) / ln(original)).
    """
    scale = n_ctx_train / n_ctx_orig
    return math.sqrt(1 + math.log(scale) / math.log(n_ctx_orig)) if scale > 1 else 1.0


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in the errors of a constructor, which does not know it."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None


def _decoder(fields: Fields) -> DecoderHParams:
    n = {name: fields.integer(field) for name, field in _DECODER_FIELDS.items()}
    if n["n_embd"] % n["n_head"]:
        wanted = f"a divisor of hidden_size, {n['n_embd']}"
        raise fields.error("num_attention_heads", n["n_head"], wanted)
    fields.integer("original_max_position_embeddings", low=2)  # its logarithm is a divisor
    if fields.has("sliding_window"):  # one shorter than the context would have an effect
        fields.integer("sliding_window", low=n["n_ctx_train"])
    n_rot = _n_rot(fields, n["n_embd"] // n["n_head"])
    rms_eps = fields.number("rms_norm_eps")
    freq_base = fields.number(fields.either("rope_parameters.rope_theta", "rope_theta"))
    attn_factor = rope_attn_factor(n["n_ctx_train"], n["n_ctx_orig"])
    with _named(fields.path):
        return DecoderHParams(
            n_vocab=n["n_vocab"],
            n_embd=n["n_embd"],
            n_layer=n["n_layer"],
            n_head=n["n_head"],
            n_head_kv=n["n_head_kv"],
            n_ff=n["n_ff"],
            n_ctx_train=n["n_ctx_train"],
            n_ctx_orig=n["n_ctx_orig"],
            n_rot=n_rot,
            rms_eps=rms_eps,
            rope_freq_base=freq_base,
            rope_attn_factor=attn_factor,
        )


def _n_rot(fields: Fields, n_embd_head: int) -> int:
    field = fields.either("rope_parameters.partial_rotary_factor", "partial_rotary_factor")
    factor = fields.number(field)
    n_rot = int(n_embd_head * factor)
    if not 2 <= n_rot <= n_embd_head or n_rot % 2:
        raise fields.error(field, factor, f"one that makes 2 to {n_embd_head} dimensions, even")
    return n_rot


def _rope_factors(fields: Fields, name: str, n: int) -> list[float]:
    return fields.numbers(fields.either(f"rope_parameters.{name}", f"rope_scaling.{name}"), n)


def _vision_tower(fields: Fields) -> dict[str, int]:
    """Geometry of the vision encoder: the reference fixes it in code, test models give it."""
    for section in ("vision_config", "tiny_vision_tower"):
        if fields.has(section):
            return {name: fields.integer(f"{section}.{name}") for name in SIGLIP_SO400M}
    return SIGLIP_SO400M


def _vision(
    fields: Fields, tower: dict[str, int], max_crops: int, n_embd_out: int
) -> VisionHParams:
    for field in ("vision_config.crop_size", f"{_IMAGE_EMBD}.crop_size"):
        fields.expect(field, (tower["image_size"],))
    fields.expect("vision_config.layer_norm_eps", (VISION_EPS,))
    if tower["num_hidden_layers"] < 2:
        raise ModelFileError(f"{fields.path}: the vision encoder needs 2 layers or more")
    with _named(fields.path):
        return VisionHParams(
            image_size=tower["image_size"],
            patch_size=tower["patch_size"],
            n_embd=tower["hidden_size"],
            n_ff=tower["intermediate_size"],
            n_layer=tower["num_hidden_layers"] - 1,  # feature layer -2: the last is never run
            n_head=tower["num_attention_heads"],
            n_embd_out=n_embd_out,
            eps=VISION_EPS,
            image_mean=PIXEL_MEAN,
            image_std=PIXEL_STD,
            max_crops=max_crops,
            pool=POOL,
        )


def _audio(fields: Fields, where: dict[str, str], n_embd_out: int) -> AudioHParams:
    n = {name: fields.integer(field) for name, field in where.items()}
    for name in ("width_after_pointwise", "width_after_depthwise"):
        fields.expect(where[name], (n["n_embd"],))
        del n[name]
    fields.expect(f"{_AUDIO_EMBD}.compression_rate", (n["subsampling"],))
    with _named(fields.path):
        return AudioHParams(
            **n, n_embd_out=n_embd_out, eps=AUDIO_EPS, chunk_size=AUDIO_CHUNK_SIZE, mel=MEL
        )


def _max_crops(checkpoint: Checkpoint) -> int:
    """``dynamic_hd`` of the image processor: processor_config.json where there is one."""
    nested = checkpoint.path / "processor_config.json"
    fields = Fields(nested, read_optional_json(nested))
    if fields.has("image_processor"):
        fields.expect("image_processor.image_mean", (list(PIXEL_MEAN),))
        fields.expect("image_processor.image_std", (list(PIXEL_STD),))
        return fields.integer("image_processor.dynamic_hd", high=4096)
    flat = checkpoint.path / "preprocessor_config.json"
    return Fields(flat, read_json(flat)).integer("dynamic_hd", high=4096)


def _adapter(checkpoint: Checkpoint, fields: Fields, name: Adapter) -> LoraConfig:
    """Rank and alpha: config.json where it names them, else the adapter's own folder."""
    section = f"{name}_lora"
    if fields.has(section):
        return LoraConfig(fields.integer(f"{section}.r"), fields.number(f"{section}.lora_alpha"))
    return read_lora_config(checkpoint.path / f"{name}-lora")


def _stop_ids(checkpoint: Checkpoint, fields: Fields) -> frozenset[int]:
    path = checkpoint.path / "generation_config.json"
    generation = Fields(path, read_optional_json(path))
    found = [f.ids("eos_token_id") for f in (fields, generation) if f.has("eos_token_id")]
    return frozenset(token for ids in found for token in ids)
