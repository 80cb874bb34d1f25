"""Synthetic pictures: pages of glyphs, printed lines, receipts, coloured shapes.

Every picture knows where its characters and words are, for the throw-away targets that train the
encoder. Held out: fonts, sizes, background colours, and combinations of words.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .canvas import Lattice, Mark
from .vocabulary import Split, split_of, vocabulary

# What a cell can say: printed words, digits and the point, colours, shapes.
CELL_WORDS = [
    *vocabulary()["print_words"],
    *"0123456789.",
    *vocabulary()["colours"],
    *vocabulary()["shapes"],
]
# Said beside a digit, and beside a colour.
BESIDE = (".", *vocabulary()["shapes"])
CELL_CLASSES = {text: index + 1 for index, text in enumerate(CELL_WORDS)}
SLOTS_PER_CELL = 2
ALONE = 0.15  # share of printed pictures with a single word
LAYOUTS_TRIED = 10
FACES_TRIED = 6
FONT_ROOT = Path("/usr/share/fonts")
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Picture:
    """Pixels with what is written there: single characters, or units (words and numbers) as the
    marks of their characters; and the colour and the name of each shape."""

    image: Image.Image
    text: str = ""
    characters: list[Mark] = field(default_factory=list)
    units: list[list[Mark]] = field(default_factory=list)
    shapes: list[tuple[Mark, Mark]] = field(default_factory=list)

    @property
    def glyphs(self) -> list[Mark]:
        """Every character."""
        return [*self.characters, *chain.from_iterable(self.units)]


@lru_cache(maxsize=1)
def _font_files() -> dict[str, Path]:
    return {path.name: path for path in FONT_ROOT.rglob("*.[ot]tf")}


@lru_cache(maxsize=4096)
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font file of the system by its file name."""
    return ImageFont.truetype(str(_font_files()[name]), size, layout_engine=ImageFont.Layout.BASIC)


@dataclass(frozen=True)
class Style:
    """Colours and disturbances of one picture."""

    paper: Colour
    ink: Colour
    slope: float = 0.0
    noise: float = 0.0
    frame: bool = False


def random_colour(rng: random.Random, low: int, high: int) -> Colour:
    """Red, green and blue, each between low and high."""
    return (rng.randint(low, high), rng.randint(low, high), rng.randint(low, high))


def draw_style(rng: random.Random, split: Split, strength: float = 1.0) -> Style:
    """strength 0: black on white; 1: the full range. Held-out papers are yellowish or bluish."""
    if rng.random() > strength:
        level = rng.randint(225, 255)
        return Style((level,) * 3, (rng.randint(0, 30),) * 3)
    paper, ink = random_colour(rng, 160, 255), random_colour(rng, 0, 80)
    if split != "train":
        tint = rng.randint(140, 160)
        paper = (rng.randint(200, 255), rng.randint(200, 255), tint)
        paper = paper if rng.random() < 0.5 else paper[::-1]
    elif rng.random() < 0.2:
        paper, ink = random_colour(rng, 0, 70), random_colour(rng, 180, 255)
    slope = rng.uniform(-25, 25) if rng.random() < 0.3 else 0.0
    noise = rng.uniform(2, 10) if rng.random() < 0.5 else 0.0
    return Style(paper, ink, slope, noise, rng.random() < 0.15)


def blank(style: Style, width: int, height: int, rng: random.Random) -> Image.Image:
    """Paper of one colour, possibly shaded along one axis and framed."""
    pixels = np.broadcast_to(np.array(style.paper, np.float32), (height, width, 3))
    if style.slope:
        ramp = np.linspace(-1, 1, width if rng.random() < 0.5 else height, dtype=np.float32)
        ramp = ramp * style.slope
        pixels = pixels + (ramp[None, :, None] if len(ramp) == width else ramp[:, None, None])
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if style.frame:
        ImageDraw.Draw(image).rectangle([1, 1, width - 2, height - 2], outline=style.ink)
    return image


def add_noise(image: Image.Image, style: Style, rng: random.Random) -> Image.Image:
    """Grey noise of the style's strength."""
    if not style.noise:
        return image
    pixels = np.asarray(image)
    generator = np.random.default_rng(rng.getrandbits(32))
    noise = generator.standard_normal((*pixels.shape[:2], 1), np.float32) * style.noise
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def choose_font(
    rng: random.Random, split: Split, sizes: Sequence[int] = ()
) -> ImageFont.FreeTypeFont:
    """A font of the split, in one of the sizes (the split's own where none are given)."""
    rule = vocabulary()["split"]
    return font(rng.choice(rule["fonts"][split]), rng.choice(sizes or rule["sizes"][split]))


def glyph_page(rng: random.Random, side: int, patch: int, difficulty: float) -> Picture:
    """A page full of random characters, so that one picture carries a hundred labels.

    difficulty 0: one small character in the middle of each patch, black on white; towards 1 the
    lattice shifts, its pitch and the print grow, and colours and noise come in.
    """
    style = draw_style(rng, "train", difficulty)
    top = round(15 + 23 * difficulty)
    face = choose_font(rng, "train", range(13, top + 1))
    image = blank(style, side, side, rng)
    draw, glyphs = ImageDraw.Draw(image), []
    loose = difficulty * rng.random()
    across = max(patch, face.size * rng.uniform(0.6, 1.0)) if face.size > 14 else patch
    down = max(patch, face.size * rng.uniform(0.95, 1.3)) if face.size > 14 else patch
    left, top_edge = (rng.uniform(-patch, patch) * loose for _ in range(2))
    characters = vocabulary()["print_characters"]
    rows, cols = int((side - top_edge) / down) + 1, int((side + patch) / across) + 1
    for row in range(rows):
        start = left + rng.uniform(0, across) * loose
        for col in range(cols):
            x, y = start + (col + 0.5) * across, top_edge + (row + 0.5) * down
            if rng.random() < 0.15 or not (0 <= x < side and 0 <= y < side):
                continue
            x, y = x + rng.uniform(-1.5, 1.5), y + rng.uniform(-1, 1)
            character = rng.choice(characters)
            draw.text((x, y + 0.3 * face.size), character, style.ink, face, anchor="ms")
            glyphs.append(Mark(character, min(max(x, 0), side - 1), min(max(y, 0), side - 1)))
    return Picture(add_noise(image, style, rng), "", glyphs)


def _word(rng: random.Random) -> str:
    return rng.choice(vocabulary()["print_words"])


def _number(rng: random.Random) -> str:
    return str(rng.randint(0, 9999) if rng.random() < 0.5 else rng.randint(0, 99))


def price(rng: random.Random) -> str:
    """A price with two decimals."""
    return f"{rng.randint(0, 20)}.{rng.randint(0, 99):02d}"


def line_of_text(rng: random.Random, receipt: bool) -> str:
    """One printed line: a receipt's item and price, or one or two words or numbers."""
    words = vocabulary()["print_words"]
    if receipt:
        return f"{rng.choice(words)} {price(rng)}"
    kind = rng.random()
    if kind < 0.55:
        return " ".join(rng.choice(words) for _ in range(rng.choice([1, 1, 2])))
    if kind < 0.75:
        return rng.choice([_number, price])(rng)
    return f"{rng.choice(words)} {_number(rng)}"


def _lines(rng: random.Random, split: Split) -> list[str]:
    """A word alone, which no split owns, or lines of the split."""
    if rng.random() < ALONE:
        return [_word(rng)]
    while True:
        receipt = rng.random() < 0.35
        lines = [line_of_text(rng, receipt) for _ in range(rng.choice([1, 1, 2, 2, 3, 4]))]
        alone = len(lines) == 1 and lines[0] in vocabulary()["print_words"]
        if not alone and split_of(*lines) == split:
            return lines


@dataclass(frozen=True)
class Layout:
    """Where lines of print begin, and the marks of their words and numbers."""

    starts: list[tuple[float, float]]
    units: list[list[Mark]]


def _layout(
    rng: random.Random,
    lines: list[str],
    face: ImageFont.FreeTypeFont,
    width: int,
    height: int,
    lattice: Lattice,
) -> Layout | None:
    """Lines somewhere in a picture, no word or number cut by a crop's edge; None: no room found."""
    spacing, widths = face.size * rng.uniform(1.15, 1.5), [face.getlength(line) for line in lines]
    widest, tall = max(widths), len(lines) * spacing
    if widest > width - 8 or tall > height - 4:
        return None
    placed = [_place(line, face) for line in lines]
    for _ in range(LAYOUTS_TRIED):
        top = 2 + rng.random() * (height - 4 - tall) + face.size * 0.95
        margin, aligned = 4 + rng.random() * (width - 8 - widest), rng.random() < 0.7
        starts = [
            (margin if aligned else 4 + rng.random() * (width - 8 - w), top + n * spacing)
            for n, w in enumerate(widths)
        ]
        units = [
            _moved(unit, x, y) for line, (x, y) in zip(placed, starts, strict=True) for unit in line
        ]
        if all(lattice.fits(unit, face.size) for unit in units):
            return Layout(starts, units)
    return None


def printed(
    rng: random.Random,
    split: Split,
    width: int,
    height: int,
    lattice: Lattice,
    strength: float = 1.0,
) -> Picture:
    """One to four printed lines."""
    layout = None
    while layout is None:
        lines = _lines(rng, split)
        for _ in range(FACES_TRIED):
            face = choose_font(rng, split)
            layout = _layout(rng, lines, face, width, height, lattice)
            if layout:
                break
    style = draw_style(rng, split, strength)
    image = blank(style, width, height, rng)
    draw = ImageDraw.Draw(image)
    for line, start in zip(lines, layout.starts, strict=True):
        draw.text(start, line, style.ink, face, anchor="ls")
    return Picture(add_noise(image, style, rng), "\n".join(lines), units=layout.units)


def word_page(rng: random.Random, side: int, lattice: Lattice, strength: float = 1.0) -> Picture:
    """A crop filled with printed words and numbers, some lines indented, some gaps left."""
    face, style = choose_font(rng, "train"), draw_style(rng, "train", strength)
    image = blank(style, side, side, rng)
    draw, units = ImageDraw.Draw(image), []
    spacing = face.size * rng.uniform(1.05, 1.4)
    y = rng.uniform(0.8, 1.2) * face.size
    while y < side - 0.2 * face.size:
        x = rng.uniform(1, 30)
        while True:
            text = rng.choice([_number, price])(rng) if rng.random() < 0.35 else _word(rng)
            if x + face.getlength(text) > side - 1:
                break
            unit = _moved(_place(text, face)[0], x, y)
            if lattice.fits(unit, face.size):
                draw.text((x, y), text, style.ink, face, anchor="ls")
                units.append(unit)
                x = max(x + face.getlength(text), (lattice.taken(unit)[-1][1] + 1) * lattice.cell)
            x += face.size * rng.uniform(0.25, 1.2)
        y += spacing
    return Picture(add_noise(image, style, rng), units=units)


def _place(line: str, face: ImageFont.FreeTypeFont) -> list[list[Mark]]:
    """Marks of the characters of each word or number of a line that begins at the origin."""
    edges = [face.getlength(line[:n]) for n in range(len(line) + 1)]
    marks = [
        Mark(c, (a + b) / 2, -0.3 * face.size)
        for c, (a, b) in zip(line, pairwise(edges), strict=True)
    ]
    return [list(unit) for blank, unit in groupby(marks, lambda m: m.text == " ") if not blank]


def _moved(unit: list[Mark], x: float, y: float) -> list[Mark]:
    return [Mark(m.text, m.x + x, m.y + y) for m in unit]


def cell_texts(picture: Picture, lattice: Lattice) -> list[list[list[str]]]:
    """Per cell what a viewer would note there, "" for nothing: a word that starts in it, a digit,
    or the colour of a shape; then the point after the digit, or the name of the shape.

    The letters of words are not noted.
    """
    noted = [[[""] * SLOTS_PER_CELL for _ in range(lattice.cols)] for _ in range(lattice.rows)]

    def note(cell: tuple[int, int], slot: int, text: str) -> None:
        noted[cell[0]][cell[1]][slot] = text

    for unit in picture.units:
        if unit[0].text.isdigit():
            for mark, cell in zip(unit, lattice.taken(unit), strict=True):
                note(cell, 0 if mark.text.isdigit() else 1, mark.text)
        else:
            note(lattice.place(unit[0]), 0, "".join(mark.text for mark in unit))
    for colour, name in picture.shapes:
        note(lattice.place(colour), 0, colour.text)
        note(lattice.place(name), 1, name.text)
    return noted


def cell_classes(picture: Picture, lattice: Lattice) -> NDArray[np.int64]:
    """[rows, columns, SLOTS_PER_CELL] class of what each cell says; 0: nothing."""
    texts = cell_texts(picture, lattice)
    return np.array([[[CELL_CLASSES[t] if t else 0 for t in c] for c in row] for row in texts])


def glyph_targets(
    glyphs: list[Mark], rows: int, cols: int, patch: int, slots: int = 2
) -> NDArray[np.int64]:
    """[rows, cols, slots] class of the characters centred in each patch, left to right; 0: none."""
    index = {c: i + 1 for i, c in enumerate(vocabulary()["print_characters"])}
    targets = np.zeros((rows, cols, slots), np.int64)
    used = np.zeros((rows, cols), np.int64)
    for mark in sorted(glyphs, key=lambda m: m.x):
        row, col = min(rows - 1, int(mark.y // patch)), min(cols - 1, int(mark.x // patch))
        if used[row, col] < slots:
            targets[row, col, used[row, col]] = index[mark.text]
            used[row, col] += 1
    return targets
