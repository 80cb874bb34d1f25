"""Batches of clips as log-mel frames: augmented, of equal length, with a label for every frame."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .clips import Span, Utterance, frame_units, unit_ids
from .disturbance import disturbed, stretched
from .frontend import log_mel


@dataclass(frozen=True)
class SpeechBatch:
    """Clips padded to one length, as log-mel frames."""

    mel: Tensor  # [batch, frames, 80]
    texts: list[str]
    units: list[list[int]]
    frame_units: Tensor  # [batch, ceil(frames / 8)], 0: none

    @property
    def n_tokens(self) -> int:
        return self.frame_units.shape[1]


def masked(mel: Tensor, rng: random.Random) -> Tensor:
    """Two bands of mels replaced by the mean."""
    mel = mel.clone()
    for _ in range(2):
        width = rng.randint(0, 10)
        start = rng.randint(0, mel.shape[-1] - width)
        mel[..., start : start + width] = mel.mean()
    return mel


def make_batch(utterances: list[Utterance], rng: random.Random, strength: float) -> SpeechBatch:
    """Lay clips into one length with silence before and after, disturb them, take the mels.

    strength: how much augmentation, 0 (none, for evaluation) to 1.
    """
    if strength:
        factors = [rng.uniform(0.86, 1.16) if rng.random() < 0.7 else 1.0 for _ in utterances]
        utterances = [stretched(u, f) for u, f in zip(utterances, factors, strict=True)]
    leads = [rng.randint(0, 5000) if strength else 1600 for _ in utterances]
    ends = [lead + len(u.wave) for lead, u in zip(leads, utterances, strict=True)]
    total = max(max(ends) + (rng.randint(300, 4000) if strength else 1600), 4000)
    waves = np.zeros((len(utterances), total), np.float32)
    for row, (lead, end, utterance) in enumerate(zip(leads, ends, utterances, strict=True)):
        waves[row, lead:end] = utterance.wave
        if strength:
            waves[row] = disturbed(waves[row], rng, strength)
    mel = log_mel(torch.from_numpy(waves))
    if rng.random() < 0.5 * strength:
        mel = masked(mel, rng)
    n_tokens = -(-mel.shape[1] // 8)
    labels = [
        frame_units([Span(s.unit, s.start + lead, s.end + lead) for s in u.spans], n_tokens)
        for u, lead in zip(utterances, leads, strict=True)
    ]
    texts = [u.text for u in utterances]
    return SpeechBatch(mel, texts, [unit_ids(t) for t in texts], torch.from_numpy(np.stack(labels)))
