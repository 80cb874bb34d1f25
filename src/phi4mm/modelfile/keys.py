"""Metadata keys of the GGUF files: the name, the value type and the meaning of each, once.

A :class:`Key` is the key's text, so it indexes metadata as any string does; it also carries the
type that the writer writes and the reader demands.  Names follow llama.cpp where it has one; what
it has no name for is under ``phi4mm.``.  docs/gguf.md is generated from this module.
"""

from __future__ import annotations

from typing import Final, Literal, cast

ValueType = Literal[
    "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bool", "str"
]
KeyType = Literal["u16", "u32", "f32", "bool", "str", "i32[]", "f32[]", "str[]"]


def type_name(type_: ValueType, is_array: bool) -> str:
    """A type as the documentation writes it, such as ``u32`` or ``str[]``."""
    return f"{type_}[]" if is_array else type_


class Key(str):
    """A metadata key: its text, plus the type of its value and what it means.

    Attributes:
        type: element type of the value.
        is_array: whether the value is an array of ``type``.
        meaning: one line for the documentation.
    """

    __slots__ = ("is_array", "meaning", "type")

    type: ValueType
    is_array: bool
    meaning: str

    def __new__(cls, name: str, type_: KeyType, meaning: str) -> Key:
        """Make a key from its name and a type such as ``u32`` or ``f32[]``."""
        key = super().__new__(cls, name)
        key.type = cast(ValueType, type_.removesuffix("[]"))
        key.is_array = type_.endswith("[]")
        key.meaning = meaning
        return key

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        """Arguments that make this key again, for copies and pickles."""
        return str(self), self.type_name, self.meaning

    @property
    def type_name(self) -> str:
        """Type as the documentation writes it, such as ``u32`` or ``str[]``."""
        return type_name(self.type, self.is_array)


FORMAT_VERSION: Final = 1
ARCH_DECODER: Final = "phi3"
ARCH_MMPROJ: Final = "clip"
TYPE_MODEL: Final = "model"
TYPE_MMPROJ: Final = "mmproj"
TYPE_ADAPTER: Final = "adapter"
ADAPTER_LORA: Final = "lora"
ALORA_TOKENS: Final = "adapter.alora.invocation_tokens"  # switches an adapter on; not supported
PROJECTOR: Final = "phi4mm"
ROPE_SCALING_LONGROPE: Final = "longrope"
TOKENIZER_MODEL: Final = "gpt2"
TOKENIZER_PRE: Final = "gpt-4o"


class General:
    """Keys every part has."""

    ARCHITECTURE: Final = Key("general.architecture", "str", "`phi3`, or `clip` for the mmproj")
    TYPE: Final = Key("general.type", "str", "`model`, `mmproj` or `adapter`: the role of the file")
    NAME: Final = Key("general.name", "str", "name of the model, for people")
    FILE_TYPE: Final = Key("general.file_type", "u32", "type of most matrices (llama.cpp's number)")
    QUANTIZATION_VERSION: Final = Key("general.quantization_version", "u32", "2")
    SPLIT_COUNT: Final = Key("split.count", "u16", "absent: a part is one file")
    ALIGNMENT: Final = Key("general.alignment", "u32", "alignment of tensor data; 32 if absent")


class Own:
    """Keys of this project that any part may have."""

    FORMAT_VERSION: Final = Key("phi4mm.format_version", "u32", "version of this format: 1")
    BUNDLE_ID: Final = Key(
        "phi4mm.bundle_id", "str", "32 hexadecimal digits: equal in all parts of one checkpoint"
    )


class Decoder:
    """Keys of the decoder file."""

    N_CTX_TRAIN: Final = Key("phi3.context_length", "u32", "largest number of positions")
    N_CTX_ORIG: Final = Key(
        "phi3.rope.scaling.original_context_length",
        "u32",
        "positions up to which the short RoPE factors hold",
    )
    ROPE_SCALING_TYPE: Final = Key("phi3.rope.scaling.type", "str", "`longrope`")
    ROPE_ATTN_FACTOR: Final = Key(
        "phi3.rope.scaling.attn_factor",
        "f32",
        "factor of cos and sin, sqrt(1 + ln(max / original) / ln(original))",
    )
    N_ROT: Final = Key("phi3.rope.dimension_count", "u32", "rotated dimensions of a head")
    ROPE_FREQ_BASE: Final = Key("phi3.rope.freq_base", "f32", "base of the RoPE frequencies")
    N_EMBD: Final = Key("phi3.embedding_length", "u32", "width of the hidden state")
    N_FF: Final = Key("phi3.feed_forward_length", "u32", "width of the feed-forward layer")
    N_LAYER: Final = Key("phi3.block_count", "u32", "number of layers")
    N_HEAD: Final = Key("phi3.attention.head_count", "u32", "query heads")
    N_HEAD_KV: Final = Key("phi3.attention.head_count_kv", "u32", "key and value heads")
    RMS_EPS: Final = Key("phi3.attention.layer_norm_rms_epsilon", "f32", "epsilon of RMSNorm")
    SLIDING_WINDOW: Final = Key(
        "phi3.attention.sliding_window", "u32", "0: every position sees all before it"
    )
    N_VOCAB: Final = Key("phi3.vocab_size", "u32", "rows of the token embedding")
    IMAGE_TOKEN_ID: Final = Key("phi4mm.image_token_id", "u32", "placeholder of picture embeddings")
    AUDIO_TOKEN_ID: Final = Key("phi4mm.audio_token_id", "u32", "placeholder of audio embeddings")
    MERGED_ADAPTER: Final = Key(
        "phi4mm.merged_adapter",
        "str",
        "`vision` or `speech`: the adapter merged into the weights; absent if none is",
    )


class ForeignDecoder:
    """Keys that decoder files of others may also have; this project writes none of them."""

    KEY_LENGTH: Final = Key("phi3.attention.key_length", "u32", "width of one key head")
    VALUE_LENGTH: Final = Key("phi3.attention.value_length", "u32", "width of one value head")


class Tokenizer:
    """Keys of the tokenizer, in the decoder file."""

    MODEL: Final = Key("tokenizer.ggml.model", "str", "`gpt2`: byte-level BPE")
    PRE: Final = Key("tokenizer.ggml.pre", "str", "`gpt-4o`: the pre-tokenizer")
    TOKENS: Final = Key("tokenizer.ggml.tokens", "str[]", "token texts, in byte-level letters")
    TOKEN_TYPES: Final = Key(
        "tokenizer.ggml.token_type", "i32[]", "1 normal, 3 control, 4 user-defined, 5 unused"
    )
    MERGES: Final = Key("tokenizer.ggml.merges", "str[]", "merges, `left right`, by rank")
    BOS_ID: Final = Key("tokenizer.ggml.bos_token_id", "u32", "begin of text")
    EOS_ID: Final = Key("tokenizer.ggml.eos_token_id", "u32", "end of text; generation stops")
    EOT_ID: Final = Key("tokenizer.ggml.eot_token_id", "u32", "end of turn; generation stops")
    PAD_ID: Final = Key("tokenizer.ggml.padding_token_id", "u32", "padding")
    UNK_ID: Final = Key("tokenizer.ggml.unknown_token_id", "u32", "unknown text (never needed)")
    ADD_BOS: Final = Key("tokenizer.ggml.add_bos_token", "bool", "false: prompts start as written")
    STRIP_AFTER: Final = Key(
        "phi4mm.tokenizer.strip_after",
        "i32[]",
        "special tokens that swallow the blanks after them; absent if none does",
    )
    CHAT_TEMPLATE: Final = Key("tokenizer.chat_template", "str", "Jinja template, for others")


class ForeignTokenizer:
    """Tokenizer keys that libllama reads and files of others may have.

    This project neither writes nor uses them; they are here because libllama insists on their
    types.
    """

    ADD_EOS: Final = Key("tokenizer.ggml.add_eos_token", "bool", "not used")
    ADD_SEP: Final = Key("tokenizer.ggml.add_sep_token", "bool", "not used")
    ADD_SPACE_PREFIX: Final = Key("tokenizer.ggml.add_space_prefix", "bool", "not used")
    REMOVE_BLANKS: Final = Key("tokenizer.ggml.remove_extra_whitespaces", "bool", "not used")
    LOWERCASE: Final = Key("tokenizer.ggml.normalizer.lowercase", "bool", "not used")
    STRIP_ACCENTS: Final = Key("tokenizer.ggml.normalizer.strip_accents", "bool", "not used")
    N_TOKEN_TYPES: Final = Key("tokenizer.ggml.token_type_count", "u32", "not used")
    SCORES: Final = Key("tokenizer.ggml.scores", "f32[]", "one per token; not used")
    SUPPRESS: Final = Key("tokenizer.ggml.suppress_tokens", "i32[]", "not used")
    EOM_ID: Final = Key("tokenizer.ggml.eom_token_id", "u32", "not used")
    SEP_ID: Final = Key("tokenizer.ggml.seperator_token_id", "u32", "not used")
    MASK_ID: Final = Key("tokenizer.ggml.mask_token_id", "u32", "not used")
    FIM_PRE_ID: Final = Key("tokenizer.ggml.fim_pre_token_id", "u32", "not used")
    FIM_SUF_ID: Final = Key("tokenizer.ggml.fim_suf_token_id", "u32", "not used")
    FIM_MID_ID: Final = Key("tokenizer.ggml.fim_mid_token_id", "u32", "not used")
    FIM_PAD_ID: Final = Key("tokenizer.ggml.fim_pad_token_id", "u32", "not used")
    FIM_REP_ID: Final = Key("tokenizer.ggml.fim_rep_token_id", "u32", "not used")
    FIM_SEP_ID: Final = Key("tokenizer.ggml.fim_sep_token_id", "u32", "not used")
    PREFIX_ID: Final = Key("tokenizer.ggml.prefix_token_id", "u32", "not used")
    SUFFIX_ID: Final = Key("tokenizer.ggml.suffix_token_id", "u32", "not used")
    MIDDLE_ID: Final = Key("tokenizer.ggml.middle_token_id", "u32", "not used")


class Clip:
    """Keys of the mmproj file that are of no one encoder."""

    HAS_VISION: Final = Key("clip.has_vision_encoder", "bool", "whether the vision encoder is here")
    HAS_AUDIO: Final = Key("clip.has_audio_encoder", "bool", "whether the audio encoder is here")
    USE_GELU: Final = Key("clip.use_gelu", "bool", "true: GELU in encoder and projectors")


class Vision:
    """Keys of the vision encoder."""

    PROJECTOR_TYPE: Final = Key("clip.vision.projector_type", "str", "`phi4mm`")
    IMAGE_SIZE: Final = Key("clip.vision.image_size", "u32", "side of a crop in pixels")
    PATCH_SIZE: Final = Key("clip.vision.patch_size", "u32", "side of a patch in pixels")
    N_EMBD: Final = Key("clip.vision.embedding_length", "u32", "width of the encoder")
    N_FF: Final = Key(
        "clip.vision.feed_forward_length", "u32", "width of the feed-forward layer, unpadded"
    )
    N_LAYER: Final = Key(
        "clip.vision.block_count", "u32", "layers in the file: up to the feature layer"
    )
    N_HEAD: Final = Key("clip.vision.attention.head_count", "u32", "attention heads")
    EPS: Final = Key("clip.vision.attention.layer_norm_epsilon", "f32", "epsilon of LayerNorm")
    N_EMBD_OUT: Final = Key("clip.vision.projection_dim", "u32", "width of the decoder")
    IMAGE_MEAN: Final = Key("clip.vision.image_mean", "f32[]", "3 means, pixels in 0..1")
    IMAGE_STD: Final = Key("clip.vision.image_std", "f32[]", "3 deviations, pixels in 0..1")
    MAX_CROPS: Final = Key("clip.vision.preproc_max_tiles", "u32", "most sub-crops of a picture")
    POOL: Final = Key(
        "clip.vision.projector.scale_factor", "u32", "side of the average pooling, in patches"
    )


class Audio:
    """Keys of the audio encoder."""

    PROJECTOR_TYPE: Final = Key("clip.audio.projector_type", "str", "`phi4mm`")
    N_MEL: Final = Key("clip.audio.num_mel_bins", "u32", "mel bins of a frame")
    N_EMBD: Final = Key("clip.audio.embedding_length", "u32", "width of the encoder")
    N_FF: Final = Key("clip.audio.feed_forward_length", "u32", "width of the feed-forward layer")
    N_LAYER: Final = Key("clip.audio.block_count", "u32", "number of blocks")
    N_HEAD: Final = Key("clip.audio.attention.head_count", "u32", "attention heads")
    EPS: Final = Key("clip.audio.attention.layer_norm_epsilon", "f32", "epsilon of LayerNorm")
    N_EMBD_OUT: Final = Key("clip.audio.projection_dim", "u32", "width of the decoder")
    SUBSAMPLING: Final = Key("clip.audio.subsampling_factor", "u32", "mel frames per token: 8")
    CHUNK_SIZE: Final = Key(
        "clip.audio.chunk_size", "u32", "tokens of an attention chunk; longer audio is cut"
    )
    CONV_KERNEL: Final = Key(
        "clip.audio.conv_kernel_size", "u32", "taps of the causal depthwise convolution"
    )
    BIAS_DISTANCE: Final = Key(
        "clip.audio.max_pos_emb", "u32", "distance of the relative bias; its table has twice it"
    )
    N_CONV: Final = Key("clip.audio.conv_channels", "u32", "channels of the subsampling")


class Mel:
    """Keys of the log-mel front end, in the mmproj file: entry i of each array is one rate's."""

    SAMPLE_RATES: Final = Key("phi4mm.mel.sample_rates", "i32[]", "sample rates in Hz, falling")
    WINDOW_LENGTHS: Final = Key("phi4mm.mel.window_lengths", "i32[]", "window in samples")
    HOP_LENGTHS: Final = Key("phi4mm.mel.hop_lengths", "i32[]", "hop in samples")
    FFT_SIZES: Final = Key("phi4mm.mel.fft_sizes", "i32[]", "length of the FFT")
    PREEMPHASIS: Final = Key("phi4mm.mel.preemphasis", "f32", "pre-emphasis within a frame")
    SCALE: Final = Key("phi4mm.mel.scale", "f32", "factor of the samples")
    MAX_HZ: Final = Key("phi4mm.mel.max_hz", "f32", "upper edge of the highest mel bin")
    FLOOR: Final = Key("phi4mm.mel.floor", "f32", "least power before the logarithm")


class Adapter:
    """Keys of an adapter file."""

    TYPE: Final = Key("adapter.type", "str", "`lora`")
    ALPHA: Final = Key("adapter.lora.alpha", "f32", "alpha; the scale is alpha / rank")
    NAME: Final = Key("phi4mm.adapter", "str", "`vision` or `speech`: the mode it serves")


GROUPS: Final = (
    General,
    Own,
    Decoder,
    Tokenizer,
    Clip,
    Vision,
    Audio,
    Mel,
    Adapter,
    ForeignDecoder,
    ForeignTokenizer,
)
"""The key classes, in the order of the documentation."""


def keys_of(group: type) -> list[Key]:
    """The keys a group declares, in order."""
    return [value for value in vars(group).values() if isinstance(value, Key)]
