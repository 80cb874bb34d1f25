"""Texts of two pieces that overlap, joined without losing or doubling a word."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Scripts without blanks between words are compared character by character.
_UNIT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")
_MAX_UNITS = 12  # in the second that is heard twice
_MAX_BROKEN = 2  # units at the very edge that may be misheard, since half of them is missing


@dataclass(frozen=True, slots=True)
class _Unit:
    word: str
    start: int
    end: int


def join_at_seam(left: str, right: str) -> tuple[str, str]:
    """Cut two overlapping texts so that each word stands in one of them.

    The longest run of words that ends the left text and begins the right one stays in the left;
    up to two words beyond it on either side were heard in part only, and the other text's reading
    counts.  Without a common run both stay whole.
    """
    left_units, right_units = _units(left)[-_MAX_UNITS:], _units(right)[:_MAX_UNITS]
    best = (0, 0, 0)  # units in common, dropped at the left's end, at the right's beginning
    for n_left in range(min(_MAX_BROKEN, len(left_units)) + 1):
        kept, cut_off = _split(left_units, len(left_units) - n_left)
        for n_right in range(_MAX_BROKEN + 1):
            beheaded, rest = _split(right_units, n_right)
            n_common = _n_common(kept, rest)
            before, after = kept[: len(kept) - n_common], rest[n_common:]
            is_sure = n_common >= 2 or (_begin(cut_off, after) and _end(beheaded, before))
            if is_sure and n_common > best[0]:
                best = (n_common, n_left, n_right)
    n_common, n_left, n_right = best
    if n_common == 0:
        return left, right
    left_end = left_units[len(left_units) - n_left - 1].end
    right_start = right_units[n_right + n_common - 1].end
    return left[:left_end], right[right_start:].lstrip()


def _split(units: list[_Unit], at: int) -> tuple[list[_Unit], list[_Unit]]:
    return units[:at], units[at:]


def _begin(parts: list[_Unit], words: list[_Unit]) -> bool:
    """Whether each of ``parts`` begins the word at its place."""
    pairs = zip(parts, words, strict=False)
    return len(parts) <= len(words) and all(w.word.startswith(part.word) for part, w in pairs)


def _end(parts: list[_Unit], words: list[_Unit]) -> bool:
    """Whether each of ``parts`` ends the word at its place, counted from the last."""
    pairs = zip(reversed(parts), reversed(words), strict=False)
    return len(parts) <= len(words) and all(w.word.endswith(part.word) for part, w in pairs)


def _units(text: str) -> list[_Unit]:
    found = []
    for match in _UNIT.finditer(text):
        word = re.sub(r"\W", "", match[0]).casefold()
        if word:
            found.append(_Unit(word, match.start(), match.end()))
    return found


def _n_common(left: list[_Unit], right: list[_Unit]) -> int:
    """The largest n for which the last n of ``left`` are the first n of ``right``."""
    most = min(len(left), len(right))
    words_left, words_right = ([unit.word for unit in units] for units in (left, right))
    return next((n for n in range(most, 0, -1) if words_left[-n:] == words_right[:n]), 0)
