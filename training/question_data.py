"""Batches of questions about pictures: reading, prices on receipts, coloured shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .frontend import picture_input
from .geometry import VisionGeometry
from .picture_data import (
    WORDS,
    Mark,
    Picture,
    cell_texts,
    glyph_targets,
    printed,
    word_targets,
)
from .shape_data import shape_question, shapes_picture
from .vision import used_size
from .vocabulary import Split, prompt, vocabulary

SLOTS_PER_CELL = 3
SHAPES = 0.25
Size = tuple[int, int]
# Sizes of pictures in pixels and how often they come; a batch shares one.
SIZES: dict[Size, float] = {
    (168, 168): 0.5,
    (336, 168): 0.16,
    (168, 336): 0.08,
    (252, 168): 0.08,
    (168, 112): 0.07,
    (140, 140): 0.06,
    (300, 120): 0.05,
}


@dataclass(frozen=True)
class Question:
    """A picture, what is asked about it, and the right answer."""

    picture: Picture
    text: str
    answer: str

    @property
    def is_reading(self) -> bool:
        """Whether the picture shows print."""
        return bool(self.picture.text)


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


def question(rng: random.Random, split: Split, size: Size) -> Question:
    """One question about one picture."""
    if rng.random() < SHAPES:
        picture, shapes = shapes_picture(rng, split, *size)
        return Question(picture, *shape_question(rng, shapes))
    return reading(rng, split, size)


def reading(rng: random.Random, split: Split, size: Size) -> Question:
    """Read everything, or one price where the lines are those of a receipt."""
    picture = printed(rng, split, *size)
    lines = [line.split(" ") for line in picture.text.split("\n")]
    items = [line[0] for line in lines]
    receipt = all(len(line) == 2 and "." in line[1] for line in lines)
    if receipt and len(set(items)) == len(items) and rng.random() < 0.25:
        item, price = rng.choice(lines)
        form = vocabulary()["picture_questions"]["price"]
        return Question(picture, form.format(item=item), price)
    return Question(picture, prompt("picture"), picture.text)


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


def draw_batch(rng: random.Random, split: Split, g: VisionGeometry, n_patches: int) -> PictureBatch:
    """Questions of one size drawn by weight, within a budget of encoded patches."""
    size = rng.choices(list(SIZES), list(SIZES.values()))[0]
    first = question(rng, split, size)
    batch = picture_batch([first], g)
    encoded_once = batch.grid == (1, 1) and bool(batch.mask.all())
    per_picture = g.grid**2 * (1 if encoded_once else len(batch.mask))
    others = [question(rng, split, size) for _ in range(n_patches // per_picture - 1)]
    return picture_batch([first, *others], g)
