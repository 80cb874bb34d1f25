"""Which frames are speech: an energy detector that adapts to the recording.

Three things are not speech: silence; steady noise, which keeps its level and has no partials; and
whatever is much quieter than the speech around it.  Speech over noise is what stands out of it in
some band: a voice does so below 1 kHz even where it is quieter than the noise as a whole.  Gaps
shorter than a pause are speech, since plosives and soft syllables lie within words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phi4mm.transcribe.level import FRAME_S, Levels
from phi4mm.transcribe.noise import SMOOTH, Mask, Powers, smooth, stands_out, steady_noise

MIN_PAUSE_S = 0.2  # the closure of a plosive lasts up to 0.15 s
_MIN_SPEECH_S = 0.06  # anything shorter that stands alone is a click, which smoothing lengthens
_SILENCE_DB = -70.0
# Speech spans 20 to 25 dB; of what is quieter than its loud parts by more, no word is made.
_SPEECH_RANGE_DB = 25.0
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
        return _long_enough(_runs(sounding), sounding, _MIN_SPEECH_S)
    noise, like_noise = (sounding & mask for mask in steady_noise(levels))
    varying = sounding & ~noise
    if not varying.any():
        return []
    level = 10 * np.log10(smooth(10 ** (levels.level / 10)))
    loud = sounding & (level > _threshold(level, sounding, varying))
    if noise.any():
        loud &= stands_out(levels.bands, noise, like_noise)
    # A vowel can be as steady as noise, but no word is; the edges of noise are not steady.
    return _long_enough(_runs(loud), loud & varying, _MIN_SPEECH_S + SMOOTH * FRAME_S)


def _threshold(level: Powers, sounding: Mask, varying: Mask) -> float:
    """The level in dB above which a frame may be speech."""
    loud = float(np.percentile(level[varying], 95))
    quiet = float(np.percentile(level[sounding], 10))
    margin = np.clip(_MARGIN_SHARE * (loud - quiet), _MIN_MARGIN_DB, _MAX_MARGIN_DB)
    return min(quiet + float(margin), loud - _SPEECH_RANGE_DB)


def _runs(mask: Mask) -> list[Run]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    runs: list[Run] = []
    for start, end in edges.reshape(-1, 2).tolist():
        if runs and start - runs[-1].end < MIN_PAUSE_S / FRAME_S:
            runs[-1] = Run(runs[-1].start, end)
        else:
            runs.append(Run(start, end))
    return runs


def _long_enough(runs: list[Run], mask: Mask, least_s: float) -> list[Run]:
    """The runs in which the mask holds for longer than a click lasts."""
    least = round(least_s / FRAME_S)
    return [run for run in runs if mask[run.start : run.end].sum() >= least]
