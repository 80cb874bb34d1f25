"""Pictures and clips to the tensors that the reference's encoders take, in numpy, PIL and torch.

Written from docs/model.md and kept apart from the package, so that each checks the other.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

MAX_CROPS = 36


def grid(width: int, height: int, size: int = 448) -> tuple[int, int]:
    """(columns, rows) of crops for a picture of this many pixels."""
    columns, rows = math.ceil(width / size), math.ceil(height / size)
    if columns * rows <= MAX_CROPS:
        return columns, rows
    sides = range(1, MAX_CROPS + 1)
    pairs = sorted(
        {(i, j) for n in sides for i in range(1, n + 1) for j in range(1, n + 1) if i * j <= 36},
        key=lambda pair: pair[0] * pair[1],
    )
    best, least = (1, 1), math.inf
    for i, j in pairs:
        gap = abs(width / height - i / j)
        large = width * height > 0.5 * size * size * i * j
        if gap < least or (gap == least and large):
            best, least = (i, j), gap
    return best


def picture(
    image: Image.Image, size: int = 448, patch: int = 14
) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """Crops of a picture.

    Returns:
        Pixels (1 + n, 3, size, size), the global view first and then the crops row by row; the mask
        of valid patches (1 + n, g, g); (rows, columns) of crops.
    """
    image, side = image.convert("RGB"), size // patch
    width, height = image.size
    columns, rows = grid(width, height, size)
    canvas_width, canvas_height = columns * size, rows * size
    x_ratio, y_ratio = canvas_width / width, canvas_height / height
    if x_ratio < y_ratio:
        new_width, new_height = canvas_width, int(height * x_ratio)
    else:
        new_width, new_height = int(width * y_ratio), canvas_height
    canvas = Image.new("RGB", (canvas_width, canvas_height), (255, 255, 255))
    canvas.paste(image.resize((new_width, new_height), Image.Resampling.BILINEAR), (0, 0))

    mask = torch.ones(rows * side, columns * side)
    mask[rows * side - (canvas_height - new_height) // patch :, :] = 0
    mask[:, columns * side - (canvas_width - new_width) // patch :] = 0
    pixels = (torch.from_numpy(np.array(canvas)).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    view = F.interpolate(pixels[None], size=(size, size), mode="bicubic", align_corners=False)
    crops = pixels.view(3, rows, size, columns, size).permute(1, 3, 0, 2, 4)
    masks = mask.view(rows, side, columns, side).permute(0, 2, 1, 3)
    return (
        torch.cat([view, crops.reshape(-1, 3, size, size)]),
        torch.cat([torch.ones(1, side, side), masks.reshape(-1, side, side)]),
        (rows, columns),
    )


def picture_tokens(mask: torch.Tensor, rows: int, columns: int) -> int:
    """Soft tokens of a picture: valid rows with separators, view separator, global rows."""
    side = mask.shape[-1]
    whole = mask[1:].view(rows, columns, side, side).permute(0, 2, 1, 3)
    whole = whole.reshape(rows * side, columns * side)
    valid_rows, valid_columns = (math.ceil(int(line.sum()) / 2) for line in (whole[:, 0], whole[0]))
    pooled = side // 2
    return valid_rows * (valid_columns + 1) + 1 + pooled * (pooled + 1)


def mel_bank(rate: int = 16000, n_fft: int = 512, n_mels: int = 80, top: float = 7690.0):
    """Triangles over the FFT bins: (n_fft // 2 + 1, n_mels)."""

    def mel(hz: float) -> float:
        return 1127 * np.log(1 + hz / 700)

    centres, step = np.linspace(0, mel(top), n_mels + 2), mel(top) / (n_mels + 1)
    bank = np.zeros((n_fft // 2 + 1, n_mels), np.float32)
    for index in range(1, int(top * n_fft / rate + 0.5)):
        gap = abs(centres[1:-1] - mel(index * rate / n_fft))
        bank[index] = np.maximum(0, 1 - gap / step)
    return bank


def log_mel(samples: np.ndarray, rate: int = 16000) -> np.ndarray:
    """Samples (n,) float32 at 16000 or 8000 Hz to (n_frames, 80) float32."""
    window, hop, n_fft = (400, 160, 512) if rate == 16000 else (200, 80, 256)
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop].astype(np.float32)
    previous = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    emphasised = ((frames - 0.97 * previous) * 32768).astype(np.float32)
    spectrum = np.fft.rfft(np.hamming(window) * emphasised, n=n_fft, axis=1)
    if rate == 8000:
        spectrum = np.concatenate([spectrum[:, :-1], np.zeros((len(spectrum), 129))], axis=1)
    power = np.abs(spectrum.astype(np.complex64)).astype(np.float32) ** 2
    return np.log(np.maximum(power @ mel_bank(), 1.0)).astype(np.float32)
