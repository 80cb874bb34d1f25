"""Progress bars on stderr; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from phi4mm.progress import Progress


@contextmanager
def progress_bar(
    title: str, *, unit: str | None = None, redraws_per_s: float = 10
) -> Iterator[Progress | None]:
    """A bar with the time left, as a function that moves it.

    Args:
        title: what is being done.
        unit: what is counted; None for bytes.
        redraws_per_s: how often it is drawn; each time takes about a millisecond of a core.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console

    amount: tuple[bars.ProgressColumn, ...] = (bars.DownloadColumn(), bars.TransferSpeedColumn())
    if unit is not None:
        amount = (bars.MofNCompleteColumn(), bars.TextColumn(unit))
    with bars.Progress(
        bars.TextColumn(title),
        bars.BarColumn(),
        *amount,
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=redraws_per_s,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def stage(title: str, unit: str | None) -> Iterator[Progress | None]:
    """A bar for one piece of longer work; a line where stderr is no terminal."""
    if not sys.stderr.isatty():
        print(f"phi4mm: {title}", file=sys.stderr)
    with progress_bar(title, unit=unit) as progress:
        yield progress
