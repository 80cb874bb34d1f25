"""Where a picture lands on the grid of crops, and which cell of it shows what.

Source: docs/model.md, "Grid".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .geometry import VisionGeometry


@dataclass(frozen=True)
class Mark:
    """A character or a word and the point where it stands (a word: its first character's)."""

    text: str
    x: float
    y: float


@dataclass(frozen=True)
class Canvas:
    """Where a picture lands: grid of crops, size after the resize, and the scale applied."""

    rows: int
    cols: int
    width: int
    height: int
    scale: float


def grid(width: int, height: int, crop: int, max_crops: int) -> tuple[int, int]:
    """(columns, rows) of crops for a picture of this size."""
    cols, rows = math.ceil(width / crop), math.ceil(height / crop)
    if cols * rows <= max_crops:
        return cols, rows
    pairs = {
        (i, j)
        for n in range(1, max_crops + 1)
        for i in range(1, n + 1)
        for j in range(1, n + 1)
        if i * j <= max_crops
    }
    best, gap = (1, 1), math.inf
    for pair in sorted(pairs, key=lambda t: t[0] * t[1]):
        difference = abs(width / height - pair[0] / pair[1])
        large = width * height > 0.5 * crop * crop * pair[0] * pair[1]
        if difference < gap or (difference == gap and large):
            best, gap = pair, difference
    return best


def plan(width: int, height: int, crop: int, max_crops: int) -> Canvas:
    """How a picture of this size is laid out."""
    cols, rows = grid(width, height, crop, max_crops)
    across, down = cols * crop / width, rows * crop / height
    if across < down:
        return Canvas(rows, cols, cols * crop, int(height * across), across)
    return Canvas(rows, cols, int(width * down), rows * crop, down)


def valid_patches(canvas: Canvas, crop: int, patch: int) -> tuple[int, int]:
    """(rows, columns) of patches that show the picture rather than padding."""
    down, across = canvas.rows * crop, canvas.cols * crop
    empty_rows, empty_cols = (down - canvas.height) // patch, (across - canvas.width) // patch
    return down // patch - empty_rows, across // patch - empty_cols


@dataclass(frozen=True)
class Lattice:
    """The cells of a picture's canvas, each the place of one soft token.

    scale: from the picture's pixels to the canvas'; cell: side in canvas pixels; per_crop: cells
    along a crop.
    """

    scale: float
    rows: int
    cols: int
    cell: int
    per_crop: int

    @classmethod
    def of_crop(cls, g: VisionGeometry) -> Lattice:
        """The cells of a picture that is just one crop."""
        half = g.grid // 2
        return cls(1.0, half, half, 2 * g.patch, half)

    def place(self, mark: Mark) -> tuple[int, int]:
        """(row, column) of the cell a mark is in."""
        row, col = (int(self.scale * c // self.cell) for c in (mark.y, mark.x))
        return min(self.rows - 1, row), min(self.cols - 1, col)

    def taken(self, unit: list[Mark]) -> list[tuple[int, int]]:
        """The cell where each character is noted: digits one per cell, from the first one's.

        A point shares the cell of the digit before it. The letters of a word share its first.
        """
        row, col = self.place(unit[0])
        cells = [(row, col)]
        for mark in unit[1:]:
            if mark.text.isdigit():
                col = max(col + 1, self.place(mark)[1])
            cells.append((row, col))
        return cells

    def fits(self, unit: list[Mark], size: int) -> bool:
        """Whether a single crop shows the unit, in print of this size, and has its cells."""
        side = self.cell * self.per_crop
        first, last = unit[0], unit[-1]
        reach = 0.4 * size
        corners = [(first.x - reach, last.x + reach), (first.y - reach, first.y + reach)]
        if any(int(self.scale * a // side) != int(self.scale * b // side) for a, b in corners):
            return False
        cols = [col for _, col in self.taken(unit)]
        return cols[-1] < self.cols and cols[0] // self.per_crop == cols[-1] // self.per_crop


def lattice(width: int, height: int, g: VisionGeometry) -> Lattice:
    """The cells of a picture of this size, in pixels."""
    canvas = plan(width, height, g.crop, g.max_crops)
    rows, cols = (-(-n // 2) for n in valid_patches(canvas, g.crop, g.patch))
    return Lattice(canvas.scale, rows, cols, 2 * g.patch, g.grid // 2)
