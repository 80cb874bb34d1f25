"""Choosing the next token from one row of logits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from phi4mm.engine.logit_stage import LogitStage, stages_for
from phi4mm.engine.parameters import SamplingParams

_N_SORTED = 1024


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
        ids = _candidates(logits, params)
        weights = np.exp((logits[ids].astype(np.float64) - logits.max()) / params.temperature)
        cumulative = weights.cumsum()
        draw = self._random.random() * cumulative[-1]
        place = min(int(np.searchsorted(cumulative, draw, side="right")), len(ids) - 1)
        return int(ids[place])


def _candidates(logits: npt.NDArray[np.float32], params: SamplingParams) -> npt.NDArray[np.intp]:
    """Ids that top-k, top-p and min-p leave, in this order, on probabilities at temperature 1."""
    ids = np.arange(len(logits))
    if 0 < params.top_k < len(logits):
        ids = np.argpartition(logits, -params.top_k)[-params.top_k :]
    if params.top_p == 1 and params.min_p == 0:
        return ids
    weights = np.exp(logits[ids].astype(np.float64) - logits[ids].max())
    total = weights.sum()
    # sorting takes long in a real vocabulary, and the likeliest few are nearly always enough
    for n_sorted in (min(_N_SORTED, len(ids)), len(ids)):
        best = np.argpartition(-weights, n_sorted - 1)[:n_sorted]
        best = best[np.argsort(-weights[best], kind="stable")]
        sums = weights[best].cumsum()
        n_top_p = int(np.searchsorted(sums, params.top_p * total)) + 1
        n_min_p = int((weights[best] >= params.min_p).sum())
        if min(n_top_p, n_min_p) < n_sorted:
            break
    return ids[best[: min(n_top_p, n_min_p)]]
