"""The native library's log lines, passed on to Python's ``logging``.

libllama hands over pieces of text with a level; a piece may be a part of a line, and the level
"continue" means that of the piece before.  Whole lines go to the logger ``phi4mm.native``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

logger = logging.getLogger("phi4mm.native")
# A library does not print unless the application asks for it.
logger.addHandler(logging.NullHandler())

# ggml_log_level -> logging level.  What ggml calls information is detail to the users of this
# package, and unlevelled text (0) is output that was asked for, such as timings.
_LEVELS = {
    0: logging.DEBUG,
    1: logging.DEBUG,
    2: logging.DEBUG,
    3: logging.WARNING,
    4: logging.ERROR,
}
_CONTINUE = 5
# Warned of for every matrix of an adapter whose decoder is quantised: the CPU keeps such weights in
# a layout of its own, and adapters need not be in it.
_EXPECTED = "cannot use buft 'CPU_REPACK', fallback to CPU"


class LogRelay:
    """Receives the library's log and logs whole lines.

    Attributes:
        callback: the C function pointer for ``llama_log_set``; valid while this object lives.
    """

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi
        self._level = logging.DEBUG
        self._partial = ""
        self._collectors: list[list[str]] = []
        self._raised: BaseException | None = None
        self.callback: Any = ffi.callback("ggml_log_callback", self._receive, onerror=self._keep)

    @contextmanager
    def errors(self) -> Iterator[list[str]]:
        """Collect the error lines logged inside the block, so that an exception can say why.

        An exception that came up while a line was received (Ctrl-C during a long load, which
        Python notices then) could not pass through the C code; it is raised at the block's end.
        """
        lines: list[str] = []
        self._collectors.append(lines)
        try:
            yield lines
        finally:
            self._collectors.remove(lines)
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def _keep(
        self,
        _type: type[BaseException],
        exception: BaseException,
        _traceback: TracebackType | None,
    ) -> None:
        self._raised = exception

    def _receive(self, level: int, text: Any, _user_data: Any) -> None:
        self.feed(level, self._ffi.string(text).decode("utf-8", "replace"))

    def feed(self, level: int, text: str) -> None:
        """Take a piece of log text; ``level`` is a ``ggml_log_level``."""
        if level != _CONTINUE:
            self._log(self._partial)
            self._partial = ""
            self._level = _LEVELS.get(level, logging.WARNING)
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._log(line)

    def _log(self, line: str) -> None:
        line = line.rstrip()
        if not line:
            return
        logger.log(logging.DEBUG if line.endswith(_EXPECTED) else self._level, "%s", line)
        if self._level >= logging.ERROR:
            for collector in self._collectors:
                collector.append(line)
