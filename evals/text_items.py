"""Items without media: facts, arithmetic, tool calls."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from training import text_data
from training.vocabulary import Split, split_of, vocabulary

from .ability import Line

# Shorter made-up names may have been drawn in training.
_MADE_UP_LETTERS = 6


def facts(rng: random.Random, n: int) -> dict[str, list[Line]]:
    """Pairs of fact and question form that were taught, those held out, and new forms.

    Nothing but the pairs is drawn, so there are as many as there are, and at most n.
    """
    sets = {
        "facts_taught": _pairs("train") + list(vocabulary()["facts"]["single"].items()),
        "facts": _pairs("test"),
        "facts_reworded": list(_reworded()),
    }
    for pairs in sets.values():
        rng.shuffle(pairs)
    return {name: _lines(name, pairs[:n]) for name, pairs in sets.items()}


def _pairs(split: Split) -> list[tuple[str, str]]:
    facts = vocabulary()["facts"]
    return [
        (form.format(x=subject), answer)
        for group in ("capital", "opposite")
        for subject, answer in facts[group]["answers"].items()
        for form in facts[group]["questions"]
        if split_of(subject, form) == split
    ]


def _reworded() -> Iterator[tuple[str, str]]:
    wordings = vocabulary()["unseen_wordings"]
    for group in ("capital", "opposite"):
        for subject, answer in vocabulary()["facts"][group]["answers"].items():
            for form in wordings[group]:
                yield form.format(x=subject), answer
    yield from wordings["single"].items()


def arithmetic(rng: random.Random, n: int) -> list[Line]:
    """Sums and differences of pairs of numbers that were held out, each question once."""
    found: dict[str, str] = {}
    while len(found) < n:
        question, answer = text_data.arithmetic(rng, "test")
        found[question] = answer
    return _lines("arithmetic", list(found.items()))


def tools(rng: random.Random, n: int) -> list[Line]:
    """Requests with tools on offer; one in five asks for something that no tool does."""
    lines: list[Line] = []
    seen: set[str] = set()
    while len(lines) < n:
        system, question, answer = text_data.tools(rng, "test")
        if question in seen or not _is_held_out(question, answer):
            continue
        seen.add(question)
        line = {"id": f"tools-{len(lines):03d}", "tools": system.tools, "question": question}
        if system.text:
            line["system"] = system.text
        lines.append({**line, "answers": [answer], "metric": "call"})
    return lines


def _is_held_out(question: str, answer: str) -> bool:
    """Whether training cannot have asked this: single facts and weather have no split there."""
    if question in vocabulary()["facts"]["single"]:
        return False
    city = re.search(r'"get_weather", "arguments": {"city": "(\w+)"', answer)
    if city is None:
        return True
    known = vocabulary()["facts"]["capital"]["answers"].values()
    return city[1] not in known and len(city[1]) >= _MADE_UP_LETTERS


def _lines(name: str, pairs: list[tuple[str, str]]) -> list[Line]:
    return [
        {
            "id": f"{name}-{number:03d}",
            "question": question,
            "answers": [answer],
            "metric": "verbatim",
        }
        for number, (question, answer) in enumerate(pairs)
    ]
