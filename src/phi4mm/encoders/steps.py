"""Work that pauses, so that whoever drives it can do something else in between."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")


def finish(
    steps: Generator[None, None, Result], between: Callable[[], None] | None = None
) -> Result:
    """Run the work to its end.

    Args:
        steps: the work.
        between: called at each pause.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        if between is not None:
            between()
