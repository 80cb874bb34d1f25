"""Logits of every case, from files on disk to the last layer, against the reference.

F32 weights and an F32 cache.  The layouts differ in names and files alone, so the second one needs
a case of each kind only.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.answer import logits_of
from parity.fixtures import BundleDir, OpenModel
from parity.goldens import MAX_LOGIT_ERROR, NAMES, cases
from phi4mm import Phi4MM

HF_CASES = ("text_base", "text_vision", "text_speech", "image_audio_text", "a16000_8000")
CASES = [
    *((name, "ms", case) for name in NAMES for case in cases(name)),
    *((name, "hf", case) for name in NAMES for case in HF_CASES),
]


@pytest.mark.parametrize(("name", "layout", "case"), CASES)
def test_logits_match_the_reference(
    open_model: OpenModel, media_dir: Path, name: str, layout: str, case: str
) -> None:
    golden = cases(name)[case]
    logits = logits_of(open_model(name, layout), golden, media_dir)
    assert logits.shape[0] == golden.n_tokens
    assert golden.logit_error(logits) <= MAX_LOGIT_ERROR
    assert golden.n_wrong_choices(logits) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_without_media_uses_no_adapter(open_model: OpenModel, name: str) -> None:
    golden = cases(name)["text_base"]
    assert golden.logit_error(open_model(name).logits(golden.prompt)) <= MAX_LOGIT_ERROR


def test_two_threads_answer_as_one(bundle_dir: BundleDir, media_dir: Path) -> None:
    golden = cases("tiny")["a16000_8000"]
    with Phi4MM(bundle_dir("tiny"), n_threads=2, kv_type="f32") as model:
        assert golden.logit_error(logits_of(model, golden, media_dir)) <= MAX_LOGIT_ERROR
