"""A line plot as an SVG file, for curves of a few points whose x doubles from one to the next."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#8250df")

Points = list[tuple[float, float]]


def write_plot(path: Path, title: str, x_name: str, y_name: str, lines: dict[str, Points]) -> None:
    """Draw named lines; x is logarithmic, y begins at 0."""
    xs = sorted({x for points in lines.values() for x, _ in points})
    highest = max(y for points in lines.values() for _, y in points) * 1.1 or 1.0
    first, last = math.log(xs[0]), math.log(xs[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        share = (math.log(x) - first) / (last - first) if last > first else 0.5
        across = LEFT + share * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - y / highest * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 20, title, "middle", size=15),
        _text(WIDTH / 2, HEIGHT - 10, x_name, "middle"),
        _text(8, TOP - 12, y_name, "start"),
    ]
    for step in range(5):
        y = highest * step / 4
        level = place(xs[0], y)[1]
        parts.append(_line(LEFT, level, WIDTH - RIGHT, level))
        parts.append(_text(LEFT - 6, level + 4, f"{y:.3g}", "end"))
    for x in xs:
        across, bottom = place(x, 0)
        parts.append(_text(across, bottom + 16, f"{x:g}", "middle"))
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(x, y) for x, y in points]
        path_data = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path_data}" fill="none" stroke="{colour}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(_text(WIDTH - RIGHT, TOP + 16 * number, name, "end", colour=colour))
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _text(
    x: float, y: float, text: str, anchor: str, *, size: int = 12, colour: str = "#1f2328"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d0d7de"/>'
