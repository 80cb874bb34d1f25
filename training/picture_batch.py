"""Batches of questions about pictures of one size, as the model takes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .frontend import picture_input
from .geometry import VisionGeometry
from .picture_data import WORDS, Mark, cell_texts, glyph_targets, word_targets
from .question_data import Question, draw_size, question
from .vision import used_size
from .vocabulary import Split

SLOTS_PER_CELL = 3


@dataclass(frozen=True)
class PictureBatch:
    """Questions about pictures of one size, with the throw-away targets of their cells."""

    pixels: Tensor  # [n, 1 + crops, 3, side, side]
    mask: Tensor  # [1 + crops, g, g] bool
    grid: tuple[int, int]
    questions: list[Question]
    characters: Tensor  # [n, patch rows, patch columns, slots]
    words: Tensor  # [n, rows, columns]
    anchors: Tensor  # [n, rows, columns, SLOTS_PER_CELL]


def anchor_classes() -> list[str]:
    """What a cell can be anchored to: printed words, then the characters of numbers."""
    return [*WORDS, *"0123456789.$"]


ANCHORS = {text: index + 1 for index, text in enumerate(anchor_classes())}


def _scaled(marks: list[Mark], scale: float) -> list[Mark]:
    return [Mark(m.text, m.x * scale, m.y * scale) for m in marks]


def picture_batch(questions: list[Question], g: VisionGeometry) -> PictureBatch:
    """Run pictures of one size through the front end and lay out their targets."""
    inputs = [picture_input(q.picture.image, g.crop, g.patch, g.max_crops) for q in questions]
    _, mask, canvas = inputs[0]
    rows, cols = used_size(mask, (canvas.rows, canvas.cols))
    characters, words, anchors = [], [], []
    for q in questions:
        glyphs = _scaled(q.picture.glyphs, canvas.scale)
        marks = _scaled(q.picture.words, canvas.scale)
        characters.append(glyph_targets(glyphs, 2 * rows, 2 * cols, g.patch))
        words.append(word_targets(marks, rows, cols, 2 * g.patch))
        texts = cell_texts(glyphs, marks, rows, cols, 2 * g.patch, SLOTS_PER_CELL)
        anchors.append([[[ANCHORS.get(t, 0) for t in cell] for cell in row] for row in texts])
    return PictureBatch(
        torch.stack([pixels for pixels, _, _ in inputs]),
        mask,
        (canvas.rows, canvas.cols),
        questions,
        torch.from_numpy(np.stack(characters)),
        torch.from_numpy(np.stack(words)),
        torch.tensor(anchors),
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
