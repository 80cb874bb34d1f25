"""Answers of an evaluation on disk, one to a line, so that a stopped one goes on where it was.

The first line says which model answered, and how; answers of another are refused.  What was said is
kept, not how it scored: scores are computed anew each time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from phi4mm.errors import InputError

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to one item.

    Attributes:
        id: the item's.
        key: tells the item from another with this id.
        text: the answer.
        seconds: from request to end.
        media_s: seconds of sound in the request; 0 where nobody asks for it.
        error: why there is no answer; None if there is.
    """

    id: str
    key: str
    text: str
    seconds: float
    media_s: float = 0.0
    error: str | None = None


class AnswersFile:
    """Appends answers to a file; closed as a context manager.

    Args:
        path: the file; made if missing.
        header: what the answers depend on, as JSON values.

    Attributes:
        answers: those that are there, by the item's key.

    Raises:
        InputError: the file cannot be used, or its answers depend on something else.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.answers: dict[str, Answer] = {}
        first = {"phi4mm_answers": _FORMAT, **header}
        try:
            if path.exists():
                whole = self._read(path, first)
                self._stream: IO[bytes] = path.open("r+b")
                self._stream.truncate(whole)
                self._stream.seek(0, 2)
            else:
                self._stream = path.open("wb")
                self._write(first)
        except OSError as error:
            raise InputError(f"{path}: cannot be used: {error.strerror or error}") from None

    def add(self, answer: Answer) -> None:
        """Keep an answer; it is on disk when this returns."""
        self.answers[answer.key] = answer
        self._write(asdict(answer))

    def _read(self, path: Path, first: dict[str, Any]) -> int:
        """Take the answers in; the bytes of whole lines, without one that was cut off."""
        data = path.read_bytes()
        data = data[: data.rfind(b"\n") + 1]
        head, *lines = data.splitlines() or [b"{}"]
        try:
            found = dict(json.loads(head))
            answers = [Answer(**json.loads(line)) for line in lines]
        except (ValueError, TypeError):
            raise InputError(f"{path}: not a file of answers: choose another name") from None
        for name, value in first.items():
            if found.get(name) != json.loads(json.dumps(value)):
                raise InputError(
                    f"{path}: its answers were given with different {name}: choose another file"
                )
        self.answers = {answer.key: answer for answer in answers}
        return len(data)

    def _write(self, values: dict[str, Any]) -> None:
        self._stream.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")
        self._stream.flush()

    def __enter__(self) -> AnswersFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
