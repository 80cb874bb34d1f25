"""Measured shares and rates with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_Z: Final = 1.959964  # 97.5 % of a normal distribution lie below
_N_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A measured value and between what the true one lies, with 95 % confidence.

    Attributes:
        value: what was measured.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float


def share_interval(n_right: int, n: int) -> Interval:
    """A share of n items, at least one.

    Source: E. B. Wilson, "Probable Inference" (1927): unlike the usual one, the interval is right
    near 0 and 1, too.
    """
    share, spread = n_right / n, _Z * _Z / n
    middle = (share + spread / 2) / (1 + spread)
    reach = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return Interval(share, min(share, middle - reach), max(share, middle + reach))


def rate_interval(errors: Sequence[int], words: Sequence[int]) -> Interval:
    """Errors per word over clips, which are drawn again at random to see how much the rate varies.

    The same clips always give the same interval.  Clips without a word count their errors alone.

    Args:
        errors: of each clip, at least one.
        words: of each clip.
    """
    counts = np.array([errors, words], np.float64)
    draws = np.random.default_rng(0).integers(len(errors), size=(_N_RESAMPLES, len(errors)))
    n_errors, n_words = counts[:, draws].sum(axis=2)
    rates = n_errors / np.maximum(n_words, 1)
    low, high = np.quantile(rates, [0.025, 0.975])
    return Interval(sum(errors) / max(sum(words), 1), float(low), float(high))
