"""Plain tables and sizes, for summaries that are read and piped."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Lines with the cells of each column below each other.

    Args:
        rows: the cells; all rows are equally long.
        right: columns whose cells end, not begin, below each other.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def byte_size(n_bytes: int) -> str:
    """A size in the decimal unit that suits it."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    unit, name = next(((unit, name) for unit, name in units if n_bytes >= unit), (1, "B"))
    return f"{n_bytes / unit:.2f} {name}" if unit > 1 else f"{n_bytes} B"
