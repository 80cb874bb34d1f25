"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Called with what is done and with all there is to do, in bytes, tokens, items or runs."""

Stage: TypeAlias = Callable[[str, str | None], AbstractContextManager[Progress | None]]
"""Begins a piece of work, given its title and what is counted in it; None for bytes."""

Advance: TypeAlias = Callable[[int], None]
"""Called with what was done since the last call."""


def counter(total: int, progress: Progress | None) -> Advance:
    """A function that adds up what was done, and tells ``progress`` of the sum."""
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    return advance
