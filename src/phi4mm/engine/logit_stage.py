"""Stages that change a row of logits before a token is drawn from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phi4mm.engine.parameters import SamplingParams

Logits = npt.NDArray[np.float32]  # (n_vocab,)


class LogitStage(Protocol):
    """One change; keeps what it must know of the answer so far."""

    def apply(self, logits: Logits) -> None:
        """Change the row in place."""

    def accept(self, token_id: int) -> None:
        """Take note of the token that was drawn."""


class LogitBias:
    """Adds a number to the logits of chosen tokens."""

    def __init__(self, biases: Iterable[tuple[int, float]]) -> None:
        pairs = dict(biases)
        self._ids = np.array(list(pairs), np.intp)
        self._biases = np.array(list(pairs.values()), np.float32)

    def apply(self, logits: Logits) -> None:
        """Add the numbers."""
        logits[self._ids] += self._biases

    def accept(self, token_id: int) -> None:
        """Nothing to note."""


class CountPenalty:
    """Makes generated tokens less likely: once for being there, and again for each time.

    ``logit -= presence + frequency * count``, the rule of the OpenAI API.
    """

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency
        self._counts: dict[int, int] = {}

    def apply(self, logits: Logits) -> None:
        """Take the penalties off."""
        for token_id, count in self._counts.items():
            logits[token_id] -= self._presence + self._frequency * count

    def accept(self, token_id: int) -> None:
        """Count the token."""
        self._counts[token_id] = self._counts.get(token_id, 0) + 1


class RepetitionPenalty:
    """Makes tokens of prompt and answer less likely by a factor on their logits (CTRL's rule)."""

    def __init__(self, factor: float, prompt_ids: Iterable[int]) -> None:
        self._factor = factor
        self._seen = set(prompt_ids)

    def apply(self, logits: Logits) -> None:
        """Divide positive logits, multiply negative ones."""
        ids = np.fromiter(self._seen, np.intp, len(self._seen))
        seen = logits[ids]
        logits[ids] = np.where(seen > 0, seen / self._factor, seen * self._factor)

    def accept(self, token_id: int) -> None:
        """Remember the token."""
        self._seen.add(token_id)


def stages_for(params: SamplingParams, prompt_ids: Iterable[int]) -> list[LogitStage]:
    """The stages that these settings need, in the order they work."""
    stages: list[LogitStage] = []
    if params.repetition_penalty != 1:
        stages.append(RepetitionPenalty(params.repetition_penalty, prompt_ids))
    if params.presence_penalty or params.frequency_penalty:
        stages.append(CountPenalty(params.presence_penalty, params.frequency_penalty))
    if params.logit_bias:
        stages.append(LogitBias(params.logit_bias))
    return stages
