"""A tiny random decoder and adapters as GGUF files, and what runs them in the native tests.

A test module imports the fixtures it uses; their names here end in ``_fixture``, so that a test's
parameters hide no import.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from phi4mm.native.batch import Batch
from phi4mm.native.llama import Context, Model
from phi4mm.native.params import ContextParams

Floats = NDArray[np.float32]

N_VOCAB, N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_LAYER = 300, 128, 4, 2, 192, 2
HEAD = N_EMBD // N_HEAD
N_ROT = 24
N_CTX_ORIG = 512
PROMPT = np.arange(40, dtype=np.int32) * 7 % N_VOCAB


def byte_tokens() -> list[str]:
    """The 256 single characters of a byte-level BPE vocabulary."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = (chr(256 + i) for i in itertools.count())
    return [chr(b) if b in visible else next(shifted) for b in range(256)]


def weights(seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Floats:
        return rng.standard_normal(shape, np.float32) * np.float32(0.15)

    tensors = {
        "token_embd.weight": normal(N_VOCAB, N_EMBD),
        "output_norm.weight": np.ones(N_EMBD, np.float32),
        "rope_factors_short.weight": np.ones(N_ROT // 2, np.float32),
        "rope_factors_long.weight": np.linspace(1, 8, N_ROT // 2, dtype=np.float32),
    }
    for i in range(N_LAYER):
        tensors |= {
            f"blk.{i}.attn_norm.weight": np.ones(N_EMBD, np.float32),
            f"blk.{i}.attn_qkv.weight": normal(N_EMBD + 2 * N_HEAD_KV * HEAD, N_EMBD),
            f"blk.{i}.attn_output.weight": normal(N_EMBD, N_EMBD),
            f"blk.{i}.ffn_norm.weight": np.ones(N_EMBD, np.float32),
            f"blk.{i}.ffn_up.weight": normal(2 * N_FF, N_EMBD),
            f"blk.{i}.ffn_down.weight": normal(N_EMBD, N_FF),
        }
    return tensors


def write_decoder(path: Path, tensors: dict[str, Floats]) -> Path:
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_context_length(4 * N_CTX_ORIG)
    writer.add_rope_scaling_orig_ctx_len(N_CTX_ORIG)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYER)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_ROT)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_attn_factors(1.19)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    specials = [f"<|{i}|>" for i in range(N_VOCAB - 256)]
    writer.add_token_list(byte_tokens() + specials)
    writer.add_token_types([1] * 256 + [3] * len(specials))
    writer.add_token_merges(["a b"])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    return finish(writer, path)


def write_adapter(path: Path, seed: int, rank: int = 8) -> Path:
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    for i in range(N_LAYER):
        for name, rows, cols in (("attn_output", N_EMBD, N_EMBD), ("ffn_down", N_EMBD, N_FF)):
            target = f"blk.{i}.{name}.weight"
            a = rng.standard_normal((rank, cols), np.float32) * np.float32(0.1)
            b = rng.standard_normal((rows, rank), np.float32) * np.float32(0.1)
            writer.add_tensor(f"{target}.lora_a", a)
            writer.add_tensor(f"{target}.lora_b", b)
    return finish(writer, path)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def context_params(**changes: Any) -> ContextParams:
    """Parameters for exact results, with these changes."""
    defaults = ContextParams(
        n_ctx_seq=256,
        n_threads=1,
        n_threads_batch=1,
        n_batch=64,
        n_ubatch=64,
        n_outputs_max=64,
        type_k="f32",
        type_v="f32",
    )
    return dataclasses.replace(defaults, **changes)


def all_logits(context: Context, ids: NDArray[np.int32] = PROMPT, seq_id: int = 0) -> Floats:
    """Logits after every id, appended to what the sequence holds."""
    start = context.kv_length(seq_id)
    context.decode(Batch.of_sequence(ids, start=start, seq_id=seq_id, logits="all"))
    return context.logits(range(len(ids)))


@pytest.fixture(scope="module", name="tensors")
def tensors_fixture() -> dict[str, Floats]:
    return weights(seed=1)


@pytest.fixture(scope="module", name="model_path")
def model_path_fixture(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Floats]
) -> Path:
    return write_decoder(tmp_path_factory.mktemp("native") / "decoder.gguf", tensors)


@pytest.fixture(scope="module", name="adapter_path")
def adapter_path_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("native") / "adapter.gguf", seed=2)


@pytest.fixture(scope="module", name="model")
def model_fixture(model_path: Path) -> Iterator[Model]:
    with Model(model_path) as model:
        yield model


@pytest.fixture(name="context")
def context_fixture(model: Model) -> Iterator[Context]:
    with Context(model, context_params()) as context:
        yield context
