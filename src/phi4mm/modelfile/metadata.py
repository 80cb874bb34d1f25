"""Checked access to a file's metadata: presence and type, each failure named.

Integers and floats come back as Python numbers, strings as str, numeric arrays as read-only numpy
arrays, string arrays as lists of str that are decoded when first asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from phi4mm.errors import ModelFileError
from phi4mm.modelfile.keys import Key, ValueType, type_name
from phi4mm.modelfile.string_walk import Lengths

NumericArray: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = int | float | bool | str | NumericArray | list[str]


class StringArray:
    """An array of strings as it lies in the file, decoded when first asked for.

    Args:
        where: what error messages call it.
        data: the strings' bytes, each behind its length in 8 bytes.
        lengths: the same lengths.
    """

    def __init__(self, where: str, data: bytes, lengths: Lengths) -> None:
        self._where = where
        self._data = data
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    @cached_property
    def texts(self) -> list[str]:
        """The strings.

        Raises:
            ModelFileError: one is not UTF-8, or holds a NUL character.
        """
        n = len(self._lengths)
        if n == 0:
            return []
        # All at once: each length gives way to one NUL, and the whole is decoded and split.
        data = np.frombuffer(self._data, np.uint8).copy()
        ends = np.cumsum(self._lengths + 8)
        heads = np.concatenate([[0], ends[:-1]])
        keep = np.ones(len(data), np.bool_)
        for byte in range(7):
            keep[heads + byte] = False
        data[heads + 7] = 0
        joined: bytes = data[keep].tobytes()
        if joined.count(0) != n:
            raise ModelFileError(f"{self._where} has a string with a NUL character")
        try:
            return joined.decode()[1:].split("\0")
        except UnicodeDecodeError as error:
            raise ModelFileError(
                f"{self._where} has a string that is not UTF-8: {error.reason}"
            ) from None


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata entry as read.

    Attributes:
        type: element type.
        is_array: whether it is an array of ``type``.
        value: the value as it was read.
    """

    type: ValueType
    is_array: bool
    value: int | float | bool | str | NumericArray | StringArray


class Metadata(Mapping[str, Value]):
    """The metadata of one file: a mapping, with readers that check what they return.

    Attributes:
        source: what error messages call the file.
    """

    def __init__(self, source: str, entries: Mapping[str, Entry]) -> None:
        self.source = source
        self._entries = entries

    def __getitem__(self, key: str) -> Value:
        value = self._entries[key].value
        return value.texts if isinstance(value, StringArray) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def entry(self, key: str) -> Entry:
        """The entry as read, its type included."""
        return self._entries[key]

    def error(self, text: str) -> ModelFileError:
        """A model-file error that names this file."""
        return ModelFileError(f"{self.source}: {text}")

    def number(self, key: Key) -> int | float:
        """An integer or a float, whichever the key has."""
        value = self._typed(key)
        assert isinstance(value, int | float)
        return value

    def flag(self, key: Key) -> bool:
        """A boolean."""
        value = self._typed(key)
        assert isinstance(value, bool)
        return value

    def text(self, key: Key, allowed: Collection[str] = ()) -> str:
        """A string, one of ``allowed`` where that is given."""
        value = self._typed(key)
        assert isinstance(value, str)
        if allowed and value not in allowed:
            raise self.error(f"{key} is {value[:60]!r}, must be {' or '.join(map(repr, allowed))}")
        return value

    def strings(self, key: Key) -> list[str]:
        """A list of strings."""
        value = self._typed(key)
        assert isinstance(value, list)
        return value

    def numbers(self, key: Key, *, length: int | None = None) -> NumericArray:
        """An array of numbers, of ``length`` elements where that is given."""
        value = self._typed(key)
        assert isinstance(value, np.ndarray)
        if length is not None and len(value) != length:
            raise self.error(f"{key} has {len(value)} elements, must have {length}")
        return value

    def check_type(self, key: Key) -> None:
        """Refuse the key if it is here with another type than it must have."""
        if key in self._entries:
            entry = self._entries[key]
            if (entry.type, entry.is_array) != (key.type, key.is_array):
                found = type_name(entry.type, entry.is_array)
                raise self.error(f"{key} has type {found}, must be {key.type_name}")

    def _typed(self, key: Key) -> Value:
        if key not in self._entries:
            raise self.error(f"metadata key {key} is missing")
        self.check_type(key)
        return self[key]
