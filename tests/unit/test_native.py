"""Models and contexts on a tiny random decoder: loading, computing, and failing cleanly."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoder import (  # noqa: F401 (fixtures)
    N_CTX_ORIG,
    N_EMBD,
    N_LAYER,
    N_VOCAB,
    PROMPT,
    Floats,
    adapter_path_fixture,
    all_logits,
    context_fixture,
    context_params,
    model_fixture,
    model_path_fixture,
    tensors_fixture,
    write_decoder,
)

from phi4mm.errors import InputError, NativeError
from phi4mm.native.batch import Batch
from phi4mm.native.device import Offload
from phi4mm.native.library import load
from phi4mm.native.llama import Adapter, Context, Model


def test_a_model_tells_its_sizes(model: Model) -> None:
    assert (model.n_vocab, model.n_embd, model.n_layer) == (N_VOCAB, N_EMBD, N_LAYER)
    assert model.n_ctx_train == 4 * N_CTX_ORIG
    assert model.description.startswith("phi3")


@pytest.mark.parametrize(
    "content", [None, b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 64, bytes(range(256)) * 8]
)
def test_a_file_that_is_no_model_is_an_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NativeError, match=r"llama_model_load_from_file failed: \w+"):
        Model(path)


def test_a_truncated_model_is_an_error(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(model_path.read_bytes()[: model_path.stat().st_size // 2])
    with pytest.raises(NativeError, match="not within the file bounds"):
        Model(path)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NativeError):
        Model(tmp_path)


def test_reading_equals_mapping(model: Model, model_path: Path) -> None:
    with Context(model, context_params()) as mapped:
        expected = all_logits(mapped)
    with (
        Model(model_path, offload=Offload(devices=()), use_mmap=False) as read,
        Context(read, context_params()) as context,
    ):
        np.testing.assert_array_equal(all_logits(context), expected)


def test_devices_are_checked(model_path: Path) -> None:
    with pytest.raises(InputError, match=r"no device 'warp', expected one of .*CPU"):
        Model(model_path, offload=Offload(devices=("warp",)))


def test_layers_on_a_missing_gpu_are_refused(model_path: Path) -> None:
    if load().lib.llama_supports_gpu_offload():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match=r"n_gpu_layers is 1, but .* finds no GPU"):
        Model(model_path, offload=Offload(n_gpu_layers=1))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_handles_close_in_any_order_and_twice(
    order: tuple[int, int, int], model_path: Path, adapter_path: Path
) -> None:
    model = Model(model_path)
    adapter = Adapter(model, adapter_path)
    context = Context(model, context_params())
    context.set_adapters([(adapter, 1.0)])
    all_logits(context)
    handles = (model, adapter, context)
    for i in (*order, *order):
        handles[i].close()
    assert all(handle.is_closed for handle in handles)
    for use in (lambda: model.n_embd, lambda: context.n_ctx_seq, lambda: adapter.pointer):
        with pytest.raises(NativeError, match=r"used after close\(\)"):
            use()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_threads": 0}, "n_threads is 0, expected at least 1"),
        ({"n_ubatch": 65}, "n_batch is 64, expected at least 65 and at most 256"),
        ({"n_batch": 257}, "n_batch is 257, expected at least 64 and at most 256"),
        ({"n_seq_max": 4, "n_outputs_max": 3}, "n_outputs_max is 3, expected at least 4"),
        ({"n_outputs_max": 65}, "n_outputs_max is 65, expected at least 1 and at most 64"),
        ({"type_k": "q4_k"}, "type_k is 'q4_k', expected one of f32, f16, q8_0"),
        ({"flash_attn": "yes"}, "flash_attn is 'yes', expected one of on, off, auto"),
        ({"flash_attn": "on"}, "flash_attn is on, which rounds an f32 cache to f16"),
        ({"type_v": "q8_0"}, "type_v is q8_0, which needs flash attention, and type_k f16 or q8_0"),
        ({"type_k": "f16", "type_v": "q8_0", "flash_attn": "off"}, "which needs flash attention"),
    ],
)
def test_parameters_the_library_would_clamp_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        context_params(**changes)


def test_embeddings_equal_the_tokens_they_belong_to(
    context: Context, tensors: dict[str, Floats]
) -> None:
    expected = all_logits(context)
    context.kv_remove(0)
    context.decode(Batch.of_sequence(tensors["token_embd.weight"][PROMPT], logits="all"))
    np.testing.assert_array_equal(context.logits(range(len(PROMPT))), expected)


def test_tokens_and_embeddings_mix(context: Context, tensors: dict[str, Floats]) -> None:
    expected = all_logits(context)
    context.kv_remove(0)
    embeddings = tensors["token_embd.weight"][PROMPT]
    for start, rows in ((0, PROMPT[:10]), (10, embeddings[10:30]), (30, PROMPT[30:])):
        context.decode(Batch.of_sequence(rows, start=start))
    np.testing.assert_allclose(context.logits([9])[0], expected[-1], atol=1e-5)


def test_interleaved_sequences_equal_each_alone(model: Model, context: Context) -> None:
    prompts = [PROMPT[:20], PROMPT[20:]]
    alone = []
    for prompt in prompts:
        alone.append(all_logits(context, prompt))
        context.kv_remove(0)
    with Context(model, context_params(n_seq_max=2)) as both:
        order = np.random.default_rng(3).permutation(np.repeat([0, 1], 20)).astype(np.int32)
        places = [np.flatnonzero(order == seq_id) for seq_id in (0, 1)]
        ids, positions = np.empty(40, np.int32), np.empty(40, np.int32)
        for prompt, place in zip(prompts, places, strict=True):
            ids[place], positions[place] = prompt, np.arange(20)
        both.decode(Batch(ids, positions, order, np.ones(40, np.bool_)))
        for place, expected in zip(places, alone, strict=True):
            np.testing.assert_allclose(both.logits(place.tolist()), expected, atol=1e-5)
        assert (both.kv_length(0), both.kv_length(1)) == (20, 20)
    assert np.abs(alone[0] - alone[1]).max() > 0.1


def test_only_rows_that_asked_have_logits(context: Context) -> None:
    context.decode(Batch.of_sequence(PROMPT, logits="last"))
    assert context.logits([39]).shape == (1, N_VOCAB)
    for row in (0, -1, 40):
        with pytest.raises(NativeError, match=f"row {row} asked for no logits"):
            context.logits([row])


def test_logits_are_copies(context: Context) -> None:
    first = all_logits(context)
    kept = first.copy()
    all_logits(context, PROMPT[::-1].copy())
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("cache_type", "flash_attn", "atol"),
    [("f16", "off", 0.05), ("f16", "on", 0.05), ("f16", "auto", 0.05), ("q8_0", "auto", 0.8)],
)
def test_smaller_caches_are_close(
    cache_type: str, flash_attn: str, atol: float, model: Model, context: Context
) -> None:
    params = context_params(type_k=cache_type, type_v=cache_type, flash_attn=flash_attn)
    with Context(model, params) as smaller:
        error = np.abs(all_logits(smaller) - all_logits(context)).max()
    assert 1e-3 < error < atol


def test_an_f32_cache_is_not_rounded(model: Model, context: Context) -> None:
    with Context(model, context_params(flash_attn="off")) as exact:
        np.testing.assert_array_equal(all_logits(context), all_logits(exact))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: Batch.of_sequence(np.zeros(65, np.int32)), "65 rows, expected at most 64"),
        (lambda: Batch.of_sequence(np.zeros(0, np.int32)), "no rows"),
        (lambda: Batch.of_sequence(np.zeros(3, np.int64)), "inputs are int64 of 1 dimensions"),
        (lambda: Batch.of_sequence(np.zeros((3, 5), np.float32)), "width 5, expected 128"),
        (lambda: Batch.of_sequence(PROMPT, start=-1), "position -1 is negative"),
        (lambda: Batch.of_sequence(PROMPT, start=5), "Y = X \\+ 1"),
        (lambda: Batch.of_sequence(PROMPT, start=4, seq_id=1), "invalid seq_id"),
        (lambda: Batch.of_sequence(PROMPT + 300, start=4), r"invalid token\[0\]"),
        (
            lambda: Batch(PROMPT, PROMPT, np.zeros(3, np.int32), np.zeros(40, np.bool_)),
            r"seq_ids are int32 \(3,\), expected int32 \(40,\)",
        ),
    ],
)
def test_a_wrong_batch_is_refused_and_harms_nothing(
    batch: Any, message: str, context: Context
) -> None:
    expected = all_logits(context, PROMPT[:5])[-1]
    context.kv_remove(0, 4)
    with pytest.raises(NativeError, match=message):
        context.decode(batch())
    assert context.kv_length(0) == 4
    np.testing.assert_allclose(all_logits(context, PROMPT[4:5])[0], expected, atol=1e-5)


def test_more_logits_than_agreed_are_refused(model: Model) -> None:
    with (
        Context(model, context_params(n_outputs_max=2)) as context,
        pytest.raises(NativeError, match="3 rows that want logits, expected at most 2"),
    ):
        all_logits(context, PROMPT[:3])


def test_a_full_cache_is_an_error_and_stays_as_it_was(context: Context) -> None:
    for _ in range(4):
        context.decode(Batch.of_sequence(PROMPT, start=context.kv_length(0)))
    context.decode(Batch.of_sequence(np.zeros(60, np.int32), start=160))
    with pytest.raises(NativeError, match=r"returned 1: no room for 40 rows in 256 positions"):
        context.decode(Batch.of_sequence(PROMPT, start=220))
    assert context.kv_length(0) == 220
    context.decode(Batch.of_sequence(PROMPT[:36], start=220))


def test_a_sequence_out_of_range_is_refused(context: Context) -> None:
    for use in (context.kv_length, context.kv_remove, context.state_get):
        with pytest.raises(NativeError, match="sequence 1 is not in 0 to 0"):
            use(1)


def test_removed_positions_are_computed_anew(context: Context) -> None:
    expected = all_logits(context)
    context.kv_remove(0, 25)
    assert context.kv_length(0) == 25
    np.testing.assert_allclose(all_logits(context, PROMPT[25:]), expected[25:], atol=1e-5)
    context.kv_remove(0)
    assert context.kv_length(0) == 0


@pytest.mark.parametrize(
    ("asked", "rounded", "factors"),
    [(256, 256, "short"), (500, 512, "short"), (512, 512, "short"), (513, 768, "long")],
)
def test_the_rounded_size_per_sequence_chooses_the_rope_factors(
    asked: int,
    rounded: int,
    factors: str,
    model: Model,
    tensors: dict[str, Floats],
    tmp_path: Path,
) -> None:
    always = tensors[f"rope_factors_{factors}.weight"]
    both = {f"rope_factors_{name}.weight": always for name in ("short", "long")}
    path = write_decoder(tmp_path / "one.gguf", tensors | both)
    # Two sequences: their sum, which is beyond the original context, must not matter.
    with Context(model, context_params(n_ctx_seq=asked, n_seq_max=2)) as context:
        assert context.n_ctx_seq == rounded
        found = all_logits(context, seq_id=1)
    with Model(path) as one, Context(one, context_params()) as context:
        np.testing.assert_allclose(found, all_logits(context), atol=1e-5)


def test_the_rope_factors_matter(model: Model) -> None:
    with (
        Context(model, context_params()) as short,
        Context(model, context_params(n_ctx_seq=768)) as long,
    ):
        assert np.abs(all_logits(short) - all_logits(long)).max() > 1e-2
