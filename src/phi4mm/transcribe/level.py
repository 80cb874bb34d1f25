"""How loud sound is, and how much like noise, every 10 ms: what pauses are found by.

Only 150 to 7000 Hz count: hum lies below, and above there is no speech.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

FRAME_S = 0.01
_WINDOW_S = 0.032
_LOW_HZ, _HIGH_HZ = 150, 7000
_TINY = 1e-12  # keeps logarithms finite; -120 dB


@dataclass(frozen=True, slots=True)
class Levels:
    """Measurements of consecutive frames of ``FRAME_S``.

    Attributes:
        level: float32 [n], power between 150 and 7000 Hz in dB; a full-scale sine has about -3.
        flatness: float32 [n], geometric over arithmetic mean of the spectrum there: white noise
            has about 0.56, a vowel below 0.1.
    """

    level: npt.NDArray[np.float32]
    flatness: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.level)

    def __getitem__(self, part: slice) -> Levels:
        return Levels(self.level[part], self.flatness[part])

    def __add__(self, other: Levels) -> Levels:
        return Levels(
            np.concatenate([self.level, other.level]),
            np.concatenate([self.flatness, other.flatness]),
        )


NO_LEVELS = Levels(np.empty(0, np.float32), np.empty(0, np.float32))


class LevelMeter:
    """Measures sound block by block.  A frame's window is centred on it."""

    def __init__(self, rate: int) -> None:
        self._hop = round(rate * FRAME_S)
        n_window = round(rate * _WINDOW_S)
        self._window = np.hanning(n_window).astype(np.float32)
        bins = np.fft.rfftfreq(n_window, 1 / rate)
        self._band = (bins >= _LOW_HZ) & (bins < _HIGH_HZ)
        # so scaled, the sum over a sine's bins is its power
        self._scale = 2 / (n_window * np.square(self._window).sum())
        self._kept = np.zeros((n_window - self._hop) // 2, np.float32)

    def feed(self, samples: Samples) -> Levels:
        """Frames whose whole window is known now."""
        sound = np.concatenate([self._kept, samples])
        n_frames = max(0, (len(sound) - len(self._window)) // self._hop + 1)
        self._kept = sound[n_frames * self._hop :]
        if n_frames == 0:
            return NO_LEVELS
        windows = np.lib.stride_tricks.sliding_window_view(sound, len(self._window))
        return self._measure(windows[:: self._hop][:n_frames])

    def flush(self) -> Levels:
        """The frames at the end, as if silence followed."""
        return self.feed(np.zeros(len(self._window) // 2, np.float32))

    def _measure(self, windows: Samples) -> Levels:
        spectrum = np.fft.rfft(windows * self._window, axis=1)[:, self._band]
        power = np.square(np.abs(spectrum)) * self._scale + _TINY
        level = 10 * np.log10(power.sum(axis=1))
        flatness = np.exp(np.log(power).mean(axis=1)) / power.mean(axis=1)
        return Levels(level.astype(np.float32), flatness.astype(np.float32))
