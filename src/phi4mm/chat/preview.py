"""Pictures in a terminal: two pixels to a character, as upper half blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat, zip_longest
from typing import Literal

import numpy as np
from PIL import Image

Pixel = Sequence[int]  # red, green, blue
Depth = Literal["truecolor", "256"]
_COLUMNS, _ROWS = 32, 12


def colour_depth(environment: Mapping[str, str]) -> Depth | None:
    """What colours a terminal shows, by its customary variables; None for too few."""
    if environment.get("NO_COLOR") or environment.get("TERM", "dumb") == "dumb":
        return None
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256color" in environment["TERM"] else None


def half_blocks(image: Image.Image, depth: Depth) -> list[str]:
    """Lines that show a picture in at most 32 columns and 12 rows."""
    small = image.convert("RGB")
    small.thumbnail((_COLUMNS, 2 * _ROWS))
    rows: list[list[Pixel]] = np.asarray(small).tolist()
    return [
        "".join(map(_cell, upper, lower or [None] * len(upper), repeat(depth))) + "\x1b[0m"
        for upper, lower in zip_longest(rows[::2], rows[1::2])
    ]


def _cell(upper: Pixel, lower: Pixel | None, depth: Depth) -> str:
    below = "" if lower is None else _colour(lower, 48, depth)
    return f"{_colour(upper, 38, depth)}{below}▀"


def _colour(pixel: Pixel, layer: int, depth: Depth) -> str:
    if depth == "truecolor":
        return f"\x1b[{layer};2;{pixel[0]};{pixel[1]};{pixel[2]}m"
    red, green, blue = (round(channel / 255 * 5) for channel in pixel)
    return f"\x1b[{layer};5;{16 + 36 * red + 6 * green + blue}m"
