"""Synthetic pictures of coloured shapes, with questions about them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from PIL import ImageDraw

from .canvas import Mark
from .picture_data import Colour, Picture, Style, add_noise, blank, random_colour
from .vocabulary import Split, split_of, vocabulary


@dataclass(frozen=True)
class Shape:
    """One coloured shape."""

    name: str
    colour: str


RGB: dict[str, Colour] = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (30, 60, 220),
    "yellow": (240, 210, 30),
    "black": (15, 15, 15),
    "purple": (140, 40, 170),
}


def _outline(
    name: str, x: float, y: float, radius: float, turn: float
) -> list[tuple[float, float]]:
    """Corners of a shape around its centre; a circle is a polygon of 40."""
    n, inner = {"circle": (40, 1.0), "square": (4, 1.0), "triangle": (3, 1.0), "star": (10, 0.42)}[
        name
    ]
    points = []
    for k in range(n):
        angle = turn + 2 * math.pi * k / n
        r = radius * (inner if k % 2 else 1.0)
        points.append((x + r * math.sin(angle), y - r * math.cos(angle)))
    return points


def _draw_shape(
    draw: ImageDraw.ImageDraw, shape: Shape, box: tuple[float, float, float], rng: random.Random
) -> tuple[Mark, Mark]:
    """Draw a shape somewhere in its box; marks of its colour and its name, in this order."""
    x, y, room = box
    radius = room * rng.uniform(0.28, 0.46)
    turn = {"square": math.pi / 4, "circle": 0.0}.get(shape.name, 0.0) + rng.uniform(-0.15, 0.15)
    x, y = (c + rng.uniform(-1, 1) * (room / 2 - radius) for c in (x, y))
    colour = tuple(min(255, max(0, c + rng.randint(-25, 25))) for c in RGB[shape.colour])
    draw.polygon(_outline(shape.name, x, y, radius, turn), fill=colour)
    return Mark(shape.colour, x, y), Mark(shape.name, x, y)


def _choose_shapes(rng: random.Random, split: Split, n: int) -> list[Shape]:
    """n shapes; a set of several belongs to one split."""
    v = vocabulary()
    while True:
        shapes = [Shape(rng.choice(v["shapes"]), rng.choice(v["colours"])) for _ in range(n)]
        if n == 1 or split_of(*sorted(f"{s.colour} {s.name}" for s in shapes)) == split:
            return shapes


def shapes_picture(
    rng: random.Random, split: Split, width: int, height: int
) -> tuple[Picture, list[Shape]]:
    """One to five coloured shapes on light paper, one per place of a loose lattice."""
    style = Style(random_colour(rng, 215, 255), (0, 0, 0), 0.0, rng.choice([0, 0, 3, 6]))
    image = blank(style, width, height, rng)
    draw, room = ImageDraw.Draw(image), rng.choice([48, 56, 66])
    cols, rows = int(width // room), int(height // room)
    shapes = _choose_shapes(rng, split, min(rng.randint(1, 5), cols * rows))
    places = rng.sample(range(cols * rows), len(shapes))
    marks = []
    for place, shape in zip(places, shapes, strict=True):
        x, y = (place % cols + 0.5) * width / cols, (place // cols + 0.5) * height / rows
        marks.append(_draw_shape(draw, shape, (x, y, room), rng))
    return Picture(add_noise(image, style, rng), shapes=marks), shapes


def shape_question(rng: random.Random, shapes: list[Shape], counts: float = 0.4) -> tuple[str, str]:
    """A question with one right answer, and the answer; at least a share of them counts."""
    forms, v = vocabulary()["picture_questions"], vocabulary()
    names, colours = [s.name for s in shapes], [s.colour for s in shapes]
    askable: list[tuple[str, str]] = []
    for name in sorted(set(names)):
        if names.count(name) == 1:
            askable.append((forms["colour"].format(shape=name), colours[names.index(name)]))
    for colour in sorted(set(colours)):
        if colours.count(colour) == 1:
            askable.append((forms["shape"].format(colour=colour), names[colours.index(colour)]))
    counted = rng.choice(names) if rng.random() < 0.75 else rng.choice(v["shapes"])
    how_many = [
        (forms["count"].format(shape=counted), str(names.count(counted))),
        (forms["count_all"], str(len(shapes))),
    ]
    if askable and rng.random() < 1 - counts:
        return rng.choice(askable)
    return how_many[0] if rng.random() < 0.7 else how_many[1]
