"""How many threads to use where the user does not say."""

from __future__ import annotations

import os
import sys

from phi4mm.errors import InputError


def n_threads_or_all(n_threads: int | None) -> int:
    """The number given, or that of the cores this process may use.

    Raises:
        InputError: it is below 1.
    """
    if n_threads is None:
        is_linux = sys.platform == "linux"
        return len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
    if n_threads < 1:
        raise InputError(f"--threads is {n_threads}, must be at least 1")
    return n_threads
