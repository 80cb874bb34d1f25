"""Hyper-parameters of the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from phi4mm.modality import Adapter as AdapterName
from phi4mm.modelfile import keys
from phi4mm.modelfile.hparams.fields import (
    MAX_LAYERS,
    MAX_WIDTH,
    MIN_EPS,
    Field,
    FieldTable,
    WritableMetadata,
    adapter_name,
    bundle_id_of,
    check_bundle_id,
    check_fields,
    check_heads,
    construct,
    is_own,
    read_fields,
    require,
    role_metadata,
    write_fields,
)
from phi4mm.modelfile.metadata import Metadata

_MAX_CTX: Final = 1 << 24


_DECODER: Final[FieldTable] = {
    "n_vocab": Field(keys.Decoder.N_VOCAB, 1, 1 << 20),
    "n_embd": Field(keys.Decoder.N_EMBD, 1, MAX_WIDTH),
    "n_layer": Field(keys.Decoder.N_LAYER, 1, MAX_LAYERS),
    "n_head": Field(keys.Decoder.N_HEAD, 1, MAX_WIDTH),
    "n_head_kv": Field(keys.Decoder.N_HEAD_KV, 1, MAX_WIDTH),
    "n_ff": Field(keys.Decoder.N_FF, 1, MAX_WIDTH),
    "n_rot": Field(keys.Decoder.N_ROT, 2, MAX_WIDTH),
    "n_ctx_train": Field(keys.Decoder.N_CTX_TRAIN, 1, _MAX_CTX),
    "n_ctx_orig": Field(keys.Decoder.N_CTX_ORIG, 2, _MAX_CTX),
    "rms_eps": Field(keys.Decoder.RMS_EPS, MIN_EPS, 1),
    "rope_freq_base": Field(keys.Decoder.ROPE_FREQ_BASE, 1, 1e9),
    "rope_attn_factor": Field(keys.Decoder.ROPE_ATTN_FACTOR, 0.1, 10),
}


@dataclass(frozen=True, slots=True)
class DecoderHParams:
    """The decoder.

    Attributes:
        n_vocab: rows of the token embedding.
        n_embd: width of the hidden state.
        n_layer: layers.
        n_head: query heads.
        n_head_kv: key and value heads.
        n_ff: width of the feed-forward layer.
        n_rot: rotated dimensions of a head.
        n_ctx_train: largest number of positions.
        n_ctx_orig: positions up to which the short RoPE factors hold.
        rms_eps: epsilon of RMSNorm.
        rope_freq_base: base of the RoPE frequencies.
        rope_attn_factor: factor of cos and sin, in both RoPE regimes.
        image_token_id: placeholder of picture embeddings; None in files of others.
        audio_token_id: placeholder of audio embeddings; None in files of others.
        bundle_id: identity of the source checkpoint; None in files of others.
        merged_adapter: adapter merged into the weights, if one is.
    """

    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_rot: int
    n_ctx_train: int
    n_ctx_orig: int
    rms_eps: float
    rope_freq_base: float
    rope_attn_factor: float
    image_token_id: int | None = None
    audio_token_id: int | None = None
    bundle_id: str | None = None
    merged_adapter: AdapterName | None = None

    def __post_init__(self) -> None:
        """Check every field against the others."""
        check_fields(self, _DECODER)
        check_heads(keys.Decoder.N_HEAD, self.n_head, self.n_embd)
        check_bundle_id(self.bundle_id)
        require(
            self.n_head % self.n_head_kv == 0,
            f"{keys.Decoder.N_HEAD_KV} is {self.n_head_kv}, must divide the {self.n_head} heads",
        )
        require(
            self.n_rot % 2 == 0 and self.n_rot <= self.n_embd_head,
            f"{keys.Decoder.N_ROT} is {self.n_rot}, must be even, at most {self.n_embd_head}",
        )
        require(
            self.n_ctx_orig <= self.n_ctx_train,
            f"{keys.Decoder.N_CTX_ORIG} is {self.n_ctx_orig}, "
            f"must be at most {keys.Decoder.N_CTX_TRAIN}, which is {self.n_ctx_train}",
        )
        self._check_placeholders()

    def _check_placeholders(self) -> None:
        ids = {
            keys.Decoder.IMAGE_TOKEN_ID: self.image_token_id,
            keys.Decoder.AUDIO_TOKEN_ID: self.audio_token_id,
        }
        for key, token in ids.items():
            require(
                token is None or 0 <= token < self.n_vocab,
                f"{key} is {token}, must be below the {self.n_vocab} tokens of the vocabulary",
            )
        require(
            self.image_token_id is None or self.image_token_id != self.audio_token_id,
            f"{' and '.join(ids)} are both {self.image_token_id}, must differ",
        )

    @property
    def n_embd_head(self) -> int:
        """Width of one head."""
        return self.n_embd // self.n_head

    @property
    def n_embd_gqa(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.n_embd_head * self.n_head_kv

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> DecoderHParams:
        """Read and check the keys of a decoder file.

        A file of others has none of the keys of this project.  Where it lacks the RoPE attention
        factor it gets 1, as libllama takes it; the bundle warns of that.

        Raises:
            ModelFileError: a key is missing, has another type, or a value that cannot be.
        """
        key = keys.Decoder
        _refuse_unknown(metadata)
        own = is_own(metadata)
        absent = {key.N_VOCAB: None} if own else {key.N_VOCAB: None, key.ROPE_ATTN_FACTOR: 1.0}
        values = read_fields(metadata, _DECODER, absent)
        n_tokens = len(metadata.strings(keys.Tokenizer.TOKENS))
        if values["n_vocab"] not in (None, n_tokens):
            raise metadata.error(
                f"{key.N_VOCAB} is {values['n_vocab']}, must be {n_tokens}, the length of "
                f"{keys.Tokenizer.TOKENS}"
            )
        values["n_vocab"] = n_tokens
        if own or key.ROPE_SCALING_TYPE in metadata:
            metadata.text(key.ROPE_SCALING_TYPE, (keys.ROPE_SCALING_LONGROPE,))
        if own:
            values["image_token_id"] = metadata.number(key.IMAGE_TOKEN_ID)
            values["audio_token_id"] = metadata.number(key.AUDIO_TOKEN_ID)
            values["bundle_id"] = bundle_id_of(metadata)
            values["merged_adapter"] = adapter_name(metadata, key.MERGED_ADAPTER)
        hparams = construct(cls, metadata, values)
        _check_head_lengths(metadata, hparams.n_embd_head)
        return hparams

    def to_metadata(self) -> WritableMetadata:
        """Every key of a decoder file except those of the tokenizer."""
        key = keys.Decoder
        optional = {
            key.IMAGE_TOKEN_ID: self.image_token_id,
            key.AUDIO_TOKEN_ID: self.audio_token_id,
            key.MERGED_ADAPTER: self.merged_adapter,
        }
        return (
            role_metadata(keys.ARCH_DECODER, keys.TYPE_MODEL, self.bundle_id)
            | write_fields(self, _DECODER)
            | {key.ROPE_SCALING_TYPE: keys.ROPE_SCALING_LONGROPE, key.SLIDING_WINDOW: 0}
            | {key: value for key, value in optional.items() if value is not None}
        )


def _refuse_unknown(metadata: Metadata) -> None:
    """Refuse keys of the architecture that this model does not have.

    libllama reads some sixty of them (experts, other attention, other RoPE scaling); any of them
    changes what it computes, and many are asserted on.
    """
    known = {*keys.keys_of(keys.Decoder), *keys.keys_of(keys.ForeignDecoder)}
    for name in metadata:
        if name.startswith(f"{keys.ARCH_DECODER}.") and name not in known:
            raise metadata.error(f"metadata key {name} is none of this model's")


def _check_head_lengths(metadata: Metadata, n_embd_head: int) -> None:
    for key in keys.keys_of(keys.ForeignDecoder):
        if key in metadata and metadata.number(key) != n_embd_head:
            raise metadata.error(f"{key} is {metadata[key]}, must be {n_embd_head}")
