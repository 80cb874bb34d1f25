"""The OpenBLAS that numpy's wheels bring, and how many threads it takes.

numpy multiplies with it, and has no way to say with how many threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from cffi import FFI

_CDEF = """
void scipy_openblas_set_num_threads64_(int n);
int  scipy_openblas_get_num_threads64_(void);
"""
# Where wheels keep the libraries they bring, from numpy's own folder: Linux and Windows, macOS.
_FOLDERS = ("../numpy.libs", ".dylibs")


@cache
def _library() -> Any | None:
    package = Path(np.__file__).parent
    files = [file for folder in _FOLDERS for file in (package / folder).glob("*scipy_openblas64_*")]
    if len(files) != 1:
        return None
    ffi = FFI()
    ffi.cdef(_CDEF)
    library = ffi.dlopen(str(files[0].resolve()))  # the one that numpy has loaded
    return library if all(hasattr(library, name) for name in dir(library)) else None


def is_here() -> bool:
    """Whether numpy multiplies with an OpenBLAS whose threads can be told."""
    return _library() is not None


class _OneThread:
    """Says so for as long as anybody wants it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_users = 0
        self._n_threads = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Have each product take the thread that asks for it and no other."""
        library = _library()
        assert library is not None
        with self._lock:
            if self._n_users == 0:
                self._n_threads = library.scipy_openblas_get_num_threads64_()
                library.scipy_openblas_set_num_threads64_(1)
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    library.scipy_openblas_set_num_threads64_(self._n_threads)


one_thread = _OneThread()
