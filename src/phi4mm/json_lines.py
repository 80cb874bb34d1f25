"""Files of JSON lines that people write by hand: each field is checked, and errors say where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phi4mm.errors import InputError


@dataclass(frozen=True, slots=True)
class JsonLine:
    """The object in one line; its fields are taken out one by one, and ``finish`` sees the rest.

    Attributes:
        where: file and line, for messages.
        number: of the line, from 1.
        folder: what paths in the line are relative to.
        values: the fields that were not taken yet.
    """

    where: str
    number: int
    folder: Path
    values: dict[str, Any]

    def take(self, name: str, default: str | None = None) -> str:
        """A text that is not empty.

        Raises:
            InputError: it is missing and has no default, or is something else.
        """
        value = self.values.pop(name, default)
        if not isinstance(value, str) or not value:
            raise InputError(
                f"{self.where}: {name!r} is {value!r:.60}, must be a string, not empty"
            )
        return value

    def take_strings(self, name: str) -> tuple[str, ...]:
        """A list of strings that is not empty.

        Raises:
            InputError: it is missing, or is something else.
        """
        values = self.values.pop(name, None)
        if not (isinstance(values, list) and values and all(isinstance(v, str) for v in values)):
            raise InputError(f"{self.where}: {name!r} is {values!r:.60}, must be a list of strings")
        return tuple(values)

    def take_paths(self, name: str) -> tuple[str, ...]:
        """The file of the field ``name``, or the files of the field ``names``.

        Raises:
            InputError: neither is there, or it is something else.
        """
        several = f"{name}s"
        names = self.take_strings(several) if several in self.values else (self.take(name),)
        return tuple(str(self.folder / path) for path in names)

    def finish(self) -> None:
        """Refuse fields that nobody took.

        Raises:
            InputError: there is one.
        """
        if self.values:
            raise InputError(f"{self.where}: unknown fields {', '.join(sorted(self.values))}")


def read_json_lines(path: Path) -> Iterator[JsonLine]:
    """The objects of a file, one in each line; blank lines are left out.

    Raises:
        InputError: the file cannot be read, or a line is no object.
    """
    for number, text in enumerate(read_utf8(path).split("\n"), start=1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InputError(f"{where}: not JSON: {error}") from None
        if not isinstance(values, dict):
            raise InputError(f"{where}: must be an object")
        yield JsonLine(where, number, path.parent, values)


def read_utf8(path: Path) -> str:
    """A text file.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
