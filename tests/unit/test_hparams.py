"""Hyper-parameters and tensor tables: what the files must say, and what is refused by name."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_builder import (
    AUDIO,
    DECODER,
    MERGES,
    SPECIAL,
    TOKEN_TYPES,
    TOKENS,
    VISION,
    Tensor,
    adapter,
    adapter_bytes,
    decoder_bytes,
    f32,
    foreign_decoder_bytes,
    mmproj_bytes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from phi4mm.errors import ModelFileError
from phi4mm.modelfile import keys
from phi4mm.modelfile.ggml_type import MATRIX_TYPES, GGMLType
from phi4mm.modelfile.hparams import AdapterHParams, DecoderHParams, MelHParams
from phi4mm.modelfile.part import open_adapter, open_decoder, open_mmproj
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.modelfile.tensors import decoder_block, lora, mmproj_tensors, vision_block

D, T, V, A, M = keys.Decoder, keys.Tokenizer, keys.Vision, keys.Audio, keys.Mel
GATE = decoder_block(1, "ffn_up")


def save(folder: Path, data: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refusal(open_part: Any, path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_part(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


# ---- what is written is read back


def test_every_field_survives_the_file(tmp_path: Path) -> None:
    decoder = open_decoder(save(tmp_path, decoder_bytes()))
    assert decoder.hparams == DECODER
    merged = replace(DECODER, merged_adapter="speech")
    assert open_decoder(save(tmp_path, decoder_bytes(h=merged))).hparams == merged
    mmproj = open_mmproj(save(tmp_path, mmproj_bytes()))
    assert (mmproj.vision, mmproj.audio, mmproj.bundle_id) == (VISION, AUDIO, DECODER.bundle_id)
    lora_file = save(tmp_path, adapter_bytes(adapter("speech", rank=5)))
    assert open_adapter(lora_file, decoder).hparams == adapter("speech", rank=5)


def test_derived_numbers_of_the_published_model() -> None:
    decoder = replace(
        DECODER, n_embd=3072, n_head=24, n_head_kv=8, n_rot=96, n_vocab=200_064,
        n_ctx_train=131_072, n_ctx_orig=4096,
    )  # fmt: skip
    assert (decoder.n_embd_head, decoder.n_embd_gqa) == (128, 1024)
    vision = replace(VISION, image_size=448, n_embd=1152, n_head=16)
    assert (vision.n_side, vision.n_patches, vision.n_embd_head) == (32, 1024, 72)
    assert AUDIO.n_freq == 10
    assert AdapterHParams(name="vision", alpha=512.0, rank=256).scale == 2.0


@pytest.mark.parametrize("n_mel", range(1, 130))
def test_frequency_rows_are_halved_three_times_rounding_up(n_mel: int) -> None:
    n = n_mel
    for _ in range(3):
        n = (n + 1) // 2
    assert replace(AUDIO, n_mel=n_mel).n_freq == n


@pytest.mark.parametrize(("vision", "audio"), [(VISION, None), (None, AUDIO)])
def test_an_mmproj_may_have_one_encoder(tmp_path: Path, vision: Any, audio: Any) -> None:
    part = open_mmproj(save(tmp_path, mmproj_bytes(vision=vision, audio=audio)))
    assert (part.vision, part.audio) == (vision, audio)


@pytest.mark.parametrize("type_", sorted(MATRIX_TYPES))
def test_encoder_matrices_may_have_any_weight_type_and_padding(
    tmp_path: Path, type_: GGMLType
) -> None:
    path = save(tmp_path, mmproj_bytes(matrix_type=type_))
    part = open_mmproj(path)
    name = vision_block(0, "ffn_down", "weight")
    assert part.file.tensors[name].shape == (VISION.n_embd, type_.padded(VISION.n_ff))


def test_a_decoder_of_another_program_is_read_as_it_is(tmp_path: Path) -> None:
    output = Tensor("output.weight", (len(TOKENS), 32), int(GGMLType.Q8_0), bytes(len(TOKENS) * 34))
    data = foreign_decoder_bytes(tensors={"output.weight": output})
    expected = replace(DECODER, image_token_id=None, audio_token_id=None, bundle_id=None)
    assert open_decoder(save(tmp_path, data)).hparams == expected
    without = foreign_decoder_bytes(leave_out=[D.ROPE_ATTN_FACTOR])
    assert open_decoder(save(tmp_path, without)).hparams.rope_attn_factor == 1.0


def test_keys_survive_a_copy() -> None:
    copied = pickle.loads(pickle.dumps(D.N_LAYER))
    assert copied == D.N_LAYER
    assert (copied.type_name, copied.meaning) == (D.N_LAYER.type_name, D.N_LAYER.meaning)


# ---- whatever the keys say

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "u16": st.integers(0, (1 << 16) - 1),
    "u32": st.integers(0, (1 << 32) - 1) | st.integers(0, 600),
    "i32": st.integers(-(1 << 31), (1 << 31) - 1),
    "f32": st.floats(width=32),
    "bool": st.booleans(),
    "str": st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(["gpt2", "longrope"]),
}
KEYS_OF_PARTS: list[tuple[Any, Any, list[keys.Key]]] = [
    (decoder_bytes, open_decoder, [*keys.keys_of(D), *keys.keys_of(T), *keys.keys_of(keys.Own)]),
    (
        mmproj_bytes,
        open_mmproj,
        [*keys.keys_of(keys.Clip), *keys.keys_of(V), *keys.keys_of(A), *keys.keys_of(M)],
    ),
]


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_any_values_give_a_part_or_a_model_file_error(data: st.DataObject) -> None:
    make, open_part, candidates = data.draw(st.sampled_from(KEYS_OF_PARTS))
    changes = {}
    for key in data.draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=3)):
        one = VALUES[key.type]
        changes[key] = data.draw(st.lists(one, max_size=4) if key.is_array else one)
    message = "m.gguf: "
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), make(changes))
        try:
            open_part(path)
        except ModelFileError as error:
            message = str(error).removeprefix(folder)
    assert "m.gguf: " in message
    assert "\n" not in message


# ---- decoders that are refused

FROM_1 = "must be 1 to"
BAD_DECODERS: list[tuple[Mapping[Any, Any], str]] = [
    ({D.N_LAYER: 0}, f"phi3.block_count is 0, {FROM_1} 512"),
    ({D.N_LAYER: 4_000_000_000}, f"phi3.block_count is 4000000000, {FROM_1} 512"),
    ({D.N_EMBD: 0}, f"phi3.embedding_length is 0, {FROM_1} 131072"),
    ({D.N_FF: 1 << 31}, f"phi3.feed_forward_length is {1 << 31}, {FROM_1} 131072"),
    ({D.N_HEAD: 0}, f"phi3.attention.head_count is 0, {FROM_1} 131072"),
    ({D.N_HEAD: 5}, "phi3.attention.head_count is 5, must divide the width 32"),
    ({D.N_HEAD_KV: 0}, f"phi3.attention.head_count_kv is 0, {FROM_1} 131072"),
    ({D.N_HEAD_KV: 3}, "phi3.attention.head_count_kv is 3, must divide the 4 heads"),
    ({D.N_ROT: 7}, "phi3.rope.dimension_count is 7, must be even, at most 8"),
    ({D.N_ROT: 10}, "phi3.rope.dimension_count is 10, must be even, at most 8"),
    ({D.N_CTX_TRAIN: 0}, f"phi3.context_length is 0, {FROM_1} 16777216"),
    (
        {D.N_CTX_ORIG: 1025},
        "phi3.rope.scaling.original_context_length is 1025, "
        "must be at most phi3.context_length, which is 1024",
    ),
    ({D.RMS_EPS: 0.0}, "phi3.attention.layer_norm_rms_epsilon is 0, must be 1e-12 to 1"),
    (
        {D.RMS_EPS: float("nan")},
        "phi3.attention.layer_norm_rms_epsilon is nan, must be 1e-12 to 1",
    ),
    ({D.ROPE_FREQ_BASE: float("inf")}, "phi3.rope.freq_base is inf, must be 1 to 1e+09"),
    ({D.ROPE_ATTN_FACTOR: -1.0}, "phi3.rope.scaling.attn_factor is -1, must be 0.1 to 10"),
    ({D.ROPE_SCALING_TYPE: "yarn"}, "phi3.rope.scaling.type is 'yarn', must be 'longrope'"),
    (
        {D.N_VOCAB: 7},
        f"phi3.vocab_size is 7, must be {len(TOKENS)}, the length of tokenizer.ggml.tokens",
    ),
    (
        {D.IMAGE_TOKEN_ID: len(TOKENS)},
        f"phi4mm.image_token_id is {len(TOKENS)}, must be below the {len(TOKENS)} tokens "
        f"of the vocabulary",
    ),
    (
        {D.IMAGE_TOKEN_ID: DECODER.audio_token_id},
        f"phi4mm.image_token_id and phi4mm.audio_token_id are both {DECODER.audio_token_id}, "
        f"must differ",
    ),
    (
        {keys.Own.FORMAT_VERSION: 2},
        "phi4mm.format_version is 2, must be 1: convert the model again",
    ),
    (
        {keys.Own.BUNDLE_ID: "no"},
        "phi4mm.bundle_id is 'no', must be 32 hexadecimal digits",
    ),
    (
        {D.MERGED_ADAPTER: "both"},
        "phi4mm.merged_adapter is 'both', must be 'vision' or 'speech'",
    ),
    (
        {keys.Key("phi3.expert_count", "u32", ""): 8},
        "metadata key phi3.expert_count is none of this model's",
    ),
    (
        {keys.ForeignDecoder.KEY_LENGTH: 64},
        "phi3.attention.key_length is 64, must be 8",
    ),
    (
        {keys.General.SPLIT_COUNT: 3},
        "one of 3 pieces of a split file, must be one file: "
        "join them with llama-gguf-split --merge",
    ),
    ({T.MODEL: "llama"}, "tokenizer.ggml.model is 'llama', must be 'gpt2'"),
    ({T.PRE: "default"}, "tokenizer.ggml.pre is 'default', must be 'gpt-4o'"),
    (
        {T.TOKENS: [*TOKENS[:-1], "a"]},
        "tokenizer.ggml.tokens has 'a' 2 times, tokens must differ",
    ),
    ({T.TOKENS: [*TOKENS[:-1], ""]}, "tokenizer.ggml.tokens has an empty token"),
    (
        {T.TOKENS: [*TOKENS[:-1], "a\0"]},
        "metadata key tokenizer.ggml.tokens has a string with a NUL character",
    ),
    (
        {T.TOKENS: ["<0x00>", *TOKENS[1:]]},
        "tokenizer.ggml.tokens lacks 'Ā', one of the 256 byte letters",
    ),
    (
        {T.TOKENS: [*TOKENS[:-6], "日本", *TOKENS[-5:]]},
        "tokenizer.ggml.tokens has the normal token '日本', must be written in byte letters",
    ),
    (
        {T.TOKEN_TYPES: TOKEN_TYPES[1:]},
        f"tokenizer.ggml.token_type has {len(TOKENS) - 1} elements, must have {len(TOKENS)}",
    ),
    (
        {T.TOKEN_TYPES: [6, *TOKEN_TYPES[1:]]},
        "tokenizer.ggml.token_type has 6, must be 1, 3, 4, 5",
    ),
    (
        {T.MERGES: [*MERGES, "the"]},
        "tokenizer.ggml.merges has 'the' at 3, must be two tokens and a space, together a token",
    ),
    (
        {T.MERGES: ["Ġ  t", *MERGES]},
        "tokenizer.ggml.merges has 'Ġ  t' at 0, must be two tokens and a space, together a token",
    ),
    (
        {T.MERGES: [*MERGES, "q x"]},
        "tokenizer.ggml.merges has 'q x' at 3, must be two tokens and a space, together a token",
    ),
    (
        {T.EOS_ID: 1 << 31},
        f"tokenizer.ggml.eos_token_id is {1 << 31}, must be below the {len(TOKENS)} tokens "
        f"there are",
    ),
    (
        {keys.ForeignTokenizer.SCORES: [1.0]},
        f"tokenizer.ggml.scores has 1 elements, must have {len(TOKENS)}",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD_DECODERS)
def test_decoders_with_impossible_values(
    tmp_path: Path, changes: Mapping[Any, Any], message: str
) -> None:
    path = save(tmp_path, decoder_bytes(changes))
    assert refusal(open_decoder, path) == message


REQUIRED = [
    D.N_CTX_TRAIN, D.N_CTX_ORIG, D.N_EMBD, D.N_FF, D.N_LAYER, D.N_HEAD, D.N_HEAD_KV, D.N_ROT,
    D.RMS_EPS, D.ROPE_FREQ_BASE, D.ROPE_ATTN_FACTOR, D.ROPE_SCALING_TYPE, D.IMAGE_TOKEN_ID,
    D.AUDIO_TOKEN_ID, T.MODEL, T.PRE, T.TOKENS, T.TOKEN_TYPES, T.MERGES, T.EOS_ID,
]  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
def test_decoders_without_a_key(tmp_path: Path, key: str) -> None:
    path = save(tmp_path, decoder_bytes(leave_out=[key]))
    assert refusal(open_decoder, path) == f"metadata key {key} is missing"


@pytest.mark.parametrize(
    "key", [key for group in keys.GROUPS for key in keys.keys_of(group) if key.type != "u8"]
)
def test_a_known_key_of_another_type_is_refused_in_every_part(
    tmp_path: Path, key: keys.Key
) -> None:
    """The native library asserts on some of these types, and there is no part they belong to."""
    data = decoder_bytes({key: 1}, types={key: "u8"}, leave_out=[])
    message = refusal(open_decoder, save(tmp_path, data))
    assert message == f"{key} has type u8, must be {key.type_name}"


BAD_TENSORS: list[tuple[str, Tensor | None, str]] = [
    (GATE, None, f"tensor {GATE} is missing"),
    ("blk.2.attn_norm.weight", f32("blk.2.attn_norm.weight", (32,)),
     "tensor blk.2.attn_norm.weight is not of this part"),
    (GATE, f32(GATE, (48, 32)), f"tensor {GATE} has shape (48, 32), must be (96, 32)"),
    (GATE, f32(GATE, (1, 96, 32)), f"tensor {GATE} has shape (1, 96, 32), must be (96, 32)"),
    (GATE, f32(GATE, (96, 64)), f"tensor {GATE} has shape (96, 64), must be (96, 32)"),
    (GATE, Tensor(GATE, (96, 32), int(GGMLType.I8), bytes(96 * 32)),
     f"tensor {GATE} has type I8, which no weight can have"),
    ("output_norm.weight", Tensor("output_norm.weight", (32,), int(GGMLType.F16), bytes(64)),
     "tensor output_norm.weight has type F16, must be F32"),
    ("rope_factors_long.weight", f32("rope_factors_long.weight", (4,)),
     "tensor rope_factors_long.weight has shape (4,), must be (3,)"),
    ("rope_factors_short.weight",
     Tensor("rope_factors_short.weight", (3,), 0, np.float32([1, 0, 1]).tobytes()),
     "tensor rope_factors_short.weight has a factor that is not above 0"),
    ("rope_factors_long.weight",
     Tensor("rope_factors_long.weight", (3,), 0, np.float32([1, np.nan, 1]).tobytes()),
     "tensor rope_factors_long.weight has a factor that is not above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tensor", "message"), BAD_TENSORS)
def test_decoders_with_wrong_tensors(
    tmp_path: Path, name: str, tensor: Tensor | None, message: str
) -> None:
    path = save(tmp_path, decoder_bytes(tensors={name: tensor}))
    assert refusal(open_decoder, path) == message


def test_missing_tensors_are_counted(tmp_path: Path) -> None:
    gone = {decoder_block(il, layer): None for il in (0, 1) for layer in ("attn_qkv", "ffn_down")}
    path = save(tmp_path, decoder_bytes(tensors=gone))
    assert refusal(open_decoder, path) == (
        "tensors blk.0.attn_qkv.weight, blk.0.ffn_down.weight, blk.1.attn_qkv.weight "
        "and 1 more are missing"
    )


# ---- mmprojs that are refused

BAD_MMPROJS: list[tuple[Mapping[Any, Any], str]] = [
    ({keys.Clip.USE_GELU: False}, "clip.use_gelu is false, must be true"),
    (
        {keys.Clip.HAS_VISION: False, keys.Clip.HAS_AUDIO: False},
        "neither a vision nor an audio encoder, must have one",
    ),
    ({V.PROJECTOR_TYPE: "phi4"}, "clip.vision.projector_type is 'phi4', must be 'phi4mm'"),
    ({V.IMAGE_SIZE: 0}, "clip.vision.image_size is 0, must be 2 to 8192"),
    (
        {V.IMAGE_SIZE: 57},
        "clip.vision.image_size is 57, must be a multiple of 28, the patch size times the pooling",
    ),
    ({V.PATCH_SIZE: 0}, "clip.vision.patch_size is 0, must be 1 to 8192"),
    ({V.N_HEAD: 3}, "clip.vision.attention.head_count is 3, must divide the width 16"),
    ({V.N_LAYER: 0}, "clip.vision.block_count is 0, must be 1 to 512"),
    ({V.EPS: 0.0}, "clip.vision.attention.layer_norm_epsilon is 0, must be 1e-12 to 1"),
    ({V.POOL: 4}, "clip.vision.projector.scale_factor is 4, must be 2"),
    ({V.MAX_CROPS: 0}, "clip.vision.preproc_max_tiles is 0, must be 1 to 4096"),
    (
        {V.IMAGE_STD: [0.5, 0.0, 0.5]},
        "clip.vision.image_std is [0.5, 0.0, 0.5], must be 3 numbers from 0.001 to 1",
    ),
    ({V.IMAGE_MEAN: [0.5]}, "clip.vision.image_mean is [0.5], must be 3 numbers from 0 to 1"),
    ({A.PROJECTOR_TYPE: "ultravox"}, "clip.audio.projector_type is 'ultravox', must be 'phi4mm'"),
    ({A.N_HEAD: 0}, "clip.audio.attention.head_count is 0, must be 1 to 131072"),
    ({A.SUBSAMPLING: 4}, "clip.audio.subsampling_factor is 4, must be 8"),
    ({A.CHUNK_SIZE: 0}, "clip.audio.chunk_size is 0, must be 1 to 65536"),
    ({A.BIAS_DISTANCE: 1 << 31}, f"clip.audio.max_pos_emb is {1 << 31}, must be 1 to 65536"),
    (
        {M.SAMPLE_RATES: [16000]},
        "phi4mm.mel.sample_rates is [16000], must be 2 numbers from 1000 to 1048576",
    ),
    (
        {M.SAMPLE_RATES: [16000, 11025]},
        "phi4mm.mel.sample_rates is [16000, 11025], the first must be twice the last",
    ),
    (
        {M.WINDOW_LENGTHS: [400, 300]},
        "phi4mm.mel.fft_sizes has 256, must be even and hold a window of 300",
    ),
    (
        {M.HOP_LENGTHS: [160, 0]},
        "phi4mm.mel.hop_lengths is [160, 0], must be 2 numbers from 1 to 65536",
    ),
    ({M.MAX_HZ: 9000.0}, "phi4mm.mel.max_hz is 9000, must be at most 8000"),
    ({M.FLOOR: 0.0}, "phi4mm.mel.floor is 0, must be 1e-30 to 1e+06"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_MMPROJS)
def test_mmprojs_with_impossible_values(
    tmp_path: Path, changes: Mapping[Any, Any], message: str
) -> None:
    path = save(tmp_path, mmproj_bytes(changes))
    assert refusal(open_mmproj, path) == message


def test_an_mmproj_of_another_program_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, mmproj_bytes(leave_out=[keys.Own.FORMAT_VERSION]))
    assert refusal(open_mmproj, path) == (
        "phi4mm.format_version is missing: an mmproj of another program; "
        "make one with phi4mm convert"
    )


@pytest.mark.parametrize("name", mmproj_tensors(VISION, AUDIO))
def test_every_tensor_of_an_mmproj_is_needed(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, mmproj_bytes(tensors={name: None}))
    assert refusal(open_mmproj, path) == f"tensor {name} is missing"


def test_padding_is_up_to_the_block_and_no_further(tmp_path: Path) -> None:
    name = vision_block(0, "ffn_down", "weight")
    type_ = GGMLType.Q8_0
    wide = Tensor(name, (16, 64), int(type_), bytes(16 * type_.row_bytes(64)))
    path = save(tmp_path, mmproj_bytes(tensors={name: wide}))
    assert refusal(open_mmproj, path) == (
        f"tensor {name} has shape (16, 64), must be (16, 20) or (16, 32)"
    )


# ---- adapters that are refused


@pytest.mark.parametrize(
    ("changes", "leave_out", "message"),
    [
        ({keys.Adapter.TYPE: "control"}, [], "adapter.type is 'control', must be 'lora'"),
        ({keys.Adapter.ALPHA: 0.0}, [], "adapter.lora.alpha is 0, must be 1e-06 to 1e+06"),
        ({}, [keys.Adapter.ALPHA], "metadata key adapter.lora.alpha is missing"),
        ({}, [keys.Adapter.NAME], "metadata key phi4mm.adapter is missing"),
        ({keys.Adapter.NAME: "both"}, [], "phi4mm.adapter is 'both', must be 'vision' or 'speech'"),
        (
            {keys.Key(keys.ALORA_TOKENS, "i32[]", ""): [1]},
            [],
            "has adapter.alora.invocation_tokens: an activated LoRA is not supported",
        ),
    ],
)
def test_adapters_with_impossible_values(
    tmp_path: Path, changes: Mapping[Any, Any], leave_out: list[str], message: str
) -> None:
    decoder = open_decoder(save(tmp_path, decoder_bytes(), "d.gguf"))
    data = adapter_bytes(adapter("vision"), changes, leave_out=leave_out)
    path = save(tmp_path, data)
    assert refusal(lambda p: open_adapter(p, decoder), path) == message


def test_adapters_with_wrong_tensors(tmp_path: Path) -> None:
    decoder = open_decoder(save(tmp_path, decoder_bytes(), "d.gguf"))
    a, b = lora(1, "ffn_up", "a"), lora(1, "ffn_up", "b")
    for tensors, message in (
        ({a: None}, f"tensor {a} is missing"),
        ({b: f32(b, (96, 3))}, f"tensor {b} has shape (96, 3), must be (96, 4)"),
        ({"x.lora_a": f32("x.lora_a", (4, 32))}, "tensor x.lora_a is not of this part"),
    ):
        path = save(tmp_path, adapter_bytes(adapter("vision"), tensors=tensors))
        found = refusal(lambda p: open_adapter(p, decoder), path)
        assert found == f"{message} (as an adapter for {decoder.path})"


def test_an_adapter_without_matrices_is_refused(tmp_path: Path) -> None:
    decoder = open_decoder(save(tmp_path, decoder_bytes(), "d.gguf"))
    path = tmp_path / "m.gguf"
    h = replace(DECODER, n_layer=1)
    gone = {lora(0, t, s): None for t in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
            for s in ("a", "b")}  # fmt: skip
    path.write_bytes(adapter_bytes(adapter("vision"), decoder=h, tensors=gone))
    assert refusal(lambda p: open_adapter(p, decoder), path) == (
        "no matrix .lora_a, an adapter must have some"
    )


# ---- hyper-parameters made by hand (by the converter) are held to the same rules


def test_constructors_check_too() -> None:
    with pytest.raises(ModelFileError, match=r"phi3\.attention\.head_count is 5, must divide"):
        replace(DECODER, n_head=5)
    with pytest.raises(ModelFileError, match="the adapter has rank 0, must be 1 to"):
        AdapterHParams(name="vision", alpha=1.0, rank=0)
    with pytest.raises(ModelFileError, match=r"phi4mm\.mel\.preemphasis is 2, must be 0 to 1"):
        MelHParams((16000, 8000), (400, 200), (160, 80), (512, 256), 2.0, 1.0, 7690.0, 1.0)


def test_special_tokens_need_no_byte_letters(tmp_path: Path) -> None:
    tokens = [*TOKENS[:-1], "<|日本|>"]
    assert isinstance(
        open_decoder(save(tmp_path, decoder_bytes({T.TOKENS: tokens}))).hparams, DecoderHParams
    )
    assert len(SPECIAL) == TOKEN_TYPES.count(3)


def test_metadata_says_what_it_has(tmp_path: Path) -> None:
    with GGUFFile.open(save(tmp_path, decoder_bytes())) as file:
        assert D.N_LAYER in file.metadata
        assert file.metadata.get("none") is None
        assert len(list(file.metadata)) == len(file.metadata)
