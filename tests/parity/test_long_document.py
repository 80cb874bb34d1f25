"""A document of 30 000 tokens in a conversation that began with a few.

The model is a variant of the tiny one with a longer context and a single layer: then keys and
values depend on the token at their own position alone, so that a forward pass for the last position
takes no time in numpy, and is the reference.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from oracle.checkpoint import DATA, Tensors, draw_tensors, write_json, write_tensors
from oracle.sizes import PARTIAL_ROTARY, SIZES
from phi4mm import Phi4MM, SamplingParams, user_message
from phi4mm.chat.session import Session
from phi4mm.chat.stats import stats_lines
from phi4mm.convert import TYPES, PartTypes, convert_checkpoint
from phi4mm.prompt.chunk import TextChunk

LONG = replace(
    SIZES["tiny"], n_embd=128, n_head=2, n_head_kv=1, n_ff=256, n_layer=1, n_ctx_max=40960
)
N_CTX, N_DOCUMENT = 32768, 30_000
Array = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return draw_tensors(LONG)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """The tiny model's, with other sizes."""
    tiny: dict[str, Any] = json.loads((DATA / "tiny" / "ms" / "config.json").read_text())
    return tiny | {
        "hidden_size": LONG.n_embd,
        "intermediate_size": LONG.n_ff,
        "num_attention_heads": LONG.n_head,
        "num_key_value_heads": LONG.n_head_kv,
        "num_hidden_layers": LONG.n_layer,
        "max_position_embeddings": LONG.n_ctx_max,
    }


@pytest.fixture(scope="module")
def model(
    tensors: Tensors, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Phi4MM]:
    checkpoint, bundle = (tmp_path_factory.mktemp(name) for name in ("checkpoint", "bundle"))
    for source in (DATA / "tiny", DATA / "tiny" / "ms"):
        for file in source.glob("*.*"):
            shutil.copy(file, checkpoint)
    write_json(checkpoint / "config.json", config)
    write_tensors(tensors, LONG, checkpoint, "ms")
    f32 = TYPES["f32"]
    convert_checkpoint(checkpoint, bundle, types=PartTypes(f32, f32, f32))
    with Phi4MM(bundle, n_ctx=N_CTX, n_threads=2) as model:
        yield model


def last_log_probs(ids: list[int], tensors: Tensors, config: dict[str, Any], factors: str) -> Array:
    """Log probabilities after the last of these tokens, by the formulas of docs/model.md."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    block, n_head, n_dim = "model.layers.0", LONG.n_head, LONG.head_dim
    hidden = w["model.embed_tokens.weight"][ids]
    normed = rms_norm(hidden, w[f"{block}.input_layernorm.weight"])
    qkv = normed @ w[f"{block}.self_attn.qkv_proj.base_layer.weight"].T
    query, key, value = np.split(qkv, [n_head * n_dim, (n_head + LONG.n_head_kv) * n_dim], axis=1)
    key = rotated(key.reshape(-1, 1, n_dim), np.arange(len(ids)), config, factors)[:, 0]
    query = rotated(query[-1:].reshape(1, n_head, n_dim), np.array([len(ids) - 1]), config, factors)
    scores = query[0] @ key.T / math.sqrt(n_dim)  # (n_head, n)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    heads = weights @ value / weights.sum(axis=1, keepdims=True)
    out = hidden[-1] + w[f"{block}.self_attn.o_proj.base_layer.weight"] @ heads.reshape(-1)
    normed = rms_norm(out, w[f"{block}.post_attention_layernorm.weight"])
    gate, up = np.split(w[f"{block}.mlp.gate_up_proj.base_layer.weight"] @ normed, 2)
    out += w[f"{block}.mlp.down_proj.base_layer.weight"] @ (up * gate / (1 + np.exp(-gate)))
    logits = w["model.embed_tokens.weight"] @ rms_norm(out, w["model.norm.weight"])
    logits -= logits.max()
    return logits - np.log(np.exp(logits).sum())


def rms_norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * weight


def rotated(
    x: Array, positions: npt.NDArray[np.int64], config: dict[str, Any], factors: str
) -> Array:
    """Heads ``(n, n_head, n_dim)`` with their first dimensions turned by position."""
    n_rot = round(PARTIAL_ROTARY * LONG.head_dim)
    scale = LONG.n_ctx_max / LONG.n_ctx_orig
    magnitude = math.sqrt(1 + math.log(scale) / math.log(LONG.n_ctx_orig))
    stretch = np.array(config["rope_scaling"][f"{factors}_factor"])
    frequency = config["rope_theta"] ** (-np.arange(0, n_rot, 2) / n_rot) / stretch
    angle = positions[:, None, None] * frequency
    cos, sin = magnitude * np.cos(angle), magnitude * np.sin(angle)
    first, second, rest = np.split(x, [n_rot // 2, n_rot], axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def document(model: Phi4MM) -> str:
    """Some 30 000 tokens, no two sentences the same."""
    sentence = "in year {} the {} fox number {} jumps over the lazy dog of {}. "
    colours = ("brown", "red", "grey", "white", "black")
    length, text = len(model.tokenizer.encode(sentence)), ""
    for n in range(N_DOCUMENT // length + 1):
        text += sentence.format(1000 + n, colours[n % 5], n * 7919 % 10007, n * n % 9973)
    return model.tokenizer.decode(model.tokenizer.encode(text)[:N_DOCUMENT])


@pytest.mark.slow
def test_a_document_of_thirty_thousand_tokens(
    model: Phi4MM, tensors: Tensors, config: dict[str, Any]
) -> None:
    session = Session(
        model, lambda events, _: (event for event in events),
        SamplingParams(max_tokens=4, top_logprobs=20),
    )  # fmt: skip
    first = list(session.ask("Hello", print))
    assert "short RoPE factors" in "\n".join(stats_lines(session))
    n_before = first[-1].usage.n_prompt + first[-1].usage.n_generated

    text = document(model)
    asked = session.conversation.asking(user_message(text))
    events = list(session.ask(text, print))
    usage = events[-1].usage
    assert usage.n_text >= N_DOCUMENT
    assert usage.n_cached == usage.n_refilled == 0
    stats = "\n".join(stats_lines(session))
    assert f"outgrew the original context, {n_before} tokens were computed again" in stats
    assert f"of {N_CTX} tokens · long RoPE factors" in stats

    chunks = model.prompts.chat(asked.messages).chunks
    ids = [id_ for chunk in chunks if isinstance(chunk, TextChunk) for id_ in chunk.ids]
    top = dict(events[0].logprobs[0].top)
    right, wrong = (last_log_probs(ids, tensors, config, f) for f in ("long", "short"))
    assert top == pytest.approx({id_: right[id_] for id_ in top}, abs=0.02)
    assert max(abs(top[id_] - wrong[id_]) for id_ in top) > 0.1, "the test can fail"

    (*_, last) = session.ask("And the dog?", print)
    assert last.usage.n_cached > N_DOCUMENT
    assert last.usage.n_prompt - last.usage.n_cached < 30
    assert "RoPE:" not in "\n".join(stats_lines(session))
