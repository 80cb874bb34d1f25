"""How much a quantised tensor differs from what it was made from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loss:
    """Sums over the weights of one tensor or several.

    Attributes:
        error: of squared differences between what is stored and what was given.
        value: of squared weights.
        weighted_error: the former, each times the importance of its column.
        weighted_value: the latter, likewise; 0 without an importance matrix.
    """

    error: float = 0.0
    value: float = 0.0
    weighted_error: float = 0.0
    weighted_value: float = 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the error over that of the weights."""
        return math.sqrt(self.error / self.value) if self.value else 0.0

    @property
    def weighted(self) -> float | None:
        """The same with columns weighted by importance; None without an importance matrix."""
        if not self.weighted_value:
            return None
        return math.sqrt(self.weighted_error / self.weighted_value)

    @classmethod
    def total(cls, losses: Iterable[Loss]) -> Loss:
        """The sum, the same in any order."""
        losses = list(losses)
        return cls(
            math.fsum(loss.error for loss in losses),
            math.fsum(loss.value for loss in losses),
            math.fsum(loss.weighted_error for loss in losses),
            math.fsum(loss.weighted_value for loss in losses),
        )
