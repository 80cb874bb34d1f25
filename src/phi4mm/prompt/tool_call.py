"""Tool calls read out of a stream of answer text, by a state machine that knows no front end.

The model calls tools as ``functools[{"name": …, "arguments": {…}}]`` or
``<|tool_call|>[…]<|/tool_call|>`` (docs/model.md, "Tools").  Brackets, quotes and escapes inside
strings are no boundary; what only looks like a call stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# what opens a list of calls -> what may close it, after its last bracket
_MARKERS = {"functools": "", "<|tool_call|>": "<|/tool_call|>"}
_BLANKS = " \t\r\n"
_STRING = r'"(?:[^"\\]|\\.)*"'
# a call up to its arguments, as the model was trained to write them
_CALL_HEAD = re.compile(
    rf'\{{\s*"name"\s*:\s*(?P<name>{_STRING})\s*,\s*"arguments"\s*:\s*(?=\{{)', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Answer text that is no part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of this tool begins."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of an object: the arguments of the call that began last."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments of the call that began last are complete."""


Delta = TextDelta | CallStart | ArgumentsDelta | CallEnd


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One complete call.

    Attributes:
        name: the tool.
        arguments: JSON text of an object.
    """

    name: str
    arguments: str


def calls_json(calls: Iterable[ToolCall]) -> str:
    """Calls as the model writes them: a list of objects with a name and arguments."""
    return json.dumps(
        [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls],
        ensure_ascii=False,
    )


class ToolCallParser:
    """Splits an answer into text and tool calls, however the text is cut into pieces.

    A call is given out as it comes, from where its arguments begin.  One that breaks off before,
    or is malformed there, is given out as the text it is: nothing the model said is lost.

    Args:
        accept_bare: also take a JSON object or list for calls if the answer begins with it; for
            requests that demand a call.
    """

    def __init__(self, *, accept_bare: bool = False) -> None:
        self._pending = ""  # received, not yet given out
        self._deltas: list[Delta] = []
        self._accept_bare = accept_bare
        # reads what is pending; returns whether to go on without more text
        self._read: Callable[[bool], bool] = self._read_text
        self._closing = ""  # what may close the list that is open
        self._is_list = False
        self._brackets = _Brackets()

    @property
    def is_cut_off(self) -> bool:
        """Whether what came ends within the arguments of a call."""
        return self._brackets.depth > 0

    def push(self, text: str) -> list[Delta]:
        """What this piece of text completes."""
        self._pending += text
        return self._take(is_end=False)

    def finish(self) -> list[Delta]:
        """What is left when the answer ends."""
        return self._take(is_end=True)

    def _take(self, *, is_end: bool) -> list[Delta]:
        """Everything that later text cannot change."""
        while self._pending and self._read(is_end):
            pass
        if is_end and self._pending.strip(_BLANKS + ","):
            self._give_text(len(self._pending))
        deltas, self._deltas = self._deltas, []
        return deltas

    def _cut(self, end: int) -> str:
        """Take the first ``end`` characters out of what is pending."""
        text, self._pending = self._pending[:end], self._pending[end:]
        # blanks do not count as the beginning of the answer
        self._accept_bare = self._accept_bare and not text.strip(_BLANKS)
        return text

    def _give_text(self, end: int) -> bool:
        if end:
            self._deltas.append(TextDelta(self._cut(end)))
        self._read = self._read_text
        return True

    def _read_text(self, is_end: bool) -> bool:
        start, marker = self._find_opening(is_end=is_end)
        self._give_text(start)
        if marker is None:
            return False
        at = len(marker) if marker == "functools" else self._skip_blanks(len(marker))
        if at == len(self._pending):
            return False
        if self._pending[at] not in ("[" if marker == "functools" else "[{"):
            return self._give_text(len(marker))
        self._closing, self._is_list = _MARKERS.get(marker, ""), self._pending[at] == "["
        return self._read_call(self._skip_blanks(at + 1) if self._is_list else at)

    def _read_call(self, at: int) -> bool:
        """The call whose bracket should be at ``at``, up to its arguments."""
        if at == len(self._pending):
            return False
        if self._pending[at] != "{":
            return self._give_text(at)
        if (match := _CALL_HEAD.match(self._pending, at)) and (name := _text_of(match["name"])):
            self._cut(match.end())
            self._deltas.append(CallStart(name))
            self._read = self._read_arguments
            return True
        end = _Brackets().end(self._pending[at:])
        if end is None:
            return False
        call = _call_of(self._pending[at : at + end])
        if call is None:
            return self._give_text(at + end)
        self._cut(at + end)
        self._deltas += (CallStart(call.name), ArgumentsDelta(call.arguments), CallEnd())
        self._read = self._read_separator
        return True

    def _read_arguments(self, is_end: bool) -> bool:
        end = self._brackets.end(self._pending)
        self._deltas.append(ArgumentsDelta(self._cut(len(self._pending) if end is None else end)))
        if end is not None:
            self._deltas.append(CallEnd())
            self._read = self._read_rest
        return True

    def _read_rest(self, is_end: bool) -> bool:
        """The call's object behind its arguments."""
        at = self._skip_blanks(0)
        if at == len(self._pending):
            return False
        if self._pending[at] not in ",}":
            return self._give_text(0)
        end = _Brackets(depth=1).end(self._pending)
        if end is None:
            return False
        self._cut(end)
        self._read = self._read_separator
        return True

    def _read_separator(self, is_end: bool) -> bool:
        """What stands behind a call: another one, or the end of the list."""
        at = self._skip_blanks(0)
        if not self._is_list:
            self._read = self._read_closing
            return True
        if at == len(self._pending):
            return False
        if self._pending[at] == ",":
            return self._read_call(self._skip_blanks(at + 1))
        if self._pending[at] != "]":
            return self._give_text(0)
        self._cut(at + 1)
        self._read = self._read_closing
        return True

    def _read_closing(self, is_end: bool) -> bool:
        at, closing = self._skip_blanks(0), self._closing
        if closing and self._pending.startswith(closing, at):
            self._cut(at + len(closing))
        elif closing and not is_end and closing.startswith(self._pending[at:]):
            return False
        return self._give_text(0)

    def _find_opening(self, *, is_end: bool) -> tuple[int, str | None]:
        """Where plain text ends, and the marker that stands there, if there is one."""
        text = self._pending
        if self._accept_bare:
            start = self._skip_blanks(0)
            if start == len(text) and not is_end:
                return 0, None
            if text[start : start + 1] in ("[", "{"):
                return start, ""
        places = [(text.find(marker), marker) for marker in _MARKERS if marker in text]
        if places:
            return min(places)
        return len(text) - (0 if is_end else _n_held_back(text)), None

    def _skip_blanks(self, start: int) -> int:
        return len(self._pending) - len(self._pending[start:].lstrip(_BLANKS))


class _Brackets:
    """Follows the brackets of a JSON value, however it is cut into pieces.

    Attributes:
        depth: brackets that are open.
    """

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self._is_string = self._is_escape = False

    def end(self, text: str) -> int | None:
        """Just after the bracket that closes the first one; None if it is not in this piece."""
        for place, char in enumerate(text):
            if self._is_escape:
                self._is_escape = False
            elif char == '"':
                self._is_string = not self._is_string
            elif self._is_string:
                self._is_escape = char == "\\"
            elif char in "[{":
                self.depth += 1
            elif char in "]}":
                self.depth -= 1
                if self.depth == 0:
                    return place + 1
        return None


def _n_held_back(text: str) -> int:
    """Length of the longest end of ``text`` that may grow into a marker."""
    longest = min(len(text), max(map(len, _MARKERS)) - 1)
    ends = (n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) for m in _MARKERS))
    return next(ends, 0)


def _text_of(string: str) -> str | None:
    """What a JSON string spells; None if it is malformed."""
    try:
        return str(json.loads(string))
    except json.JSONDecodeError:
        return None


def _call_of(text: str) -> ToolCall | None:
    """The call that a JSON object describes, in whatever order; None if it is anything else."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    match value:
        case {"name": str(name), "arguments": dict(arguments)}:
            return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
    return None
