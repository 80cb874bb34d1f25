"""Finds the strings that end an answer, however its text is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string; holds back what may become one.

    Attributes:
        is_found: whether a stop string has come; nothing is passed on after it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_found = False

    def push(self, text: str) -> str:
        """What can be passed on after this piece."""
        if self.is_found:
            return ""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.is_found, self._held = True, ""
            return text[: min(places)]
        n_held = self._n_held_back(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """What is left when the answer ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _n_held_back(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string begins with."""
        longest = min(len(text), max((len(stop) - 1 for stop in self._stops), default=0))
        ends = (
            n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)
        )
        return next(ends, 0)
