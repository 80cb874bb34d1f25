"""Scores of answers, each from 0 to 1.

Sources: ANLS, Biten et al., "Scene Text Visual Question Answering" (2019); relaxed accuracy, Masry
et al., "ChartQA" (2022).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from phi4mm.evals.manifest import Metric
from phi4mm.prompt.tool_call import ArgumentsDelta, CallStart, TextDelta, ToolCallParser

_ANLS_THRESHOLD: Final = 0.5
_TOLERANCE: Final = 0.05


Score = Callable[[str, Sequence[str]], float]
"""Called with a prediction and the answers, any of which is right; gives 0 to 1."""


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is an answer, but for case, blanks and punctuation at the ends."""
    return float(any(_plain(prediction) == _plain(answer) for answer in answers))


def anls(prediction: str, answers: Sequence[str]) -> float:
    """Average normalised Levenshtein similarity: the best over the answers, 0 below a half."""
    similarities = [_similarity(_folded(prediction), _folded(answer)) for answer in answers]
    best = max(similarities)
    return best if best > _ANLS_THRESHOLD else 0.0


def relaxed_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """1 if a number is within 5 % of an answer's; words must be equal but for case.

    Differs from the reference: an answer of 0 is compared as a number, so 0.0 is right; there it is
    compared as a word.
    """
    return float(any(_is_near(prediction, answer) for answer in answers))


def verbatim(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is an answer to the letter, but for blanks at its ends."""
    return float(prediction.strip() in answers)


def same_calls(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction makes the calls of an answer and says its words, if there are any.

    Calls are the same if they name the same tools in the same order with equal arguments, however
    the JSON is written.
    """
    return float(any(_said(prediction) == _said(answer) for answer in answers))


SCORES: Final[Mapping[Metric, Score]] = MappingProxyType(
    {
        "exact": exact_match,
        "anls": anls,
        "relaxed": relaxed_accuracy,
        "verbatim": verbatim,
        "call": same_calls,
    }
)


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and substitutions."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            substituted = diagonal + (x != y)
            diagonal = row[j]
            row[j] = min(substituted, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def _said(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """Words of an answer, and the tools that it calls with their arguments."""
    parser, words = ToolCallParser(), ""
    calls: list[tuple[str, str]] = []
    for delta in (*parser.push(text), *parser.finish()):
        if isinstance(delta, TextDelta):
            words += delta.text
        elif isinstance(delta, CallStart):
            calls.append((delta.name, ""))
        elif isinstance(delta, ArgumentsDelta):
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + delta.text)
    return words.strip(), [(name, _value(arguments)) for name, arguments in calls]


def _value(arguments: str) -> Any:
    """What arguments mean; those of a call that breaks off stay text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _similarity(a: str, b: str) -> float:
    longest = max(len(a), len(b))
    return 1 - edit_distance(a, b) / longest if longest else 1.0


def _is_near(prediction: str, answer: str) -> bool:
    found, right = _number(prediction), _number(answer)
    if found is None or right is None:
        return _folded(prediction) == _folded(answer)
    return abs(found - right) <= _TOLERANCE * abs(right)


def _number(text: str) -> float | None:
    """A plain number or a percentage; None for anything else."""
    found = re.fullmatch(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*(%?)", text.strip())
    if found is None:
        return None
    return float(found[1]) / (100 if found[2] else 1)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _plain(text: str) -> str:
    return re.sub(r"^[\W_]+|[\W_]+$", "", _folded(text))
