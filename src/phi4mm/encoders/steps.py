"""Work that pauses, so that whoever drives it can do something else in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


def finish(steps: Generator[None, None, Result]) -> Result:
    """Run the work to its end without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
