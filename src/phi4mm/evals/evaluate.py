"""Asks a model every item of an evaluation, and scores the answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phi4mm.api import Phi4MM
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import InputError
from phi4mm.evals.answer_scores import SCORES
from phi4mm.evals.answers_file import Answer, AnswersFile
from phi4mm.evals.manifest import ClipItem, Item, QuestionItem, key_of
from phi4mm.evals.request import messages_of
from phi4mm.evals.statistic import Estimate
from phi4mm.evals.word_errors import Normaliser, WordErrors, WordScorer
from phi4mm.progress import Progress

Task = Literal["wer", "pictures"]


@dataclass(frozen=True, slots=True)
class Speech:
    """Word errors of clips.

    Attributes:
        wer: of all clips together, and by language; empty if none was transcribed.
        errors: counts behind the rate of all.
        n_items: clips that were transcribed.
        failed: ids of those that could not be, and why; they are in no rate.
        rtf: seconds of computing per second of sound.
    """

    wer: Mapping[str, float]
    errors: WordErrors
    n_items: int
    failed: Mapping[str, str]
    rtf: float


@dataclass(frozen=True, slots=True)
class Pictures:
    """Scores of answers about pictures.

    Attributes:
        scores: mean score of each metric, with its standard error.
        n_items: questions that were answered.
        failed: ids of those that could not be, and why; they are in no mean.
        seconds: mean time of an answer.
    """

    scores: Mapping[str, Estimate]
    n_items: int
    failed: Mapping[str, str]
    seconds: float


def ask(
    model: Phi4MM,
    items: Sequence[Item],
    max_tokens: int,
    kept: AnswersFile | None = None,
    progress: Progress | None = None,
) -> dict[str, Answer]:
    """Answers by the items' keys, each the most likely token after token.

    Args:
        model: answers.
        items: what to ask; what ``kept`` has an answer to is not asked again.
        max_tokens: longest answer.
        kept: where answers go as they come.
        progress: told about every item.
    """
    answers = dict(kept.answers) if kept is not None else {}
    for done, item in enumerate(items, start=1):
        key = key_of(item)
        if key not in answers or answers[key].error is not None:
            answers[key] = _ask(model, item, key, max_tokens)
            if kept is not None:
                kept.add(answers[key])
        if progress is not None:
            progress(done, len(items))
    return answers


def _ask(model: Phi4MM, item: Item, key: str, max_tokens: int) -> Answer:
    """One answer; what the item itself makes impossible is an answer too."""
    began = time.perf_counter()
    try:
        events = list(model.generate(messages_of(item), SamplingParams(max_tokens=max_tokens)))
    except InputError as error:
        return Answer(item.id, key, "", 0.0, 0.0, str(error))
    text = "".join(event.text for event in events).strip()
    seconds = time.perf_counter() - began
    return Answer(item.id, key, text, seconds, _sound_s(model, events[-1].usage.n_audio))


def _sound_s(model: Phi4MM, n_tokens: int) -> float:
    audio = model.bundle.audio
    if audio is None:
        return 0.0
    return n_tokens * audio.subsampling * audio.mel.hop_lengths[0] / audio.mel.sample_rates[0]


def score_clips(
    items: Iterable[ClipItem], answers: Mapping[str, Answer], normaliser: Normaliser
) -> Speech:
    """Word error rates.

    Raises:
        InputError: the extra ``eval`` is not installed.
    """
    scorer = WordScorer(normaliser)
    by_language: dict[str, list[WordErrors]] = {}
    given: list[Answer] = []
    failed = {}
    for item in items:
        answer = answers[key_of(item)]
        if answer.error is not None:
            failed[item.id] = answer.error
            continue
        given.append(answer)
        errors = scorer.count(item.text, answer.text, item.language)
        by_language.setdefault(item.language, []).append(errors)
    total = WordErrors.total(errors for group in by_language.values() for errors in group)
    rates = {"all": total.rate} if given else {}
    rates |= {name: WordErrors.total(group).rate for name, group in sorted(by_language.items())}
    sound_s = sum(answer.media_s for answer in given)
    rtf = sum(answer.seconds for answer in given) / sound_s if sound_s else 0.0
    return Speech(rates, total, len(given), failed, rtf)


def score_pictures(items: Iterable[QuestionItem], answers: Mapping[str, Answer]) -> Pictures:
    """Mean scores."""
    by_metric: dict[str, list[float]] = {}
    seconds, failed = [], {}
    for item in items:
        answer = answers[key_of(item)]
        if answer.error is not None:
            failed[item.id] = answer.error
            continue
        seconds.append(answer.seconds)
        score = SCORES[item.metric](answer.text, item.answers)
        by_metric.setdefault(item.metric, []).append(score)
    means = {name: Estimate.of(np.array(values)) for name, values in sorted(by_metric.items())}
    mean_s = sum(seconds) / len(seconds) if seconds else 0.0
    return Pictures(means, len(seconds), failed, mean_s)
