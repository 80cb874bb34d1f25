"""Choosing the next token from one row of logits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from phi4mm.engine.logit_stage import LogitStage, stages_for
from phi4mm.engine.parameters import SamplingParams

# A real vocabulary has two hundred thousand logits, and nearly always a few matter: what looks at
# all of them does so in float32, and what sorts or sums exactly looks at the few.
_FEW = 256
_BLOCK = 64  # logits whose largest, or whose sum, stands for them
_COLD = 0.01  # below this temperature differences may leave the range of float32
_NO_WEIGHT = 746.0  # exp(-x) is 0 in float64


class Sampler:
    """Draws tokens as ``SamplingParams`` asks; holds the random state of one sequence."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        mask: LogitStage | None = None,
    ) -> None:
        self._params = params
        self._stages = stages_for(params, prompt_ids) + ([] if mask is None else [mask])
        self._random = np.random.default_rng(params.seed)

    def sample(self, logits: npt.NDArray[np.float32]) -> int:
        """The next token's id from ``logits (n_vocab,)``, which stay as they are."""
        if self._stages:
            logits = logits.copy()
        for stage in self._stages:
            stage.apply(logits)
        token_id = self._draw(logits)
        for stage in self._stages:
            stage.accept(token_id)
        return token_id

    def _draw(self, logits: npt.NDArray[np.float32]) -> int:
        params = self._params
        if params.temperature == 0:
            return int(logits.argmax())
        if params.top_k == 0 and params.top_p == 1 and params.min_p == 0:
            if params.temperature >= _COLD:
                return self._draw_from_all(logits)
            lowest = logits.max() - _NO_WEIGHT * params.temperature
            ids = np.flatnonzero(logits >= lowest)
        else:
            ids = _candidates(logits, params)
        weights = np.exp((logits[ids].astype(np.float64) - logits.max()) / params.temperature)
        return int(ids[self._place(weights.cumsum())])

    def _draw_from_all(self, logits: npt.NDArray[np.float32]) -> int:
        """A block of the vocabulary by its sum, then a token of the block."""
        weights = np.exp((logits - logits.max()) / np.float32(self._params.temperature))
        starts = np.arange(0, len(weights), _BLOCK)
        block = starts[self._place(np.add.reduceat(weights, starts, dtype=np.float64).cumsum())]
        weights = weights[block : block + _BLOCK]
        return int(block) + self._place(weights.cumsum(dtype=np.float64))

    def _place(self, cumulative: npt.NDArray[np.float64]) -> int:
        """Draw a place by the sum of the weights up to each, the largest of which is positive."""
        last = cumulative[-1]
        draw = min(self._random.random() * last, np.nextafter(last, 0))
        return int(np.searchsorted(cumulative, draw, side="right"))


def _candidates(logits: npt.NDArray[np.float32], params: SamplingParams) -> npt.NDArray[np.intp]:
    """Ids that top-k, top-p and min-p leave, in this order, on probabilities at temperature 1.

    The likeliest comes first.
    """
    top = logits.max()
    if 0 < params.top_k < len(logits):
        best = _largest(logits, params.top_k)
        weights = np.exp(logits[best].astype(np.float64) - top)
        return best[: _n_kept(weights, weights.sum(), params)]
    total = np.exp(logits - top).sum(dtype=np.float64)
    n_sorted = min(_FEW, len(logits))
    while True:
        best = _largest(logits, n_sorted)
        weights = np.exp(logits[best].astype(np.float64) - top)
        n_kept = _n_kept(weights, total, params)
        if n_kept < n_sorted or n_sorted == len(logits):
            return best[:n_kept]
        n_sorted = min(8 * n_sorted, len(logits))


def _n_kept(weights: npt.NDArray[np.float64], total: float, params: SamplingParams) -> int:
    """How many of these weights, the largest first, top-p and min-p leave."""
    n_top_p = n_min_p = len(weights)
    if params.top_p < 1:
        n_top_p = int(np.searchsorted(weights.cumsum(), params.top_p * total)) + 1
    if params.min_p > 0:
        n_min_p = int((weights >= params.min_p).sum())
    return min(n_top_p, n_min_p, len(weights))


def _largest(logits: npt.NDArray[np.float32], n: int) -> npt.NDArray[np.intp]:
    """Ids of the ``n`` largest, the largest first, equal ones in order.

    ``n`` blocks hold a logit as large as the ``n``-th largest of the blocks' own largest.  So those
    below that are none of the ``n`` largest.
    """
    n_blocks = len(logits) // _BLOCK
    ids = np.arange(len(logits))
    if n < n_blocks:
        highest = logits[: n_blocks * _BLOCK].reshape(n_blocks, _BLOCK).max(axis=1)
        ids = np.flatnonzero(logits >= np.partition(highest, -n)[-n])
    order = np.argsort(-logits[ids], kind="stable")[:n]
    chosen: npt.NDArray[np.intp] = ids[order]
    return chosen
