"""What changes a context beyond its own rows: adapters, saved states, and being stopped."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_decoder import (  # noqa: F401 (fixtures)
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

from phi4mm.errors import Cancelled, NativeError
from phi4mm.native.abort import AbortFlag
from phi4mm.native.batch import Batch
from phi4mm.native.library import load
from phi4mm.native.llama import Adapter, Context, Model


def test_adapters_change_logits_and_none_restores_the_base(
    model: Model, adapter_path: Path, context: Context
) -> None:
    base = all_logits(context)
    with Adapter(model, adapter_path) as adapter:
        found = {}
        for scale in (1.0, 0.5):
            context.kv_remove(0)
            context.set_adapters([(adapter, scale)])
            found[scale] = all_logits(context)
        context.kv_remove(0)
        context.set_adapters([])
        np.testing.assert_array_equal(all_logits(context), base)
    assert np.abs(found[1.0] - base).max() > 0.1
    assert np.abs(found[1.0] - found[0.5]).max() > 0.1


def test_an_adapter_equals_its_merged_weights(
    model: Model, adapter_path: Path, context: Context, tensors: dict[str, Floats], tmp_path: Path
) -> None:
    parts = {t.name: t.data for t in gguf.GGUFReader(adapter_path).tensors}
    merged = dict(tensors)
    for name in tensors:
        if f"{name}.lora_a" in parts:
            product = parts[f"{name}.lora_b"] @ parts[f"{name}.lora_a"]
            merged[name] = tensors[name] + np.float32(2.0) * product  # alpha / rank
    with (
        Model(write_decoder(tmp_path / "merged.gguf", merged)) as other,
        Context(other, context_params()) as expected,
    ):
        want = all_logits(expected)
    with Adapter(model, adapter_path) as adapter:
        context.set_adapters([(adapter, 1.0)])
        np.testing.assert_allclose(all_logits(context), want, atol=1e-4)


def test_a_closed_adapter_stays_while_a_context_computes_with_it(
    model: Model, adapter_path: Path, context: Context
) -> None:
    adapter = Adapter(model, adapter_path)
    context.set_adapters([(adapter, 1.0)])
    expected = all_logits(context)
    adapter.close()
    context.kv_remove(0)
    np.testing.assert_array_equal(all_logits(context), expected)
    context.set_adapters([])
    with pytest.raises(NativeError, match="llama_adapter_lora failed: used after close"):
        context.set_adapters([(adapter, 1.0)])


def test_wrong_adapters_are_refused(
    model: Model, model_path: Path, adapter_path: Path, context: Context, tmp_path: Path
) -> None:
    with pytest.raises(NativeError, match=r"expect general\.type to be 'adapter'"):
        Adapter(model, model_path)
    with pytest.raises(NativeError, match="failed to open"):
        Adapter(model, tmp_path / "none.gguf")
    with Model(model_path) as other, Adapter(other, adapter_path) as foreign:
        with pytest.raises(NativeError, match="of another model"):
            context.set_adapters([(foreign, 1.0)])
        with (
            Context(other, context_params()) as own,
            pytest.raises(NativeError, match="given twice"),
        ):
            own.set_adapters([(foreign, 1.0), (foreign, 2.0)])


# State


def test_a_saved_state_is_restored_exactly(model: Model) -> None:
    with Context(model, context_params(n_seq_max=2)) as context:
        all_logits(context, seq_id=0)
        state = context.state_get(0)
        expected = all_logits(context, PROMPT[:5], seq_id=0)
        all_logits(context, PROMPT[::-1].copy(), seq_id=1)
        context.state_set(1, state)
        assert context.kv_length(1) == len(PROMPT)
        np.testing.assert_array_equal(all_logits(context, PROMPT[:5], seq_id=1), expected)


@pytest.mark.parametrize(("cache_type", "flash_attn"), [("f32", "off"), ("f16", "on")])
def test_a_copied_sequence_continues_as_its_source(
    cache_type: str, flash_attn: str, model: Model
) -> None:
    params = context_params(
        n_seq_max=3, type_k=cache_type, type_v=cache_type, flash_attn=flash_attn
    )
    with Context(model, params) as context:
        all_logits(context, seq_id=0)
        context.kv_copy(0, 2)
        context.kv_copy(0, 0)
        expected = all_logits(context, PROMPT[:5], seq_id=0)
        np.testing.assert_array_equal(all_logits(context, PROMPT[:5], seq_id=2), expected)
        context.kv_copy(1, 2)
        assert (context.kv_length(0), context.kv_length(2)) == (45, 0)


def test_a_wrong_state_leaves_an_empty_sequence(context: Context, model: Model) -> None:
    all_logits(context)
    state = context.state_get(0)
    for wrong in (b"", b"nonsense" * 9, state[:-1], state + b"x"):
        with pytest.raises(NativeError, match="llama_state_seq_set_data"):
            context.state_set(0, wrong)
        assert context.kv_length(0) == 0
    with (
        Context(model, context_params(type_k="f16")) as other,
        pytest.raises(NativeError, match="mismatched key type"),
    ):
        other.state_set(0, state)
    context.state_set(0, state)
    assert context.kv_length(0) == len(PROMPT)


# Stopping


def test_a_set_flag_stops_a_decode_and_harms_nothing(model: Model) -> None:
    flag = AbortFlag(load())
    with Context(model, context_params(), flag) as context:
        expected = all_logits(context, PROMPT)
        context.kv_remove(0, 20)
        flag.set()
        assert flag.is_set
        with pytest.raises(Cancelled):
            all_logits(context, PROMPT[20:])
        assert context.kv_length(0) == 20
        with pytest.raises(NativeError, match="row 0 asked for no logits"):
            context.logits([0])
        flag.clear()
        np.testing.assert_allclose(all_logits(context, PROMPT[20:]), expected[20:], atol=1e-5)


class StopsLater:
    """A flag that is set after the library has asked a number of times."""

    def __init__(self, n_questions: int) -> None:
        self.n_left = n_questions
        self.callback = load().ffi.callback("ggml_abort_callback", self._answer)
        self.data = load().ffi.NULL

    def _answer(self, _data: Any) -> bool:
        self.n_left -= 1
        return self.n_left < 0


def test_the_finished_pieces_of_a_stopped_decode_are_removed(model: Model) -> None:
    counter: Any = StopsLater(10**9)
    with Context(model, context_params(n_ubatch=8), counter) as context:
        all_logits(context, PROMPT[:8])
        n_questions = 10**9 - counter.n_left
        counter.n_left = 2 * n_questions + n_questions // 2
        with pytest.raises(Cancelled):
            all_logits(context, PROMPT[8:])
        assert counter.n_left == -1
        assert context.kv_length(0) == 8
        counter.n_left = 10**9
        found = all_logits(context, PROMPT[8:])
        context.kv_remove(0)
        np.testing.assert_allclose(found, all_logits(context)[8:], atol=1e-5)


def decode_without_end(context: Context) -> None:
    while True:
        context.decode(Batch.of_sequence(np.zeros(2048, np.int32), logits="none"))
        context.kv_remove(0)


def test_another_thread_can_stop_a_decode(model: Model) -> None:
    flag = AbortFlag(load())
    params = context_params(n_ctx_seq=2048, n_batch=2048, n_ubatch=512)
    with Context(model, params, flag) as context:
        timer = threading.Timer(0.02, flag.set)
        timer.start()
        with pytest.raises(Cancelled):
            decode_without_end(context)
        timer.join()
