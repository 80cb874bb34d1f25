"""Embeddings kept in a folder: found again, bounded, and never believed when spoiled."""

import os

import numpy as np
import pytest

from phi4mm import SamplingParams, user_message
from phi4mm.engine.embedding_store import EmbeddingStore
from phi4mm.engine.loading import loaded_engine
from phi4mm.engine.parameters import EngineParams
from phi4mm.modelfile.bundle import Bundle
from phi4mm.prompt.chunk import PromptBuilder
from phi4mm.prompt.tokenizer import Tokenizer


def test_embeddings_outlive_the_process(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    EmbeddingStore(tmp_path, "encoder", 10_000).put(("a", None), rows)
    store = EmbeddingStore(tmp_path, "encoder", 10_000)
    np.testing.assert_array_equal(store.get(("a", None), 3), rows)
    assert store.get(("a", "speech"), 3) is None
    assert store.get(("b", None), 3) is None
    assert store.get(("a", None), 4) is None
    assert EmbeddingStore(tmp_path, "another", 10_000).get(("a", None), 3) is None


@pytest.mark.parametrize("contents", [b"", b"x" * 300, b"\x93NUMPY\x01\x00"])
def test_a_spoiled_file_is_no_embedding(tmp_path, contents):
    store = EmbeddingStore(tmp_path, "encoder", 10_000)
    store.put(("a", None), np.zeros((3, 4), np.float32))
    (file,) = tmp_path.iterdir()
    file.write_bytes(contents)
    assert store.get(("a", None), 3) is None


def test_the_files_used_least_recently_are_dropped(tmp_path):
    store = EmbeddingStore(tmp_path, "encoder", 1500)
    rows = np.zeros((10, 10), np.float32)  # 528 bytes
    for at, name in enumerate("ab"):
        store.put((name, None), rows)
        for file in tmp_path.iterdir():
            os.utime(file, (at, at))
    store.get(("a", None), 10)
    store.put(("c", None), rows)
    assert [store.get((name, None), 10) is not None for name in "abc"] == [True, False, True]


def test_a_picture_is_not_encoded_again_after_a_restart(bundle_dir, media_dir, tmp_path):
    with Bundle.open(bundle_dir("tiny")) as bundle:
        tokenizer = Tokenizer(bundle.decoder.file.metadata)
        prompt = PromptBuilder(bundle, tokenizer).chat(
            [user_message("?", images=[media_dir / "i150x333.png"])]
        )
        params = EngineParams(n_threads=1, encoder_cache_dir=tmp_path / "cache")
        answers = []
        for _ in range(2):
            with loaded_engine(bundle, params, tokenizer) as engine:
                events = list(engine.generate(prompt, SamplingParams(max_tokens=4)))
                answers.append([event.token_ids for event in events])
                lookups = engine.encoder_lookups
        assert lookups == (1, 0)
        assert answers[0] == answers[1]
