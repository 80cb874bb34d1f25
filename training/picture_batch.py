"""Batches of questions about pictures of one size, as the model takes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .frontend import Canvas, picture_input, plan, valid_patches
from .geometry import VisionGeometry
from .picture_data import WORDS, Mark, Picture, cell_texts, glyph_targets, word_targets
from .question_data import Question, draw_size, question
from .vocabulary import Split, vocabulary

SLOTS_PER_CELL = 4


@dataclass(frozen=True)
class PictureBatch:
    """Questions about pictures of one size, with the throw-away targets of their cells."""

    pixels: Tensor  # [n, 1 + crops, 3, side, side]
    mask: Tensor  # [1 + crops, g, g] bool
    grid: tuple[int, int]
    questions: list[Question]
    characters: Tensor  # [n, patch rows, patch columns, slots]
    words: Tensor  # [n, rows, columns]
    said: Tensor  # [n, rows, columns, SLOTS_PER_CELL]
    said_whole: Tensor  # [n, g/2, g/2, SLOTS_PER_CELL]


def cell_words() -> list[str]:
    """What a cell can say: printed words, the characters of numbers, colours, shapes."""
    return [*WORDS, *"0123456789.$", *vocabulary()["colours"], *vocabulary()["shapes"]]


CELL_WORDS = {text: index + 1 for index, text in enumerate(cell_words())}


def _scaled(marks: list[Mark], scale: float) -> list[Mark]:
    return [Mark(m.text, m.x * scale, m.y * scale) for m in marks]


def layout(size: tuple[int, int], g: VisionGeometry) -> Canvas:
    """How a picture of this size, in pixels, meets the grid of crops."""
    return plan(*size, g.crop, g.max_crops)


def said(picture: Picture, g: VisionGeometry) -> tuple[Tensor, Tensor]:
    """What the cells of the canvas and those of the global view are to say; 0: nothing.

    [rows, columns, slots] each. The global view repeats a picture of a single crop; that of a
    larger one shows the print too small, and says nothing.
    """
    canvas, cell, half = layout(picture.image.size, g), 2 * g.patch, g.grid // 2
    rows, cols = (-(-n // 2) for n in valid_patches(canvas, g.crop, g.patch))
    texts = cell_texts(picture, canvas.scale, rows, cols, cell, SLOTS_PER_CELL)
    sub = torch.tensor([[[CELL_WORDS.get(t, 0) for t in c] for c in row] for row in texts])
    whole = torch.zeros(half, half, SLOTS_PER_CELL, dtype=torch.long)
    if canvas.rows * canvas.cols == 1:
        whole[:rows, :cols] = sub
    return sub, whole


def picture_batch(questions: list[Question], g: VisionGeometry) -> PictureBatch:
    """Run pictures of one size through the front end and lay out their targets."""
    inputs = [picture_input(q.picture.image, g.crop, g.patch, g.max_crops) for q in questions]
    _, mask, canvas = inputs[0]
    saying = [said(q.picture, g) for q in questions]
    rows, cols = saying[0][0].shape[:2]
    characters, words = [], []
    for q in questions:
        glyphs = _scaled(q.picture.glyphs, canvas.scale)
        marks = _scaled(q.picture.words, canvas.scale)
        characters.append(glyph_targets(glyphs, 2 * rows, 2 * cols, g.patch))
        words.append(word_targets(marks, rows, cols, 2 * g.patch))
    return PictureBatch(
        torch.stack([pixels for pixels, _, _ in inputs]),
        mask,
        (canvas.rows, canvas.cols),
        questions,
        torch.from_numpy(np.stack(characters)),
        torch.from_numpy(np.stack(words)),
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
) -> PictureBatch:
    """Questions of one size drawn by weight, within a budget of encoded patches."""
    size = draw_size(rng)

    def draw() -> Question:
        while True:
            drawn = question(rng, split, size)
            if askable(drawn.text):
                return drawn

    first = draw()
    batch = picture_batch([first], g)
    encoded_once = batch.grid == (1, 1) and bool(batch.mask.all())
    per_picture = g.grid**2 * (1 if encoded_once else len(batch.mask))
    return picture_batch([first, *(draw() for _ in range(n_patches // per_picture - 1))], g)
