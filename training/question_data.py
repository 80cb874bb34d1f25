"""Questions about pictures: reading, prices on receipts, coloured shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .canvas import lattice
from .geometry import VisionGeometry
from .picture_data import Picture, printed
from .shape_data import shape_question, shapes_picture
from .vocabulary import Split, prompt, vocabulary

SHAPES = 0.4
Size = tuple[int, int]
# Sizes of pictures in pixels and how often they come.
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
class Mixture:
    """Shares: of pictures with shapes, of counting among their questions, of prices on receipts."""

    shapes: float = SHAPES
    counts: float = 0.4
    prices: float = 0.25


EVEN = Mixture()


def question(rng: random.Random, split: Split, size: Size, mixture: Mixture = EVEN) -> Question:
    """One question about one picture."""
    if rng.random() < mixture.shapes:
        picture, shapes = shapes_picture(rng, split, *size)
        return Question(picture, *shape_question(rng, shapes, mixture.counts))
    return reading(rng, split, size, mixture.prices)


def reading(rng: random.Random, split: Split, size: Size, prices: float = 0.25) -> Question:
    """Read everything, or one price where the lines are those of a receipt."""
    picture = printed(rng, split, *size, lattice(*size, VisionGeometry()))
    lines = [line.split(" ") for line in picture.text.split("\n")]
    items = [line[0] for line in lines]
    receipt = all(len(line) == 2 and "." in line[1] for line in lines)
    if receipt and len(set(items)) == len(items) and rng.random() < prices:
        item, price = rng.choice(lines)
        form = vocabulary()["picture_questions"]["price"]
        return Question(picture, form.format(item=item), price)
    return Question(picture, prompt("picture"), picture.text)


def draw_size(rng: random.Random) -> Size:
    """A picture size by its weight."""
    return rng.choices(list(SIZES), list(SIZES.values()))[0]
