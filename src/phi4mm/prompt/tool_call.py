"""Tool calls read out of a stream of answer text, by a state machine that knows no front end.

The model calls tools as ``functools[{"name": …, "arguments": {…}}]`` or
``<|tool_call|>[…]<|/tool_call|>`` (docs/model.md, "Tools").  Calls are read with a JSON decoder, so
brackets, quotes and escapes inside strings are no boundary; what only looks like a call stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# what opens a list of calls -> what may close it, after its last bracket
_MARKERS = {"functools": "", "<|tool_call|>": "<|/tool_call|>"}
_BLANKS = " \t\r\n"
_JSON_SHAPE = re.compile(r'"(?:[^"\\]|\\.)*"|["\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Answer text that is no part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One complete call.

    Attributes:
        name: the tool.
        arguments: JSON text of an object.
    """

    name: str
    arguments: str


Delta = TextDelta | ToolCall


def calls_json(calls: Iterable[ToolCall]) -> str:
    """Calls as the model writes them: a list of objects with a name and arguments."""
    return json.dumps(
        [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls],
        ensure_ascii=False,
    )


class ToolCallParser:
    """Splits an answer into text and tool calls, however the text is cut into pieces.

    The calls of a list are given out when the list is closed.  A list that is malformed, or cut off
    at the end of the answer, is given out as the text it is: nothing the model said is lost.

    Args:
        accept_bare: also take a JSON object or list for calls if the answer begins with it; for
            requests that demand a call.
    """

    def __init__(self, *, accept_bare: bool = False) -> None:
        self._pending = ""  # received, not yet given out
        self._accept_bare = accept_bare

    def push(self, text: str) -> list[Delta]:
        """What this piece of text completes."""
        self._pending += text
        return list(self._take(is_end=False))

    def finish(self) -> list[Delta]:
        """What is left when the answer ends."""
        return list(self._take(is_end=True))

    def _take(self, *, is_end: bool) -> Iterator[Delta]:
        """Give out everything that later text cannot change."""
        while self._pending:
            start, marker = self._find_opening(is_end=is_end)
            if start:
                yield TextDelta(self._cut(start))
            if marker is None:
                return
            end = _list_end(self._pending, marker, is_end=is_end)
            if end is None:
                return
            text = self._cut(end)
            yield from _read_calls(text.removeprefix(marker), marker) or [TextDelta(text)]

    def _cut(self, end: int) -> str:
        """Take the first ``end`` characters out of what is pending."""
        text, self._pending = self._pending[:end], self._pending[end:]
        self._accept_bare = False
        return text

    def _find_opening(self, *, is_end: bool) -> tuple[int, str | None]:
        """Where plain text ends, and the marker that stands there, if there is one."""
        text = self._pending
        if self._accept_bare:
            start = _skip_blanks(text, 0)
            if start == len(text) and not is_end:
                return 0, None
            if text[start : start + 1] in ("[", "{"):
                return start, ""
        places = [(text.find(marker), marker) for marker in _MARKERS if marker in text]
        if places:
            return min(places)
        return len(text) - (0 if is_end else _n_held_back(text)), None


def _n_held_back(text: str) -> int:
    """Length of the longest end of ``text`` that may grow into a marker."""
    longest = min(len(text), max(map(len, _MARKERS)) - 1)
    ends = (n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) for m in _MARKERS))
    return next(ends, 0)


def _list_end(text: str, marker: str, *, is_end: bool) -> int | None:
    """Where the list that ``marker`` opens ends, its closing marker included.

    None while that is not known; the marker's own end if no list follows it.
    """
    start = len(marker) if marker == "functools" else _skip_blanks(text, len(marker))
    if start == len(text):
        return start if is_end else None
    if text[start] not in ("[" if marker == "functools" else "[{"):
        return len(marker)
    end = _json_end(text, start)
    if end is None:
        return len(text) if is_end else None
    closing, place = _MARKERS.get(marker, ""), _skip_blanks(text, end)
    if closing and text.startswith(closing, place):
        return place + len(closing)
    if closing and not is_end and closing.startswith(text[place:]):
        return None
    return end


def _json_end(text: str, start: int) -> int | None:
    """Just after the bracket that closes the one at ``start``; None if it is not there yet."""
    depth = 0
    for match in _JSON_SHAPE.finditer(text, start):
        if match[0] == '"':
            return None  # a string that has not ended: what follows is inside it
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return None


def _read_calls(text: str, marker: str) -> list[Delta]:
    """The calls of a closed list; none if it is anything else."""
    try:
        value = json.loads(text.removesuffix(_MARKERS.get(marker, "")))
    except (json.JSONDecodeError, RecursionError):
        return []
    calls = value if isinstance(value, list) else [value]
    if not all(_is_call(call) for call in calls):
        return []
    return [
        ToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in calls
    ]


def _is_call(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("arguments"), dict)
    )


def _skip_blanks(text: str, start: int) -> int:
    return len(text) - len(text[start:].lstrip(_BLANKS))
