"""Steady noise in a recording: where it is, how strong in each band, and what stands out of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phi4mm.transcribe.level import FRAME_S, Levels

Mask = npt.NDArray[np.bool_]
Powers = npt.NDArray[np.floating]

SMOOTH = 9  # frames; so smoothed, white noise keeps its level within 0.5 dB
_STEADY_S = 0.25
_STEADY_DB = 4.0  # white noise stays within 2 dB over this time
# Variance in dB of a smoothed band over this time, mean of all bands: noise has 0.5 in half of all
# stretches and less than 0.8 in nearly all, a voice in noise that is twice as loud 0.6 and more.
_STEADY_VARIANCES = (0.5, 0.8)
_NOISE_FLATNESS = 0.5
# The power of a band of noise, so smoothed, seldom exceeds its mean by a factor of 1.7, and never
# falls short of it by one of 3.  The excesses of the bands over that add up to less than 0.6.
_NOISE_SPREAD, _NOISE_DIP, _STANDING_OUT = 1.7, 3.0, 1.0
# In five bands, up to 1400 Hz, what exceeds the mean itself adds up to 1.8 at most.  A voice has
# more there even when the noise as a whole is louder.
_VOICE_BANDS, _VOICE_STANDING_OUT = 5, 1.8
_UNHEARD = 1e-3  # of the noise, in a band: beyond the bandwidth of a resampled recording
_FLOOR_FRAMES, _FLOOR_STEP = 300, 50  # of noise that are looked at, and how often
_FLOOR_PERCENT, _FLOOR_FACTOR = 20, 1.2  # a fifth of noise, so smoothed, is below its mean over 1.2
_DIP_FRAMES = 75  # on both sides, among which noise shows itself between syllables


def smooth(power: Powers) -> Powers:
    """Mean over ``SMOOTH`` frames, along the first axis."""
    half = SMOOTH // 2
    padded = np.concatenate(
        [power[:1].repeat(half, axis=0), power, power[-1:].repeat(half, axis=0)]
    )
    windows = np.lib.stride_tricks.sliding_window_view(padded, SMOOTH, axis=0)
    return np.asarray(windows.mean(axis=-1))


def steady_noise(levels: Levels) -> tuple[Mask, Mask]:
    """Frames within a quarter of a second that keeps its level and colour and has no tones.

    Returns:
        Frames of noise, some of them missing; and frames that look so, among which may be a voice
        that the noise drowns.
    """
    n_window = round(_STEADY_S / FRAME_S)
    if len(levels) < n_window:
        none = np.zeros(len(levels), np.bool_)
        return none, none
    flatness = np.convolve(levels.flatness, np.full(n_window, 1 / n_window), mode="valid")
    is_steady = (_range(levels.level[:, None], n_window) < _STEADY_DB)[:, 0]
    is_steady &= flatness > _NOISE_FLATNESS
    variance = _variance(10 * np.log10(smooth(levels.bands)), n_window).mean(axis=1)
    sure, likely = (
        _covered(is_steady & (variance < limit), n_window) for limit in _STEADY_VARIANCES
    )
    return sure, likely


def stands_out(bands: Powers, noise: Mask, like_noise: Mask) -> Mask:
    """Frames that have more in some bands than the noise around them.

    Args:
        bands: power, [n, n_bands].
        noise: frames that are noise, at least one.
        like_noise: frames that look so.
    """
    power = smooth(bands)
    floor = _noise_floor(power, noise)
    floor = np.maximum(floor, _UNHEARD * floor.sum(axis=1, keepdims=True))
    # Noise that has stopped is no floor: then the least between two syllables lies far below it.
    ends = np.full((_DIP_FRAMES, bands.shape[1]), np.inf)
    least = _least(np.concatenate([ends, power, ends]), 2 * _DIP_FRAMES + 1)
    floor = np.where(like_noise[:, None], floor, np.minimum(floor, _NOISE_DIP * least))
    ratio = power / floor
    anywhere = np.maximum(ratio - _NOISE_SPREAD, 0).sum(axis=1) > _STANDING_OUT
    voiced = np.maximum(ratio[:, :_VOICE_BANDS] - 1, 0).sum(axis=1) > _VOICE_STANDING_OUT
    return np.asarray(anywhere | voiced)


def _noise_floor(power: Powers, noise: Mask) -> Powers:
    """For each frame the power of the noise nearest to it, [n, n_bands].

    A voice can be taken for noise that drowns it: so it is not a mean that counts, but what the
    nearest noise reaches for most of the time.
    """
    places = np.flatnonzero(noise)
    floors = []
    for centre in range(0, len(power), _FLOOR_STEP):
        order = np.argsort(np.abs(places - centre), kind="stable")
        nearest = power[places[order[:_FLOOR_FRAMES]]]
        floors.append(np.percentile(nearest, _FLOOR_PERCENT, axis=0))
    return _FLOOR_FACTOR * np.repeat(np.array(floors), _FLOOR_STEP, axis=0)[: len(power)]


def _covered(starts: Mask, n_window: int) -> Mask:
    """Frames within any of the windows that begin at the frames marked."""
    edges = np.zeros(len(starts) + n_window, np.int32)
    edges[: len(starts)] += starts
    edges[n_window:] -= starts
    return np.asarray(edges.cumsum()[:-1] > 0)


def _range(values: Powers, n_window: int) -> Powers:
    """Greatest minus least of ``n_window`` frames from each frame on, along the first axis."""
    return -_least(-values, n_window) - _least(values, n_window)


def _variance(values: Powers, n_window: int) -> Powers:
    """Variance of ``n_window`` frames from each frame on, along the first axis."""
    start = np.zeros((1, values.shape[1]))
    first, second = (
        np.concatenate([start, np.cumsum(x, 0, np.float64)]) for x in (values, values * values)
    )
    mean, square = ((s[n_window:] - s[:-n_window]) / n_window for s in (first, second))
    return np.asarray(square - mean * mean)


def _least(values: Powers, n_window: int) -> Powers:
    """The least of ``n_window`` frames from each frame on, along the first axis."""
    n_seen = 1
    while n_seen < n_window:  # twice as many at each step
        step = min(n_seen, n_window - n_seen)
        values = np.minimum(values[:-step], values[step:])
        n_seen += step
    return values
