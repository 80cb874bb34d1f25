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
_BAND = 8  # bins in a band, of 31 Hz each: two partials of a low voice, and no steep slope
_PART = 1000  # frames measured at a time: their spectra take 5 MB
_TINY = 1e-12  # keeps logarithms finite; -120 dB


@dataclass(frozen=True, slots=True)
class Levels:
    """Measurements of consecutive frames of ``FRAME_S``.

    Attributes:
        level: float32 [n], power between 150 and 7000 Hz in dB; a full-scale sine has about -3.
        flatness: float32 [n], geometric over arithmetic mean of the spectrum in bands of 250 Hz,
            weighted by their power: noise of any colour has about 0.6, a vowel about 0.2.
        bands: float32 [n, n_bands], power in each band.
    """

    level: npt.NDArray[np.float32]
    flatness: npt.NDArray[np.float32]
    bands: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.level)

    def __getitem__(self, part: slice) -> Levels:
        return Levels(self.level[part], self.flatness[part], self.bands[part])

    def __add__(self, other: Levels) -> Levels:
        return join_levels([self, other])


def join_levels(parts: list[Levels]) -> Levels:
    """Measurements of frames that follow one another; at least one part."""
    return Levels(
        np.concatenate([part.level for part in parts]),
        np.concatenate([part.flatness for part in parts]),
        np.concatenate([part.bands for part in parts]),
    )


class LevelMeter:
    """Measures sound block by block.  A frame's window is centred on it."""

    def __init__(self, rate: int) -> None:
        self._hop = round(rate * FRAME_S)
        n_window = round(rate * _WINDOW_S)
        self._window = np.hanning(n_window).astype(np.float32)
        bins = np.fft.rfftfreq(n_window, 1 / rate)
        first, last = np.searchsorted(bins, [_LOW_HZ, _HIGH_HZ])
        self._n_bands = int(last - first) // _BAND
        self._band = slice(int(first), int(first) + self._n_bands * _BAND)
        # so scaled, the sum over a sine's bins is its power
        self._scale = 2 / (n_window * np.square(self._window).sum())
        self._kept = np.zeros((n_window - self._hop) // 2, np.float32)

    def feed(self, samples: Samples) -> Levels:
        """Frames whose whole window is known now."""
        sound = np.concatenate([self._kept, samples])
        n_frames = max(0, (len(sound) - len(self._window)) // self._hop + 1)
        self._kept = sound[n_frames * self._hop :]
        if n_frames == 0:
            return self.nothing()
        windows = np.lib.stride_tricks.sliding_window_view(sound, len(self._window))
        windows = windows[:: self._hop][:n_frames]
        return join_levels(
            [self._measure(windows[at : at + _PART]) for at in range(0, n_frames, _PART)]
        )

    def flush(self) -> Levels:
        """The frames at the end, as if silence followed."""
        return self.feed(np.zeros(len(self._window) // 2, np.float32))

    def nothing(self) -> Levels:
        """Measurements of no frames."""
        none = np.empty(0, np.float32)
        return Levels(none, none, np.empty((0, self._n_bands), np.float32))

    def _measure(self, windows: Samples) -> Levels:
        spectrum = np.fft.rfft(windows * self._window, axis=1)[:, self._band]
        power = np.square(np.abs(spectrum)) * self._scale + _TINY
        power = power.reshape(len(power), self._n_bands, _BAND)
        bands, total = power.sum(axis=2), power.sum(axis=(1, 2))
        # the arithmetic mean of a band times its weight is its share of the total, over _BAND
        geometric = np.exp(np.log(power).mean(axis=2))
        flatness = _BAND * geometric.sum(axis=1) / total
        level = 10 * np.log10(total)
        return Levels(
            level.astype(np.float32), flatness.astype(np.float32), bands.astype(np.float32)
        )
