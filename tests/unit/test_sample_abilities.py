"""What the built-in sample knows of a small held-out set, and that its adapters know it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sample_record import RECORD, Recorded, answer_set, of, share_right, trained_abilities

from phi4mm.cli.options import sample_bundle
from phi4mm.modelfile.bundle import Bundle

pytestmark = pytest.mark.slow

MEDIA = ("read", "speech", "spoken", "typed")
TEXT = ("facts_taught", "facts", "facts_reworded", "arithmetic", "tools")


@pytest.fixture(scope="module")
def answers() -> list[Recorded]:
    return answer_set()


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recorded(record: dict[str, Any]) -> list[Recorded]:
    return [Recorded(**{**entry, "tokens": tuple(entry["tokens"])}) for entry in record["answers"]]


def test_the_record_is_of_the_sample_that_ships(record: dict[str, Any]) -> None:
    with Bundle.open(sample_bundle()) as bundle:
        assert record["bundle_id"] == bundle.bundle_id, "run scripts/sample_bundle.py"


def test_answers_are_those_on_record(answers: list[Recorded], recorded: list[Recorded]) -> None:
    assert [(a.ability, a.id, a.is_adapter_on) for a in answers] == [
        (r.ability, r.id, r.is_adapter_on) for r in recorded
    ]
    for answer, right in zip(answers, recorded, strict=True):
        assert answer.tokens[: right.n_sure] == right.tokens[: right.n_sure], answer.id
        if right.is_sure:
            assert (answer.text, answer.n_errors) == (right.text, right.n_errors), answer.id


def test_most_of_the_record_is_beyond_doubt(recorded: list[Recorded]) -> None:
    """Otherwise the test above compares too little."""
    n_sure = sum(answer.n_sure for answer in recorded)
    assert n_sure >= len(recorded)


@pytest.mark.parametrize("ability", [*MEDIA, *TEXT])
def test_no_ability_is_worse_than_on_record(
    answers: list[Recorded], recorded: list[Recorded], ability: str
) -> None:
    sure = {answer.id for answer in of(recorded, ability, True) if answer.is_sure}
    found, right = (
        sum(answer.n_errors for answer in of(group, ability, True) if answer.id in sure)
        for group in (answers, recorded)
    )
    assert found <= right


@pytest.mark.parametrize("ability", MEDIA)
def test_an_adapter_makes_a_difference(answers: list[Recorded], ability: str) -> None:
    with_it, without = (of(answers, ability, is_on) for is_on in (True, False))
    assert [a.id for a in with_it] == [a.id for a in without]
    assert [a.tokens for a in with_it] != [a.tokens for a in without]


def test_without_its_adapter_a_trained_ability_collapses(
    answers: list[Recorded], record: dict[str, Any]
) -> None:
    assert trained_abilities(answers) == record["trained"]
    for ability in record["trained"]:
        with_it, without = (share_right(of(answers, ability, is_on)) for is_on in (True, False))
        assert without < with_it / 2, ability
