"""Which frames are speech: an energy detector that adapts to the recording.

Three things are not speech: silence; steady noise, which keeps its level and has a flat spectrum;
and whatever is much quieter than the speech around it.  Gaps shorter than a pause are speech, since
plosives and soft syllables lie within words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phi4mm.transcribe.level import FRAME_S, Levels

Mask = npt.NDArray[np.bool_]

MIN_PAUSE_S = 0.2  # the closure of a plosive lasts up to 0.15 s
_MIN_SPEECH_S = 0.06  # anything shorter that stands alone is a click
_SILENCE_DB = -70.0
_STEADY_S = 0.25
_STEADY_DB = 4.0  # white noise stays within 2 dB over this time
_NOISE_FLATNESS = 0.1
# Speech spans 20 to 25 dB; of what is quieter than its loud parts by more, no word is made.
_SPEECH_RANGE_DB = 25.0
_SMOOTH = 9  # frames; so smoothed, white noise keeps its level within 0.5 dB
_NOISE_MARGIN_DB = 1.0
_MARGIN_SHARE, _MIN_MARGIN_DB, _MAX_MARGIN_DB = 0.3, 2.0, 10.0
# Shorter recordings give no picture of their background: all that sounds in them is speech.
_SHORT_S = 2.0


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive frames of speech: ``start`` included, ``end`` not."""

    start: int
    end: int


def find_speech(levels: Levels) -> list[Run]:
    """Runs of speech in order, at least ``MIN_PAUSE_S`` apart."""
    sounding: Mask = levels.level > _SILENCE_DB
    if len(levels) < _SHORT_S / FRAME_S:
        return _long_enough(_runs(sounding), sounding)
    noise = _steady_noise(levels)
    varying = sounding & ~noise
    if not varying.any():
        return []
    level = _smooth(levels.level)
    loud = sounding & (level > _threshold(level, sounding, noise, varying))
    # A vowel can be as steady as noise, but no word is; the edges of noise are not steady.
    return _long_enough(_runs(loud), loud & varying)


def _smooth(level: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Mean power over ``_SMOOTH`` frames, in dB."""
    power = np.pad(10 ** (level / 10), _SMOOTH // 2, mode="edge")
    mean = np.convolve(power, np.full(_SMOOTH, 1 / _SMOOTH), mode="valid")
    return (10 * np.log10(mean)).astype(np.float32)


def _threshold(level: npt.NDArray[np.float32], sounding: Mask, noise: Mask, varying: Mask) -> float:
    """The level in dB above which a frame is speech."""
    loud = float(np.percentile(level[varying], 95))
    quiet = float(np.percentile(level[sounding], 10))
    margin = np.clip(_MARGIN_SHARE * (loud - quiet), _MIN_MARGIN_DB, _MAX_MARGIN_DB)
    threshold = min(quiet + float(margin), loud - _SPEECH_RANGE_DB)
    if (noise & sounding).any():
        above_noise = float(np.percentile(level[noise & sounding], 90)) + _NOISE_MARGIN_DB
        threshold = max(threshold, min(above_noise, loud - _MIN_MARGIN_DB))
    return threshold


def _steady_noise(levels: Levels) -> Mask:
    """Frames within a stretch of ``_STEADY_S`` that keeps its level and has a flat spectrum."""
    n_window = round(_STEADY_S / FRAME_S)
    if len(levels) < n_window:
        return np.zeros(len(levels), np.bool_)
    level = np.lib.stride_tricks.sliding_window_view(levels.level, n_window)
    flatness = np.convolve(levels.flatness, np.full(n_window, 1 / n_window), mode="valid")
    is_steady = np.ptp(level, axis=1) < _STEADY_DB
    starts = np.flatnonzero(is_steady & (flatness > _NOISE_FLATNESS))
    edges = np.zeros(len(levels) + 1, np.int32)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + n_window, -1)
    return np.asarray(edges.cumsum()[:-1] > 0)


def _runs(mask: Mask) -> list[Run]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    runs: list[Run] = []
    for start, end in edges.reshape(-1, 2).tolist():
        if runs and start - runs[-1].end < MIN_PAUSE_S / FRAME_S:
            runs[-1] = Run(runs[-1].start, end)
        else:
            runs.append(Run(start, end))
    return runs


def _long_enough(runs: list[Run], mask: Mask) -> list[Run]:
    """The runs in which the mask holds for longer than a click lasts."""
    least = _MIN_SPEECH_S / FRAME_S
    return [run for run in runs if mask[run.start : run.end].sum() >= least]
