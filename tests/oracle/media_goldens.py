"""Asks the references what the media front ends must answer, and writes it to goldens/media.npz.

    cd tests && python -m oracle.media_goldens

Needs torch and transformers (README.md beside this file); run by hand, never by the tests.  Two
references are asked: ``frontend.py`` beside this file and transformers' processors of this model.
Where both answer, they must agree, or nothing is written.  The file also holds the inputs:

    texture             uint8 [67, 61, 3]; pictures are tilings of it
    plans               int32, one row per picture size: PLAN_COLUMNS; -1 where it is refused
    pixels.WxH          float32, every crop of that picture at PIXEL_STEPS
    cubic.48            float32 [3, 48, 48], torch's bicubic of the texture, at fractional steps
    clip.R              int16 samples at R Hz
    mel.R               float32 [n_frames, 80] by frontend.py
    mel.transformers    the same at 16000 Hz by transformers, whose last mel bin differs
"""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from oracle import torchvision_shim  # noqa: F401  (before transformers)

# isort: split
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from transformers.models.phi4_multimodal import (
    feature_extraction_phi4_multimodal,
    image_processing_phi4_multimodal,
)

from oracle import frontend

CROP, PATCH = 448, 14
PLAN_COLUMNS = (
    "width",
    "height",
    "max_crops",
    "cols",
    "rows",
    "valid_rows",
    "valid_cols",
    "tokens",
)
PIXEL_STEPS = np.s_[:, :, 3::37, 5::41]
PICTURES = (
    (20, 20),
    (448, 448),
    (449, 448),
    (150, 333),
    (700, 500),
    (1000, 450),
    (333, 999),
    (1344, 896),
    (3001, 2899),
)


def main() -> None:
    """Write the goldens."""
    out = Path(__file__).parents[1] / "goldens" / "media.npz"
    rng = np.random.RandomState(4)
    texture = rng.randint(0, 256, (67, 61, 3)).astype(np.uint8)
    clips = {rate: draw_clip(n, rate, rng) for n, rate in ((9600, 16000), (5651, 8000))}
    arrays = {"texture": texture, "cubic.48": cubic(texture), "plans": plan_all(), **mels(clips)}
    for width, height in PICTURES:
        arrays[f"pixels.{width}x{height}"] = crops(tile(texture, width, height))
    np.savez_compressed(out, **arrays)
    print(f"{out.name}: {out.stat().st_size} bytes, {len(arrays['plans'])} sizes")


def tile(texture: np.ndarray, width: int, height: int) -> Image.Image:
    """A picture of full contrast and detail."""
    rows, cols = -(-height // texture.shape[0]), -(-width // texture.shape[1])
    return Image.fromarray(np.tile(texture, (rows, cols, 1))[:height, :width])


def crops(image: Image.Image) -> np.ndarray:
    """Crops by frontend.py, sampled; transformers resizes with other code, up to 2 levels off."""
    pixels = frontend.picture(image)[0].numpy()
    processor = image_processing_phi4_multimodal.Phi4MultimodalImageProcessor()
    other = processor(images=image, return_tensors="np")["image_pixel_values"][0]
    gap = float(abs(pixels[1:] - other[1:]).max())
    print(f"pixels {image.size}: transformers within {gap * 255 / 2:.2f} levels")
    if pixels.shape != other.shape or gap > 2.01 * 2 / 255:
        raise SystemExit(f"the references disagree on the pixels of {image.size}")
    return pixels[PIXEL_STEPS]


def cubic(pixels: np.ndarray) -> np.ndarray:
    """Normalised pixels to 48 x 48."""
    image = (torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    return F.interpolate(image[None], (48, 48), mode="bicubic", align_corners=False)[0].numpy()


def draw_clip(n_samples: int, rate: int, rng: np.random.RandomState) -> np.ndarray:
    """A rising tone in noise, a click and a stretch of silence: int16."""
    t = np.arange(n_samples) / rate
    wave = 0.4 * np.sin(2 * np.pi * (150 + 0.2 * rate * t) * t) + 0.05 * rng.randn(n_samples)
    wave[n_samples // 2] = 0.9
    wave[n_samples * 3 // 5 : n_samples * 4 // 5] = 0
    return np.rint(np.clip(wave, -1, 1) * 32767).astype(np.int16)


def mels(clips: dict[int, np.ndarray]) -> dict[str, np.ndarray]:
    """Clips and their features."""
    arrays: dict[str, np.ndarray] = {}
    for rate, clip in clips.items():
        arrays[f"clip.{rate}"] = clip
        arrays[f"mel.{rate}"] = frontend.log_mel(clip / np.float32(32768), rate)
    extract = feature_extraction_phi4_multimodal.Phi4MultimodalFeatureExtractor()
    samples = clips[16000] / np.float32(32768)
    features = extract(samples, sampling_rate=16000)["audio_input_features"][0].numpy()
    gap = abs(features - arrays["mel.16000"])
    print(f"mel: transformers within {gap[:, :79].max():.1e}, last bin {gap[:, 79].max():.1e}")
    arrays["mel.transformers"] = features
    return arrays


def plan_all() -> np.ndarray:
    """int32 [n, len(PLAN_COLUMNS)]."""
    rows = []
    for max_crops in (36, 16, 5):
        for width, height in picture_sizes(max_crops):
            plan = transformers_plan(width, height, max_crops)
            if max_crops == frontend.MAX_CROPS and plan[0] > 0:
                check_frontend(width, height, plan)
            rows.append((width, height, max_crops, *plan))
    return np.array(rows, np.int32)


def picture_sizes(max_crops: int) -> list[tuple[int, int]]:
    """Random, thin, edge and tie cases; fewer for the settings of other models."""
    rng, n = random.Random(max_crops), 600 if max_crops == 36 else 60
    sizes = [(log_uniform(rng, 20, 9000), log_uniform(rng, 20, 9000)) for _ in range(n)]
    for _ in range(n // 6):
        thin, long = log_uniform(rng, 1, 60), log_uniform(rng, 300, 40000)
        sizes += [(long, thin), (thin, long)]
    edges = [k * CROP + d for k in (1, 2, 6, 7, 36) for d in (-1, 0, 1)]
    sizes += [(w, h) for w in edges for h in edges]
    ratios = sorted(
        {Fraction(i, j) for i in range(1, max_crops + 1) for j in range(1, max_crops // i + 1)}
    )
    middles = [(a + b) / 2 for a, b in pairwise(ratios)]
    for ratio in (*middles, *ratios):
        scale = -(-rng.randint(1500, 6000) // max(ratio.numerator, ratio.denominator))
        sizes.append((ratio.numerator * scale, ratio.denominator * scale))
    return sizes


def log_uniform(rng: random.Random, low: int, high: int) -> int:
    return int(low * (high / low) ** rng.random())


def check_frontend(width: int, height: int, plan: tuple[int, ...]) -> None:
    cols, rows, valid_rows, valid_cols, tokens = plan
    agrees = frontend.grid(width, height) == (cols, rows)
    if agrees and width * height < 300_000:
        _, mask, grid = frontend.picture(Image.new("RGB", (width, height)))
        valid = mask[1:].view(rows, cols, 32, 32)
        counted = int(valid[:, 0, :, 0].sum()), int(valid[0, :, 0, :].sum())
        agrees = counted == (valid_rows, valid_cols)
        agrees &= frontend.picture_tokens(mask, *grid) == tokens
    if not agrees:
        raise SystemExit(f"the references disagree on {width}x{height}")


def transformers_plan(width: int, height: int, max_crops: int) -> tuple[int, int, int, int, int]:
    """Its (cols, rows, valid rows, valid columns, tokens) without pixels; -1 each if it refuses."""
    module = image_processing_phi4_multimodal
    processor = module.Phi4MultimodalImageProcessor()
    without_pixels = SimpleNamespace(
        resize=lambda image, size: blank(*size),
        pad=lambda image, box, fill: blank(image.shape[1] + box[3], image.shape[2] + box[2]),
    )
    with (
        patch.object(module, "tvF", without_pixels),
        patch.object(processor, "resize", lambda image, size, **_: blank(CROP, CROP)),
        patch.object(processor, "rescale_and_normalize", lambda image, *_: image),
    ):
        try:
            answer = processor._preprocess(
                [blank(height, width)],
                do_resize=True,
                size=SimpleNamespace(height=CROP, width=CROP),
                resample=None,
                do_rescale=True,
                rescale_factor=1 / 255,
                do_normalize=True,
                image_mean=0.5,
                image_std=0.5,
                patch_size=PATCH,
                dynamic_hd=max_crops,
                return_tensors=None,
            )
        except ValueError:  # "the aspect ratio is very extreme"
            return (-1,) * 5
    rows, cols = (int(side) // CROP for side in answer["image_sizes"][0])
    valid = answer["image_attention_mask"][0, 1:].view(rows, cols, CROP // PATCH, CROP // PATCH)
    valid_rows, valid_cols = int(valid[:, 0, :, 0].sum()), int(valid[0, :, 0, :].sum())
    return cols, rows, valid_rows, valid_cols, answer["num_img_tokens"][0]


def blank(height: int, width: int) -> torch.Tensor:
    """A picture that takes no memory."""
    return torch.zeros(1, dtype=torch.uint8).expand(3, height, width)


if __name__ == "__main__":
    main()
