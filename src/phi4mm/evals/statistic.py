"""Means with their standard errors, and quantiles, of numbers that come in pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and how uncertain it is.

    Attributes:
        value: the mean.
        error: its standard error; 0 for fewer than two numbers.
    """

    value: float
    error: float

    @classmethod
    def of(cls, values: Values) -> Estimate:
        """Mean and standard error; the variance divides by n, its error by n - 1.

        Source: perplexity.cpp of llama.cpp 0c1e570, ``mean_and_uncertainty``.
        """
        n = len(values)
        mean = float(values.mean())
        variance = max(0.0, float((values * values).mean()) - mean * mean)
        return cls(mean, math.sqrt(variance / (n - 1)) if n > 1 else 0.0)

    @classmethod
    def of_share(cls, hits: npt.NDArray[np.bool_]) -> Estimate:
        """Share of true values, with its binomial standard error."""
        n, share = len(hits), float(hits.mean())
        return cls(share, math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else 0.0)

    def exponential(self) -> Estimate:
        """The same of the exponential, its error to first order."""
        value = math.exp(self.value)
        return Estimate(value, value * self.error)


def quantile(values: Values, fraction: float) -> float:
    """The value below which a fraction lies, linear between neighbours."""
    return float(np.quantile(values, fraction))
