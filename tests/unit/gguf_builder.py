"""Writes GGUF files byte by byte, valid or malformed in one way, and tiny bundles of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from phi4mm.modelfile import keys
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import (
    AdapterHParams,
    AudioHParams,
    DecoderHParams,
    MelHParams,
    VisionHParams,
    mmproj_metadata,
)
from phi4mm.modelfile.keys import Key
from phi4mm.modelfile.tensors import (
    TensorTable,
    adapter_tensors,
    decoder_tensors,
    mmproj_tensors,
)
from phi4mm.modelfile.vocabulary import byte_letters

TYPE_NUMBERS = {
    "u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8,
    "arr": 9, "u64": 10, "i64": 11, "f64": 12,
}  # fmt: skip
CODES = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f",
    "bool": "?", "u64": "Q", "i64": "q", "f64": "d",
}  # fmt: skip


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def scalar(type_: str, value: Any) -> bytes:
    return text(value) if type_ == "str" else struct.pack("<" + CODES[type_], value)


def entry(key: str | bytes, type_: str, value: Any) -> bytes:
    """One metadata entry; a type such as ``u32[]`` is an array."""
    head = text(key)
    if not type_.endswith("[]"):
        return head + struct.pack("<I", TYPE_NUMBERS[type_]) + scalar(type_, value)
    element = type_.removesuffix("[]")
    array = struct.pack("<IIQ", TYPE_NUMBERS["arr"], TYPE_NUMBERS[element], len(value))
    return head + array + b"".join(scalar(element, item) for item in value)


@dataclass(frozen=True)
class Tensor:
    """A tensor to write; ``offset`` overrides where the header says it lies."""

    name: str
    shape: tuple[int, ...]
    type: int = 0
    data: bytes = b""
    offset: int | None = None

    def header(self, offset: int) -> bytes:
        ne = self.shape[::-1]
        dims = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        place = offset if self.offset is None else self.offset
        return text(self.name) + dims + struct.pack("<IQ", self.type, place)


def f32(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, shape, 0, np.ones(shape, "<f4").tobytes())


def gguf(
    entries: Sequence[bytes] = (),
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    alignment: int = 32,
    order: str = "<",
) -> bytes:
    counts = struct.pack(
        f"{order}IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_keys is None else n_keys,
    )
    head, blob = magic + counts + b"".join(entries), b""
    for tensor in tensors:
        head += tensor.header(len(blob))
        blob += tensor.data + bytes(-len(tensor.data) % alignment)
    return head + (bytes(-len(head) % alignment) + blob if tensors else b"")


# ---- parts of a tiny model

BUNDLE_ID = "0123456789abcdef" * 2
OTHER_ID = "fedcba9876543210" * 2
SPECIAL = ["<|endoftext|>", "<|endoftext10|>", "<|endoftext11|>", "<|end|>", "<|user|>"]
MERGES = ["Ġ t", "h e", "Ġt he"]
TOKENS = [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES), *SPECIAL]
TOKEN_TYPES = [1] * (len(TOKENS) - len(SPECIAL)) + [3] * len(SPECIAL)
DECODER = DecoderHParams(
    n_vocab=len(TOKENS),
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_head_kv=2,
    n_ff=48,
    n_rot=6,
    n_ctx_train=1024,
    n_ctx_orig=256,
    rms_eps=2.0**-17,
    rope_freq_base=10000.0,
    rope_attn_factor=1.125,
    image_token_id=TOKENS.index("<|endoftext10|>"),
    audio_token_id=TOKENS.index("<|endoftext11|>"),
    bundle_id=BUNDLE_ID,
)
VISION = VisionHParams(
    image_size=56,
    patch_size=14,
    n_embd=16,
    n_ff=20,
    n_layer=2,
    n_head=2,
    n_embd_out=32,
    eps=2.0**-20,
    image_mean=(0.5, 0.5, 0.5),
    image_std=(0.5, 0.5, 0.5),
    max_crops=6,
    pool=2,
)
MEL = MelHParams(
    sample_rates=(16000, 8000),
    window_lengths=(400, 200),
    hop_lengths=(160, 80),
    fft_sizes=(512, 256),
    preemphasis=0.96875,
    scale=32768.0,
    max_hz=7690.0,
    floor=1.0,
)
AUDIO = AudioHParams(
    n_mel=80,
    n_embd=16,
    n_ff=24,
    n_layer=1,
    n_head=2,
    n_embd_out=32,
    eps=2.0**-16,
    subsampling=8,
    chunk_size=500,
    conv_kernel_size=3,
    bias_distance=20,
    n_conv=8,
    mel=MEL,
)
TOKENIZER: dict[Key, Any] = {
    keys.Tokenizer.MODEL: "gpt2",
    keys.Tokenizer.PRE: "gpt-4o",
    keys.Tokenizer.TOKENS: TOKENS,
    keys.Tokenizer.TOKEN_TYPES: TOKEN_TYPES,
    keys.Tokenizer.MERGES: MERGES,
    keys.Tokenizer.BOS_ID: TOKENS.index("<|endoftext|>"),
    keys.Tokenizer.EOS_ID: TOKENS.index("<|endoftext|>"),
    keys.Tokenizer.EOT_ID: TOKENS.index("<|end|>"),
    keys.Tokenizer.ADD_BOS: False,
}


def part(
    metadata: Mapping[Key, Any],
    table: TensorTable,
    *,
    matrix_type: GGMLType = GGMLType.F32,
    types: Mapping[str, str] | None = None,
    tensors: Mapping[str, Tensor | None] | None = None,
) -> bytes:
    """A part with these keys and tensors.

    Args:
        metadata: keys and values.
        table: tensors to write, filled with ones (quantised: zeros).
        matrix_type: type of the matrices.
        types: value types that differ from the keys' own.
        tensors: tensors to write instead of the table's, or None to leave one out.
    """
    types, tensors = types or {}, tensors or {}
    entries = [
        entry(key, types.get(key, key.type_name if isinstance(key, Key) else ""), value)
        for key, value in metadata.items()
    ]
    written = {}
    for name, spec in table.items():
        written[name] = f32(name, spec.shape)
        if spec.kind == "matrix" and matrix_type is not GGMLType.F32:
            shape = (*spec.shape[:-1], matrix_type.padded(spec.shape[-1]))
            n_bytes = int(np.prod(shape[:-1])) * matrix_type.row_bytes(shape[-1])
            written[name] = Tensor(name, shape, int(matrix_type), bytes(n_bytes))
    merged = written | dict(tensors)
    return gguf(entries, [tensor for tensor in merged.values() if tensor is not None])


def decoder_bytes(
    changes: Mapping[Key, Any] | None = None,
    *,
    h: DecoderHParams = DECODER,
    leave_out: Sequence[str] = (),
    **kwargs: Any,
) -> bytes:
    metadata = {**h.to_metadata(), **TOKENIZER, **(changes or {})}
    kept = {key: value for key, value in metadata.items() if key not in leave_out}
    return part(kept, decoder_tensors(h), **kwargs)


def foreign_decoder_bytes(changes: Mapping[Key, Any] | None = None, **kwargs: Any) -> bytes:
    """A decoder as llama.cpp's own converter would write it."""
    own = [key for key in DECODER.to_metadata() if key.startswith("phi4mm.")]
    never = [keys.Decoder.ROPE_SCALING_TYPE, keys.Decoder.N_VOCAB]
    swa = {keys.Decoder.SLIDING_WINDOW: 262144, keys.Tokenizer.EOS_ID: TOKENS.index("<|end|>")}
    leave_out = [*own, *never, *kwargs.pop("leave_out", ())]
    return decoder_bytes({**swa, **(changes or {})}, leave_out=leave_out, **kwargs)


def mmproj_bytes(
    changes: Mapping[Key, Any] | None = None,
    *,
    vision: VisionHParams | None = VISION,
    audio: AudioHParams | None = AUDIO,
    bundle_id: str | None = BUNDLE_ID,
    leave_out: Sequence[str] = (),
    **kwargs: Any,
) -> bytes:
    metadata = {**mmproj_metadata(vision, audio, bundle_id), **(changes or {})}
    kept = {key: value for key, value in metadata.items() if key not in leave_out}
    return part(kept, mmproj_tensors(vision, audio), **kwargs)


def adapter(
    name: Any = "vision", rank: int = 4, bundle_id: str | None = BUNDLE_ID
) -> AdapterHParams:
    return AdapterHParams(name=name, alpha=2.0 * rank, rank=rank, bundle_id=bundle_id)


def adapter_bytes(
    h: AdapterHParams,
    changes: Mapping[Key, Any] | None = None,
    *,
    decoder: DecoderHParams = DECODER,
    leave_out: Sequence[str] = (),
    **kwargs: Any,
) -> bytes:
    metadata = {**h.to_metadata(), **(changes or {})}
    kept = {key: value for key, value in metadata.items() if key not in leave_out}
    return part(kept, adapter_tensors(h, decoder), **kwargs)


def write_bundle(folder: Path, **parts: bytes | None) -> Path:
    """Write a whole bundle; a keyword replaces a part, or leaves it out (None)."""
    folder.mkdir(exist_ok=True)
    whole: dict[str, bytes | None] = {
        "decoder": decoder_bytes(),
        "mmproj": mmproj_bytes(),
        "vision": adapter_bytes(adapter("vision")),
        "speech": adapter_bytes(adapter("speech", rank=5)),
    }
    for name, data in (whole | parts).items():
        if data is not None:
            (folder / f"{name}.gguf").write_bytes(data)
    return folder


def with_fields(h: Any, **changes: Any) -> Any:
    return replace(h, **changes)
