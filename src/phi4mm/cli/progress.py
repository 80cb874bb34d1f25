"""Progress bars on stderr; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


@contextmanager
def progress_bar(title: str, *, unit: str | None = None) -> Iterator[Update | None]:
    """A bar with the time left, as a function that moves it.

    Args:
        title: what is being done.
        unit: what is counted; None for bytes.
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
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
