"""What befalls a recording: another speed, another gain, noise, a narrow band."""

from __future__ import annotations

import random

import numpy as np

from .clips import Span, Utterance
from .speech_synthesis import Wave


def stretched(utterance: Utterance, factor: float) -> Utterance:
    """Played faster (factor above 1): speed, pitch and formants change together."""
    n = int(len(utterance.wave) / factor)
    wave = np.interp(np.arange(n) * factor, np.arange(len(utterance.wave)), utterance.wave)
    spans = [Span(s.unit, s.start / factor, s.end / factor) for s in utterance.spans]
    return Utterance(wave.astype(np.float32), utterance.text, spans, utterance.voice)


def noise(rng: random.Random, n: int) -> Wave:
    """White, or with more power in the low frequencies."""
    generator = np.random.default_rng(rng.getrandbits(32))
    white = generator.standard_normal(n, np.float32)
    if rng.random() < 0.5:
        return white
    low = np.cumsum(white)
    low -= np.convolve(low, np.ones(200, np.float32) / 200, "same")
    return low / (low.std() + 1e-9)


def disturbed(wave: Wave, rng: random.Random, strength: float) -> Wave:
    """Gain, noise, a muffled or telephone band; strength 0 changes the gain alone."""
    wave = wave * 10 ** rng.uniform(-1.2, 0.05)
    peak = max(float(np.abs(wave).max()), 1e-3)
    if rng.random() < 0.15 * strength:
        wave = np.convolve(wave, np.ones(4, np.float32) / 4, "same")
    elif rng.random() < 0.15 * strength:
        # Here, so that clips can be taken apart without the package.
        from scipy.signal import resample_poly

        wave = resample_poly(resample_poly(wave, 1, 2), 2, 1)[: len(wave)].astype(np.float32)
    if rng.random() < 0.7 * strength:
        wave = wave + noise(rng, len(wave)) * (peak * 10 ** rng.uniform(-2.6, -1.1))
    return np.clip(wave, -1, 1)
