"""A greedy answer that outgrows the original context equals a full forward pass at every step."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.sizes import SIZES
from parity.fixtures import OpenModel
from parity.goldens import MAX_LOGIT_ERROR, NAMES, difference, load
from phi4mm import SamplingParams, user_message
from phi4mm.engine.sampler import Sampler


@pytest.mark.parametrize("name", NAMES)
def test_generation_across_the_original_context(
    open_model: OpenModel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    greedy, n_ctx_orig = load(name)[1], SIZES[name].n_ctx_orig
    steps = record_logits(monkeypatch)
    sampling = SamplingParams(max_tokens=len(greedy.tokens))
    events = list(open_model(name).generate([user_message(greedy.user)], sampling))

    assert events[0].usage.n_prompt == greedy.n_prompt < n_ctx_orig
    assert [token for event in events for token in event.token_ids] == greedy.tokens
    assert difference(np.stack(steps), greedy.steps) <= MAX_LOGIT_ERROR
    # The cache is computed anew exactly once, when the first position beyond is needed.
    refilled = [event.usage.n_refilled for event in events]
    crossing = n_ctx_orig - greedy.n_prompt + 1
    assert not any(refilled[:crossing])
    assert refilled[crossing] > 0
    assert refilled[crossing:] == [refilled[crossing]] * (len(events) - crossing)


def record_logits(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The logits that each token is sampled from, as they come."""
    steps: list[np.ndarray] = []
    sample = Sampler.sample

    def keep(self: Sampler, logits: np.ndarray) -> int:
        steps.append(logits.copy())
        return sample(self, logits)

    monkeypatch.setattr(Sampler, "sample", keep)
    return steps
