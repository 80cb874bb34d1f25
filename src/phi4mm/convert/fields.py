"""Checked access to the fields of a JSON file, each failure naming the file and the field.

A field is written as a dotted path, ``embd_layer.image_embd_layer.crop_size``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeGuard, cast

from phi4mm.errors import ModelFileError

Json: TypeAlias = Mapping[str, object]
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object read from a file.

    Attributes:
        path: the file.
        values: its object.
    """

    path: Path
    values: Json

    def has(self, field: str) -> bool:
        """Whether the field is there and not null."""
        return self._find(field) not in (_ABSENT, None)

    def either(self, *fields: str) -> str:
        """The first of these that is there: different versions write the same thing differently."""
        for field in fields:
            if self.has(field):
                return field
        raise ModelFileError(
            f"{self.path}: {' (or '.join(fields)}{')' * (len(fields) - 1)} is missing"
        )

    def integer(self, field: str, *, low: int = 1, high: int = 1 << 31) -> int:
        """An integer within ``low..high``."""
        value = self._required(field)
        if type(value) is not int or not low <= value <= high:
            raise self.error(field, value, f"an integer from {low} to {high}")
        return value

    def number(self, field: str) -> float:
        """A finite number above zero."""
        value = self._required(field)
        if not _is_number(value) or value <= 0:
            raise self.error(field, value, "a number above 0")
        return float(value)

    def numbers(self, field: str, n: int) -> list[float]:
        """A list of ``n`` finite numbers above zero."""
        value = self._required(field)
        if not isinstance(value, list) or len(value) != n or not all(map(_is_number, value)):
            raise self.error(field, value, f"{n} numbers")
        if min(value) <= 0:
            raise self.error(field, min(value), "above 0")
        return [float(item) for item in value]

    def ids(self, field: str) -> list[int]:
        """Token ids: one integer or a list of them."""
        value = self._required(field)
        found = cast(list[int], value if isinstance(value, list) else [value])
        if not found or not all(type(item) is int and item >= 0 for item in found):
            raise self.error(field, value, "a token id or a list of them")
        return found

    def expect(self, field: str, allowed: tuple[object, ...]) -> None:
        """Refuse the field if it is there and none of ``allowed``."""
        value = self._find(field)
        same = any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed
        )
        if value is not _ABSENT and not same:
            raise self.error(field, value, " or ".join(map(repr, allowed)))

    def error(self, field: str, value: object, wanted: str) -> ModelFileError:
        """The error for a field whose value is not supported."""
        text = repr(value)
        text = text if len(text) <= 60 else f"{text[:57]}..."
        return ModelFileError(f"{self.path}: {field} is {text}; supported is {wanted}")

    def _required(self, field: str) -> object:
        value = self._find(field)
        if value is _ABSENT:
            raise ModelFileError(f"{self.path}: {field} is missing")
        return value

    def _find(self, field: str) -> object:
        value: object = self.values
        for name in field.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return _ABSENT
            value = value[name]
        return value


def _is_number(value: object) -> TypeGuard[float]:
    if type(value) is int:
        return abs(value) < 1 << 64
    return isinstance(value, float) and math.isfinite(value)
