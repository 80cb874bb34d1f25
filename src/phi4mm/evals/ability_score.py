"""How well a model knows what it was taught, and what its adapters have to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from phi4mm.evals.ability import Ability, Kind
from phi4mm.evals.answer_scores import SCORES, edit_distance
from phi4mm.evals.answers_file import Answer, AnswersFile
from phi4mm.evals.interval import Interval, rate_interval, share_interval
from phi4mm.evals.manifest import ClipItem, Item, key_of
from phi4mm.evals.slots import Asked, Said, SlotAsker, ask_side_by_side
from phi4mm.progress import Progress, counter

AdapterUse = Literal["on", "off", "both"]


@dataclass(frozen=True, slots=True)
class AbilityScore:
    """How well a model knows one thing.

    Attributes:
        name: the ability's.
        title: the same, for people.
        kind: questions have a share of right answers, clips a word error rate.
        n_items: items in the set.
        bar: what is to be reached, if anything.
        score: as the model answers; None if it was not asked so.
        is_reached: whether the score clears the bar; None where there is no bar or no score.
        score_off: with its adapter switched off; None if it has none or was not asked so.
        failed: ids of items that could not be asked, and why; they are in no score.
    """

    name: str
    title: str
    kind: Kind
    n_items: int
    bar: float | None
    score: Interval | None
    is_reached: bool | None
    score_off: Interval | None
    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer.

    Attributes:
        id: the item's.
        is_adapter_on: whether the model answered as it is meant to.
        right: the right answer, or the words of the clip.
        said: the answer.
        n_errors: wrong words of a clip; of a question 0 if it is right, else 1.
        n_words: words of a clip; of a question 1.
        error: why there is no answer; None if there is.
    """

    id: str
    is_adapter_on: bool
    right: str
    said: str
    n_errors: int
    n_words: int
    error: str | None


def ask_abilities(
    askers: Sequence[SlotAsker],
    abilities: Sequence[Ability],
    use: AdapterUse,
    kept: AnswersFile | None = None,
    progress: Progress | None = None,
) -> list[tuple[Ability, list[Judged]]]:
    """Ask the items of every ability, as they are meant to be, without the adapter, or both.

    Where nothing has an adapter, there is nothing to switch off.

    Args:
        askers: one or more; each asks its share of every ability.
        abilities: what to ask.
        use: with the adapter, without it, or once each.
        kept: where answers go as they come; what it has an answer to is not asked again.
        progress: told about every item.
    """
    runs = [
        (ability, is_on)
        for ability in abilities
        for is_on in (True, False)
        if use in ("both", "on" if is_on else "off") and (is_on or ability.adapter is not None)
    ]
    said = {} if kept is None else _kept_answers(kept)
    every = list(_asked(runs, 0, 1))
    advance = counter(len(every), progress)
    advance(sum(_key(one) in said for one in every))

    def tell(asked: Asked, one: Said) -> None:
        said[_key(asked)] = one
        advance(1)
        if kept is not None:
            kept.add(Answer(asked.item.id, _key(asked), one.text, one.seconds, error=one.error))

    parts = [
        [one for one in _asked(runs, n, len(askers)) if _key(one) not in said]
        for n in range(len(askers))
    ]
    ask_side_by_side(askers, parts, tell)
    judged: dict[str, list[Judged]] = {ability.name: [] for ability, _ in runs}
    for run in runs:
        judged[run[0].name] += [
            judge(one.item, said[_key(one)], run[1]) for one in _asked([run], 0, 1)
        ]
    return [(ability, judged[ability.name]) for ability in abilities if ability.name in judged]


def _asked(runs: Sequence[tuple[Ability, bool]], share: int, n_shares: int) -> Iterator[Asked]:
    """A share of the items of every run.

    Runs with the same adapter follow each other, since a step computes those of one adapter; an
    item's two runs are in the same share, since its media are encoded for the first alone.
    """
    for ability, is_on in sorted(runs, key=lambda run: (run[0].adapter or "", not run[1])):
        for item in ability.items[share::n_shares]:
            yield Asked(item, ability.max_tokens, "auto" if is_on else None)


def _key(asked: Asked) -> str:
    """Tells what was asked, and how, from anything else."""
    use = "on" if asked.adapter == "auto" else "off"
    return f"{key_of(asked.item)}-{asked.max_tokens}-{use}"


def _kept_answers(kept: AnswersFile) -> dict[str, Said]:
    """Those that are answers; what failed is asked again."""
    return {
        key: Said(answer.text, answer.seconds)
        for key, answer in kept.answers.items()
        if answer.error is None
    }


def judge(item: Item, said: Said, is_adapter_on: bool) -> Judged:
    """Compare an answer with what is right."""
    if isinstance(item, ClipItem):
        right, words = item.text, spoken_words(item.text)
        n_errors, n_words = edit_distance(words, spoken_words(said.text)), len(words)
    else:
        right, n_words = item.answers[0], 1
        n_errors = int(SCORES[item.metric](said.text, item.answers) < 1)
    return Judged(item.id, is_adapter_on, right, said.text, n_errors, n_words, said.error)


def spoken_words(text: str) -> list[str]:
    """Words of a transcript without case and signs; every digit is one, as it is spoken as one."""
    plain = "".join(char if char.isalnum() else " " for char in text.casefold())
    return [unit for word in plain.split() for unit in (list(word) if word.isdecimal() else [word])]


def score_ability(ability: Ability, judged: Sequence[Judged]) -> AbilityScore:
    """The scores of one ability with their intervals."""
    score = _interval(ability.kind, [one for one in judged if one.is_adapter_on])
    return AbilityScore(
        name=ability.name,
        title=ability.title,
        kind=ability.kind,
        n_items=len(ability.items),
        bar=ability.bar,
        score=score,
        is_reached=None if score is None else ability.is_reached(score.value),
        score_off=_interval(ability.kind, [one for one in judged if not one.is_adapter_on]),
        failed={one.id: one.error for one in judged if one.error is not None},
    )


def _interval(kind: Kind, judged: Sequence[Judged]) -> Interval | None:
    answered = [one for one in judged if one.error is None]
    if not answered:
        return None
    errors, words = zip(*((one.n_errors, one.n_words) for one in answered), strict=True)
    if kind == "clips":
        return rate_interval(errors, words)
    return share_interval(len(answered) - sum(errors), len(answered))
