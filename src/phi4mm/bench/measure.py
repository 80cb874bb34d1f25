"""A measured number beside what the machine could reach."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["tok/s", "s", "s/crop", "s/s"]


@dataclass(frozen=True, slots=True)
class Measure:
    """Some runs of one thing.

    Attributes:
        name: what was measured.
        unit: of the numbers; more is better of ``tok/s`` alone.
        value: median.
        low: the smallest.
        high: the largest.
        limit: what the machine could reach at best; None where that is not known.
        fraction: how much of it was reached.
    """

    name: str
    unit: Unit
    value: float
    low: float
    high: float
    limit: float | None
    fraction: float | None

    @classmethod
    def of_seconds(
        cls,
        name: str,
        seconds: Sequence[float],
        least_s: float | None,
        *,
        unit: Unit = "s",
        per: float = 1,
    ) -> Measure:
        """From the seconds of each run.

        Args:
            name: what was measured.
            seconds: of each run.
            least_s: the least the machine could need for one.
            unit: ``tok/s`` gives ``per`` over seconds, the others seconds over ``per``.
            per: how many tokens, crops or seconds of sound a run has.
        """
        as_rate = unit == "tok/s"
        values = [per / s if as_rate else s / per for s in seconds]
        limit = None if least_s is None else per / least_s if as_rate else least_s / per
        fraction = None if least_s is None else least_s / statistics.median(seconds)
        return cls(name, unit, statistics.median(values), min(values), max(values), limit, fraction)


@dataclass(frozen=True, slots=True)
class Runs:
    """How often each thing is run.

    Attributes:
        n: runs that count, after a warm-up that does not.
        done: told of every run, the warm-up among them.
    """

    n: int
    done: Callable[[], None]

    @property
    def n_all(self) -> int:
        """Runs with the warm-up."""
        return self.n + 1


def timed(run: Callable[[int], object], runs: Runs) -> list[float]:
    """Seconds of the runs that count; each is given its number, the warm-up 0."""
    seconds = []
    for index in range(runs.n_all):
        began = time.perf_counter()
        run(index)
        seconds.append(time.perf_counter() - began)
        runs.done()
    return seconds[1:]
