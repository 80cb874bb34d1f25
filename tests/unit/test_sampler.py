"""Sampling: what is kept, how often it is drawn, and that a seed repeats it."""

import numpy as np
import pytest

from phi4mm.engine.parameters import SamplingParams
from phi4mm.engine.sampler import Sampler
from phi4mm.errors import InputError

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def draw(n=4000, logits=LOGITS, **settings):
    """Fraction of draws by token."""
    sampler = Sampler(SamplingParams(seed=1, **settings))
    return np.bincount([sampler.sample(logits) for _ in range(n)], minlength=len(logits)) / n


def test_temperature_zero_takes_the_most_likely():
    assert Sampler(SamplingParams()).sample(LOGITS) == 1


def test_temperature_one_draws_as_the_model_says():
    assert draw(temperature=1.0) == pytest.approx([0.1, 0.4, 0.2, 0.3], abs=0.03)


def test_temperature_sharpens():
    expected = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    assert draw(temperature=0.5) == pytest.approx(expected / expected.sum(), abs=0.03)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.35}, {1}),
        ({"top_p": 0.65}, {1, 3}),
        ({"min_p": 0.6}, {1, 3}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "min_p": 0.7}, {1, 3}),
        ({}, {0, 1, 2, 3}),
    ],
)
def test_cuts_keep_the_right_candidates(settings, kept):
    assert set(np.flatnonzero(draw(n=500, temperature=1.0, **settings))) == kept


def test_a_seed_repeats_the_draws():
    settings = SamplingParams(temperature=1.0, seed=7)
    first, second = Sampler(settings), Sampler(settings)
    assert [first.sample(LOGITS) for _ in range(50)] == [second.sample(LOGITS) for _ in range(50)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("top_k", -1), ("top_p", 0.0),
        ("top_p", 1.1), ("min_p", -0.1), ("min_p", 1.5), ("seed", -1), ("seed", 2**64),
        ("max_tokens", 0),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"{field} is"):
        SamplingParams(**{field: value})
