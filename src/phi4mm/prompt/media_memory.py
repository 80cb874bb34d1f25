"""What was found out about media, so that not every turn of a conversation decodes them anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from phi4mm.prompt.medium import Contents, Picture, Sound

Medium = TypeVar("Medium", Picture, Sound)

_MAX_BYTES = 128 << 20


class MediaMemory(Generic[Medium]):
    """Media by the contents of their files, without pixels and samples; threads may share it.

    The files' contents are kept as keys, which costs nothing while a conversation holds them too.
    Python keeps the hash of ``bytes`` and ``str``, so that looking up the same object is free.

    Args:
        max_bytes: bound on the keys together; the least recently used are forgotten.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._media: OrderedDict[Contents, Medium] = OrderedDict()
        self._n_bytes = 0
        self._lock = Lock()

    def get(self, contents: Contents | None, open_medium: Callable[[], Medium]) -> Medium:
        """The medium of these contents; ``open_medium`` makes it where it is not known.

        Only what was just opened brings its pixels or samples.
        """
        if contents is None:
            return open_medium()
        with self._lock:
            if (known := self._media.get(contents)) is not None:
                self._media.move_to_end(contents)
                return known
        medium = open_medium()
        with self._lock:
            self._put(contents, medium.light())
        return medium

    def _put(self, contents: Contents, medium: Medium) -> None:
        if contents in self._media or len(contents) > self._max_bytes:
            return
        self._media[contents] = medium
        self._n_bytes += len(contents)
        while self._n_bytes > self._max_bytes:
            forgotten, _ = self._media.popitem(last=False)
            self._n_bytes -= len(forgotten)
