"""Log-mel features of a clip, and how many frames and tokens it makes.

Source: docs/model.md, "Log-mel".  Frames are taken as they come: no centring, no padding at the
edges; samples after the last whole frame are dropped, as in the reference.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phi4mm.errors import MediaError
from phi4mm.media.params import FrameParams, MelParams

Samples = npt.NDArray[np.float32]
Mel = npt.NDArray[np.float32]

# Frames transformed at a time: about 40 MB of float64 spectra at 512 points.
_BLOCK_FRAMES = 4096


def n_frames(n_samples: int, rate: int, params: MelParams) -> int:
    """Whole frames in ``n_samples`` at ``rate`` Hz; 0 if there is not one."""
    frames = params.frames_at(rate)
    return max(0, (n_samples - frames.window) // frames.hop + 1)


def n_audio_tokens(n_frames: int, params: MelParams) -> int:
    """Soft tokens of a clip with ``n_frames`` frames."""
    return -(-n_frames // params.compression)


def log_mel(samples: Samples, rate: int, params: MelParams) -> Mel:
    """Log-mel features of mono samples.

    Args:
        samples: float32 [n_samples], nominally -1..1.
        rate: one of the two rates of ``params``, in Hz.
        params: frame, bank and scale settings.

    Returns:
        float32 [n_frames, n_mels], natural logarithms; silence is exactly ``log(floor)``.

    Raises:
        MediaError: there is not one whole frame.
    """
    frames = params.frames_at(rate)
    count = n_frames(len(samples), rate, params)
    if count == 0:
        raise MediaError(
            f"{len(samples)} samples at {rate} Hz: a frame needs {frames.window} samples"
        )
    windows = np.lib.stride_tricks.sliding_window_view(samples, frames.window)[:: frames.hop]
    bank = mel_bank(params)
    features = np.empty((count, params.n_mels), np.float32)
    for start in range(0, count, _BLOCK_FRAMES):
        block = slice(start, min(start + _BLOCK_FRAMES, count))
        power = _power(_emphasise(windows[block], params), frames)
        # Narrow frames lack the upper bins of the bank: those count as zero.
        mel = power @ bank[: power.shape[1]]
        features[block] = np.log(np.maximum(mel, np.float32(params.floor)))
    return features


def _emphasise(frames: Samples, params: MelParams) -> Samples:
    """Pre-emphasis within each frame, in float32; a frame's first sample precedes itself."""
    previous = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    emphasised: Samples = frames - np.float32(params.preemphasis) * previous
    emphasised *= np.float32(params.scale)
    return emphasised


def _power(emphasised: Samples, frames: FrameParams) -> Samples:
    """float32 [n, bins]: power spectrum under a symmetric Hamming window.

    The transform is float64, its result complex64 and the magnitude float32, as in the reference.
    The last bin, at half the rate, is left out: of narrow frames the reference drops it, and in
    wide frames the bank ends below it.
    """
    spectrum = np.fft.rfft(emphasised * np.hamming(frames.window), n=frames.n_fft, axis=1)
    magnitude: Samples = np.abs(spectrum[:, :-1].astype(np.complex64))
    return magnitude * magnitude


def mel_bank(params: MelParams) -> npt.NDArray[np.float32]:
    """Triangles of equal height, evenly spaced in mel: float32 [n_fft / 2, n_mels] of wide frames.

    m(f) = 1127 ln(1 + f / 700).  The constant bin and those from the rounded top bin on have no
    weight: with the published settings bins 1..245 of 257 do.
    """
    n_fft, rate = params.wide.n_fft, params.wide.sample_rate
    bins = np.arange(n_fft // 2)
    mel = _hz_to_mel(bins * rate / n_fft)
    top = _hz_to_mel(np.float64(params.top_hz))
    spacing = top / (params.n_mels + 1)
    peaks = spacing * np.arange(1, params.n_mels + 1)
    weights = np.maximum(0.0, 1.0 - np.abs(peaks - mel[:, None]) / spacing)
    weights[0] = 0.0
    weights[int(params.top_hz * n_fft / rate + 0.5) :] = 0.0
    return weights.astype(np.float32)


def _hz_to_mel(hz: npt.NDArray[np.float64] | np.float64) -> npt.NDArray[np.float64]:
    return np.asarray(1127.0 * np.log1p(hz / 700.0))
