"""Ownership of a native object: it is freed once, and refused after that."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar

from phi4mm.errors import NativeError
from phi4mm.native.library import Library

_Self = TypeVar("_Self", bound="Handle")


class Handle:
    """Owns one native object; a context manager that closes it.

    Attributes:
        library: the library that made the object.
    """

    def __init__(self, library: Library, pointer: Any, name: str) -> None:
        self.library = library
        self._pointer = pointer
        self._name = name

    @property
    def pointer(self) -> Any:
        """The C pointer.

        Raises:
            NativeError: the object is closed.
        """
        if self._pointer is None:
            raise NativeError(self._name, detail="used after close()")
        return self._pointer

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._pointer is None

    def close(self) -> None:
        """Free the object; further calls do nothing."""
        if self._pointer is not None:
            pointer, self._pointer = self._pointer, None
            self._free(pointer)

    def _free(self, pointer: Any) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
