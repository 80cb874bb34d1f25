"""Pictures and sound to the encoders' input, as the reference processors do it.

Source: docs/model.md, "Grid" and "Log-mel".
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .canvas import Canvas, plan, valid_patches
from .geometry import RATE


def picture_input(
    image: Image.Image, crop: int, patch: int, max_crops: int
) -> tuple[Tensor, Tensor, Canvas]:
    """Pixels [1 + crops, 3, crop, crop] (global view first), mask [1 + crops, g, g], layout."""
    image = image.convert("RGB")
    canvas = plan(*image.size, crop, max_crops)
    full_w, full_h, g = canvas.cols * crop, canvas.rows * crop, crop // patch
    sheet = Image.new("RGB", (full_w, full_h), (255, 255, 255))
    size = (canvas.width, canvas.height)
    sheet.paste(
        image if image.size == size else image.resize(size, Image.Resampling.BILINEAR), (0, 0)
    )
    mask = torch.zeros(canvas.rows * g, canvas.cols * g, dtype=torch.bool)
    valid_rows, valid_cols = valid_patches(canvas, crop, patch)
    mask[:valid_rows, :valid_cols] = True
    x = (torch.from_numpy(np.array(sheet)).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    whole = F.interpolate(x[None], size=(crop, crop), mode="bicubic", align_corners=False)
    crops = x.unflatten(1, (canvas.rows, crop)).unflatten(3, (canvas.cols, crop))
    crops = crops.permute(1, 3, 0, 2, 4).flatten(0, 1)
    masks = mask.unflatten(0, (canvas.rows, g)).unflatten(2, (canvas.cols, g)).transpose(1, 2)
    all_valid = torch.ones(1, g, g, dtype=torch.bool)
    return torch.cat([whole, crops]), torch.cat([all_valid, masks.flatten(0, 1)]), canvas


@lru_cache(maxsize=1)
def mel_matrix(n_fft: int = 512, n_mel: int = 80, top_hz: float = 7690.0) -> Tensor:
    """Triangular filters [bins, mels] over FFT bins 1 to 245, no area normalisation."""

    def mel(hz: float) -> float:
        return 1127 * math.log(1 + hz / 700)

    step = mel(top_hz) / (n_mel + 1)
    centres = np.arange(n_mel + 2) * step
    filters = np.zeros((n_fft // 2 + 1, n_mel), np.float32)
    for index in range(1, int(top_hz * n_fft / RATE + 0.5)):
        weight = 1 - np.abs(centres[1:-1] - mel(index * RATE / n_fft)) / step
        filters[index] = np.maximum(weight, 0)
    return torch.from_numpy(filters)


def log_mel(waves: Tensor, rate: int = RATE) -> Tensor:
    """[batch, samples] in -1..1 at 16000 or 8000 Hz -> [batch, frames, 80]."""
    window, hop, n_fft = (400, 160, 512) if rate == RATE else (200, 80, 256)
    frames = waves.unfold(-1, window, hop)
    previous = torch.cat([frames[..., :1], frames[..., :-1]], -1)
    shape = torch.hamming_window(window, periodic=False, dtype=torch.float64).float()
    spectrum = torch.fft.rfft((frames - 0.97 * previous) * 32768 * shape, n=n_fft)
    if rate != RATE:
        spectrum = F.pad(spectrum[..., :-1], (0, 129))
    power = spectrum.real**2 + spectrum.imag**2
    return (power @ mel_matrix()).clamp(min=1.0).log()


def read_rgb(pixels: NDArray[np.uint8]) -> Image.Image:
    """An image from rows of RGB bytes."""
    return Image.fromarray(pixels)
