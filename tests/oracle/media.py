"""Pictures and clips of the tests, the same to the last bit on every machine.

Whole numbers and IEEE additions and multiplications only: no sine, logarithm or normal numbers of
the C library, whose last bits differ between platforms.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

# File name -> (width, height) or (samples, rate).  150x333 leaves odd counts of valid patches.
PICTURES = {
    "i448x448.png": (448, 448),
    "i700x500.png": (700, 500),
    "i150x333.png": (150, 333),
    "i1000x450.png": (1000, 450),
}
CLIPS = {
    "a48077_16000.wav": (48077, 16000),
    "a33234_16000.wav": (33234, 16000),
    "a688055_16000.wav": (688055, 16000),
    "a16000_8000.wav": (16000, 8000),
}


def write_media(out_dir: Path) -> Path:
    """Writes every picture (PNG) and clip (WAV, float) into ``out_dir`` and returns that folder."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, values in draw_media().items():
        if name in PICTURES:
            Image.fromarray(values).save(out_dir / name)
        else:
            soundfile.write(out_dir / name, values, CLIPS[name][1], subtype="FLOAT")
    return out_dir


def draw_media() -> dict[str, np.ndarray]:
    """Pixels and samples of every picture and clip, by file name."""
    pictures = {
        name: draw_picture(*size, seed) for seed, (name, size) in enumerate(PICTURES.items(), 1)
    }
    clips = {name: draw_clip(*size, seed) for seed, (name, size) in enumerate(CLIPS.items(), 1)}
    return pictures | clips


def draw_picture(width: int, height: int, seed: int) -> np.ndarray:
    """Ripples along both sides, a fine chequered pattern and noise: (height, width, 3) uint8."""
    y, x = np.mgrid[0:height, 0:width]
    pattern = (x * 255 // max(width - 1, 1)) ^ (y * 255 // max(height - 1, 1))
    plain = np.stack([28 + ripple(x + 17 * seed, 106), 28 + ripple(y, 144), pattern], axis=-1)
    noise = np.floor(np.random.RandomState(seed).random_sample((height, width, 1)) * 41) - 20
    return np.clip(plain + noise, 0, 255).astype(np.uint8)


def ripple(x: np.ndarray, period: int) -> np.ndarray:
    """A triangular wave between 0 and 200, in whole numbers."""
    return 200 - abs(2 * (x % period) - period) * 200 // period


def draw_clip(n_samples: int, rate: int, seed: int) -> np.ndarray:
    """A tone gliding between 200 and 800 Hz, another that comes and goes, and noise: float32."""
    rng = np.random.RandomState(seed)
    index = np.arange(n_samples, dtype=np.int64)
    glide = 200 + 3 * ripple(index * 140 // rate, 200)
    chirp = tone(np.cumsum(glide), rate)
    beep = tone(1234 * index, rate) * (index * 6 // rate % 2)
    noise = rng.random_sample(n_samples) + rng.random_sample(n_samples) - 1.0
    return (0.25 * chirp + 0.1 * beep + 0.05 * noise).astype(np.float32)


def tone(phase: np.ndarray, rate: int) -> np.ndarray:
    """A wave of one period per ``rate`` steps of ``phase``: two parabolas, close to a sine."""
    x = (phase % rate) * (2.0 / rate) - 1.0
    return 4.0 * x * (1.0 - abs(x))
