"""Batches of questions about pictures of one size, as the model takes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .canvas import Mark, lattice, plan
from .frontend import picture_input
from .geometry import VisionGeometry
from .picture_data import Picture, cell_classes, glyph_targets
from .question_data import EVEN, Mixture, Question, draw_size, question
from .vocabulary import Split


@dataclass(frozen=True)
class PictureBatch:
    """Questions about pictures of one size, with the throw-away targets of their cells."""

    pixels: Tensor  # [n, 1 + crops, 3, side, side]
    mask: Tensor  # [1 + crops, g, g] bool
    grid: tuple[int, int]
    questions: list[Question]
    characters: Tensor  # [n, patch rows, patch columns, slots]
    said: Tensor  # [n, rows, columns, SLOTS_PER_CELL]
    said_whole: Tensor  # [n, g/2, g/2, SLOTS_PER_CELL]


def _scaled(marks: list[Mark], scale: float) -> list[Mark]:
    return [Mark(m.text, m.x * scale, m.y * scale) for m in marks]


def said(picture: Picture, g: VisionGeometry) -> tuple[Tensor, Tensor]:
    """What the cells of the canvas and those of the global view are to say; 0: nothing.

    [rows, columns, slots] each. The global view repeats a picture of a single crop; that of a
    larger one shows the print too small, and says nothing.
    """
    sub = torch.from_numpy(cell_classes(picture, lattice(*picture.image.size, g)))
    half = g.grid // 2
    whole = torch.zeros(half, half, sub.shape[-1], dtype=torch.long)
    canvas = plan(*picture.image.size, g.crop, g.max_crops)
    if canvas.rows * canvas.cols == 1:
        whole[: sub.shape[0], : sub.shape[1]] = sub
    return sub, whole


def picture_batch(questions: list[Question], g: VisionGeometry) -> PictureBatch:
    """Run pictures of one size through the front end and lay out their targets."""
    inputs = [picture_input(q.picture.image, g.crop, g.patch, g.max_crops) for q in questions]
    _, mask, canvas = inputs[0]
    saying = [said(q.picture, g) for q in questions]
    rows, cols = saying[0][0].shape[:2]
    characters = [
        glyph_targets(_scaled(q.picture.glyphs, canvas.scale), 2 * rows, 2 * cols, g.patch)
        for q in questions
    ]
    return PictureBatch(
        torch.stack([pixels for pixels, _, _ in inputs]),
        mask,
        (canvas.rows, canvas.cols),
        questions,
        torch.from_numpy(np.stack(characters)),
        torch.stack([sub for sub, _ in saying]),
        torch.stack([whole for _, whole in saying]),
    )


def anything(_: str) -> bool:
    """Every question may be asked."""
    return True


def draw_batch(
    rng: random.Random,
    split: Split,
    g: VisionGeometry,
    n_patches: int,
    askable: Callable[[str], bool] = anything,
    mixture: Mixture = EVEN,
) -> PictureBatch:
    """Questions of one size drawn by weight, within a budget of encoded patches."""
    size = draw_size(rng)

    def draw() -> Question:
        while True:
            drawn = question(rng, split, size, mixture)
            if askable(drawn.text):
                return drawn

    first = draw()
    batch = picture_batch([first], g)
    encoded_once = batch.grid == (1, 1) and bool(batch.mask.all())
    per_picture = g.grid**2 * (1 if encoded_once else len(batch.mask))
    return picture_batch([first, *(draw() for _ in range(n_patches // per_picture - 1))], g)
