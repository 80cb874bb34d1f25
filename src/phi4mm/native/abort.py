"""A flag that stops a computation in the native library from another thread.

The library asks before every node of its graph whether to go on, some hundred times for one token.
A Python function would take the interpreter's lock each time, and wait for whatever other threads
do: with one busy thread beside it, a decode took 1.4 times as long.  So the answer is given by a C
function that ggml already has and that fits: it reads one boolean of a ggml context, and an empty
ggml context makes the flag.
"""

from __future__ import annotations

from typing import Any

from phi4mm.native.library import Library


class AbortFlag:
    """Set by any thread, read by the computations it was given to, cleared by its owner.

    It stays set until ``clear``, so that it also stops a computation which is about to begin.
    Only the CPU asks; work on a GPU runs to its end.

    Attributes:
        callback: the ``ggml_abort_callback`` to give to the library, together with
        data: its argument.  Whoever hands these to the library must keep the flag alive.
    """

    def __init__(self, library: Library) -> None:
        self._lib = library.lib
        ffi = library.ffi
        empty = ffi.new("struct ggml_init_params *")
        self._flag = ffi.gc(self._lib.ggml_init(empty[0]), self._lib.ggml_free)
        self.callback: Any = ffi.cast("ggml_abort_callback", self._lib.ggml_get_no_alloc)
        self.data: Any = ffi.cast("void *", self._flag)

    @property
    def is_set(self) -> bool:
        """Whether computations are asked to stop."""
        return bool(self._lib.ggml_get_no_alloc(self._flag))

    def set(self) -> None:
        """Ask running and coming computations to stop."""
        self._lib.ggml_set_no_alloc(self._flag, True)

    def clear(self) -> None:
        """Let computations run again."""
        self._lib.ggml_set_no_alloc(self._flag, False)
