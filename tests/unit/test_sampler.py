"""Sampling: what is kept, how often it is drawn, and that a seed repeats it."""

import numpy as np
import pytest

from phi4mm.engine.parameters import SamplingParams
from phi4mm.engine.sampler import Sampler, _candidates, _largest
from phi4mm.engine.stop_string import StopStrings
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
        ("max_tokens", 0), ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0), ("top_logprobs", 21),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"{field} is"):
        SamplingParams(**{field: value})


def most_likely(n=4, prompt_ids=(), **settings):
    """Greedy draws from the same logits."""
    sampler = Sampler(SamplingParams(**settings), prompt_ids)
    return [sampler.sample(LOGITS) for _ in range(n)]


def test_a_presence_penalty_is_taken_off_once():
    # 0.4, 0.3, 0.2, 0.1 at the start; e**-1 makes them 0.147, 0.110, 0.074, 0.037 once drawn
    assert most_likely(5, presence_penalty=1.0) == [1, 3, 2, 1, 1]


def test_a_frequency_penalty_is_taken_off_each_time():
    assert most_likely(5, frequency_penalty=1.0) == [1, 3, 2, 1, 3]


def test_a_repetition_penalty_counts_the_prompt():
    assert most_likely(1, prompt_ids=[1], repetition_penalty=2.0) == [3]
    assert most_likely(2, repetition_penalty=2.0) == [1, 3]


def test_a_bias_moves_a_token_up():
    assert most_likely(1, logit_bias=((0, 5.0),)) == [0]


def test_stages_leave_the_logits_as_they_are():
    before = LOGITS.copy()
    most_likely(logit_bias=((0, 5.0),), presence_penalty=1.0)
    np.testing.assert_array_equal(LOGITS, before)


def through(stops, pieces):
    """(text passed on, whether a stop string came)."""
    stream = StopStrings(stops)
    text = "".join(map(stream.push, pieces))
    return text + stream.flush(), stream.is_found


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["END"], "one END two", "one "),
        (["END"], "one EN", "one EN"),
        (["END", "e"], "on END e", "on "),
        (["aab"], "aaab", "a"),
        (["é!"], "né! x", "n"),
        ([], "anything", "anything"),
    ],
)
def test_stop_strings_are_found_however_the_text_is_cut(stops, text, expected):
    is_found = any(stop in text for stop in stops)
    for cut in range(len(text) + 1):
        assert through(stops, [text[:cut], text[cut:]]) == (expected, is_found)
    assert through(stops, list(text)) == (expected, is_found)


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.05}, {"min_p": 1e-9},
        {"top_p": 0.999999, "min_p": 1e-12},
    ],
)  # fmt: skip
def test_cuts_in_a_large_vocabulary_are_those_of_a_full_sort(settings):
    logits = np.random.default_rng(0).normal(scale=3, size=5000).astype(np.float32)
    params = SamplingParams(temperature=1.0, **settings)
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-probabilities)
    sums = (probabilities / probabilities.sum())[order].cumsum()
    n_top_p = int(np.searchsorted(sums, params.top_p)) + 1
    n_min_p = int((probabilities >= params.min_p).sum())
    assert set(_candidates(logits, params)) == set(order[: min(n_top_p, n_min_p)])


@pytest.mark.parametrize("n", [1, 2, 77, 78, 1000, 5000])
def test_the_largest_are_those_of_a_full_sort(n):
    logits = np.random.default_rng(0).integers(-40, 40, 5000).astype(np.float32)
    logits[::7] = -np.inf
    assert _largest(logits, n).tolist() == np.argsort(-logits, kind="stable")[:n].tolist()


@pytest.mark.parametrize("temperature", [0.001, 0.05, 1.0, 30.0])
def test_draws_from_a_large_vocabulary_are_as_likely_as_their_weights(temperature):
    logits = np.random.default_rng(0).normal(scale=1, size=1000).astype(np.float32)
    logits[5:900] = -np.inf
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    found = draw(n=4000, logits=logits, temperature=temperature)
    assert found == pytest.approx(weights / weights.sum(), abs=0.03)
    assert set(np.flatnonzero(found)) <= set(np.flatnonzero(weights))
    halves = weights[:500].sum() / weights.sum()
    assert found[:500].sum() == pytest.approx(halves, abs=0.03)


def test_a_draw_at_the_very_end_takes_the_last_that_has_a_weight(monkeypatch):
    logits = np.full(200, -np.inf, np.float32)
    logits[[3, 70]] = 0
    sampler = Sampler(SamplingParams(temperature=1.0))

    class Highest:
        def random(self):
            return 1.0

    monkeypatch.setattr(sampler, "_random", Highest())
    assert sampler.sample(logits) == 70
