"""The two places a chat can happen in: a person's terminal, and a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from PIL import Image
from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from phi4mm.chat.completion import ChatCompleter
from phi4mm.chat.preview import colour_depth, half_blocks

# A model's words must not steer a terminal: tabs and line ends are all that is let through.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_GREY, _RED, _RESET = "\x1b[90m", "\x1b[31m", "\x1b[0m"


class PlainTerminal:
    """Lines in, answers out, and remarks on a third stream; no colours.

    Args:
        source: read line by line; a backslash at the end of a line goes on in the next.
        answers: gets what the model says.
        remarks: gets everything else.
    """

    is_interactive = False

    def __init__(self, source: TextIO, answers: TextIO, remarks: TextIO) -> None:
        self._source = source
        self._answers = answers
        self._remarks = remarks

    def read(self, n_pending: int) -> str | None:
        """The next line, or several joined by backslashes at their ends."""
        lines: list[str] = []
        while line := self._source.readline():
            text = line.rstrip("\r\n")
            if not text.endswith("\\"):
                return "\n".join([*lines, text])
            lines.append(text[:-1])
        return "\n".join(lines) if lines else None

    def write(self, text: str) -> None:
        """A piece of an answer, without control characters."""
        self._answers.write(_CONTROL.sub("", text))
        self._answers.flush()

    def say(self, line: str) -> None:
        """A remark."""
        print(line, file=self._remarks)

    def complain(self, line: str) -> None:
        """An error."""
        print(f"error: {line}", file=self._remarks)

    def show(self, image: Image.Image) -> None:
        """Nothing: a pipe shows no pictures."""


class RichTerminal:
    """A person's terminal: history, completion, several lines, colours.

    Args:
        history: file that keeps what was typed; if it cannot be written, nothing is kept.
        environment: says which colours there are.
    """

    is_interactive = True

    def __init__(self, history: Path, environment: Mapping[str, str]) -> None:
        self._depth = colour_depth(environment)
        self._prompt: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=ChatCompleter(),
            complete_while_typing=False,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation=lambda width, number, is_soft_wrap: " " * width,
        )

    def read(self, n_pending: int) -> str | None:
        """A message; Ctrl-C forgets what is typed, Ctrl-D ends."""
        attached = f"[{n_pending} attached] " if n_pending else ""
        style = "bold" if self._depth else ""
        while True:
            try:
                return self._prompt.prompt(FormattedText([(style, f"{attached}> ")]))
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None

    def write(self, text: str) -> None:
        """A piece of an answer, without control characters."""
        sys.stdout.write(_CONTROL.sub("", text))
        sys.stdout.flush()

    def say(self, line: str) -> None:
        """A remark, in grey."""
        self._line(_GREY, line)

    def complain(self, line: str) -> None:
        """An error, in red."""
        self._line(_RED, f"error: {line}")

    def show(self, image: Image.Image) -> None:
        """The picture in half blocks, where there are colours."""
        if self._depth is not None:
            print("\n".join(half_blocks(image, self._depth)), flush=True)

    def _line(self, colour: str, line: str) -> None:
        text = _CONTROL.sub("", line)
        print(f"{colour}{text}{_RESET}" if self._depth else text, flush=True)


def _history(path: Path) -> History:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _keys() -> KeyBindings:
    """Enter sends, unless the line ends with a backslash; Alt-Enter begins a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline()
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return keys
