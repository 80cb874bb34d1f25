"""The loop of a chat: reads lines, carries out commands, writes answers.  Errors never end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from PIL import Image

from phi4mm.chat.attachment import Attachment
from phi4mm.chat.command import (
    SPECS,
    Command,
    Drop,
    Words,
    file_arguments,
    parse_line,
    split_words,
    to_path,
)
from phi4mm.chat.session import Session
from phi4mm.chat.setting import change_setting, show_settings
from phi4mm.chat.stats import context_note, stats_lines
from phi4mm.engine.event import Event
from phi4mm.errors import InputError, Phi4MMError
from phi4mm.media.pages import parse_pages
from phi4mm.media.sniff import MediaKind


class Terminal(Protocol):
    """Where a chat takes place.

    Attributes:
        is_interactive: whether Ctrl-C stops what is going on, or ends the program.
    """

    is_interactive: bool

    def read(self, n_pending: int) -> str | None:
        """The next message, which may have several lines; None at the end of the input."""

    def write(self, text: str) -> None:
        """A piece of an answer, shown at once."""

    def say(self, line: str) -> None:
        """A line about the chat itself."""

    def complain(self, line: str) -> None:
        """An error line."""

    def show(self, image: Image.Image) -> None:
        """A small picture, where the terminal can show one."""


class Repl:
    """One chat on one terminal.

    Args:
        session: the chat.
        terminal: where it takes place.

    Attributes:
        n_errors: lines that could not be carried out.
    """

    def __init__(self, session: Session, terminal: Terminal) -> None:
        self._session = session
        self._terminal = terminal
        self._is_over = False
        self.n_errors = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "image": self._attach_images,
            "audio": self._attach_clips,
            "system": self._set_system,
            "regen": self._answer_again,
            "undo": self._undo,
            "clear": self._clear,
            "save": self._save,
            "load": self._load,
            "set": self._set,
            "stats": self._show_stats,
            "help": self._show_help,
            "exit": self._leave,
        }

    def run(self) -> None:
        """Read and answer until the input ends or ``/exit``."""
        while not self._is_over:
            line = self._terminal.read(len(self._session.pending))
            if line is None:
                return
            self.carry_out(partial(self._handle, line))

    def carry_out(self, action: Callable[[], None]) -> None:
        """Do something whose failure is an error line."""
        try:
            action()
        except Phi4MMError as error:
            self.n_errors += 1
            self._terminal.complain(str(error))
        except KeyboardInterrupt:
            if not self._terminal.is_interactive:
                raise
            self._terminal.say("stopped")

    def attach(self, path: Path, kind: MediaKind | None = None, pages: str | None = None) -> None:
        """Attach a file and show its chip.

        Raises:
            InputError: it cannot be used.
        """
        numbers = None if pages is None else parse_pages(pages)
        for attachment in self._session.attach(path, kind, numbers):
            self._show_attachment(attachment)

    def _handle(self, line: str) -> None:
        match parse_line(line):
            case Command(name, rest):
                self._commands[name](rest)
            case Drop(paths):
                for path in paths:
                    self.attach(path)
            case Words(text):
                if text or self._session.pending:
                    self._write_answer(self._session.ask(text, self._terminal.say))

    def _show_attachment(self, attachment: Attachment) -> None:
        if attachment.thumbnail is not None:
            self._terminal.show(attachment.thumbnail)
        self._terminal.say(f"[{attachment.chip}]")

    def _write_answer(self, events: Iterator[Event]) -> None:
        try:
            for event in events:
                self._terminal.write(event.text)
        except KeyboardInterrupt:
            self._terminal.write("\n")
            raise
        self._terminal.write("\n")
        if (note := context_note(self._session)) is not None:
            self._terminal.say(note)

    def _attach_images(self, rest: str) -> None:
        words = rest.split(maxsplit=2)
        pages = None
        if words[:1] == ["--pages"]:
            if len(words) < 3:
                raise InputError("write /image --pages 1-3 FILE")
            pages, rest = words[1], words[2]
        self._attach_all(rest, "image", pages)

    def _attach_clips(self, rest: str) -> None:
        self._attach_all(rest, "audio", None)

    def _attach_all(self, rest: str, kind: MediaKind, pages: str | None) -> None:
        for path in file_arguments(rest):
            self.carry_out(partial(self.attach, path, kind, pages))

    def _set_system(self, rest: str) -> None:
        session = self._session
        if rest:
            text = "" if rest in ('""', "''") else rest
            session.conversation = session.conversation.with_system(text or None)
        self._terminal.say(f"system: {session.conversation.system or 'none'}")

    def _answer_again(self, _: str) -> None:
        self._write_answer(self._session.ask_again(self._terminal.say))

    def _undo(self, _: str) -> None:
        self._session.undo()
        self._terminal.say(f"{len(self._session.conversation.turns)} turns remain")

    def _clear(self, _: str) -> None:
        self._session.clear()
        self._terminal.say("cleared")

    def _save(self, rest: str) -> None:
        path = _one_path(rest)
        self._session.save(path)
        self._terminal.say(f"saved {self._n_turns()} to {path}")

    def _load(self, rest: str) -> None:
        path = _one_path(rest)
        self._session.load(path)
        self._terminal.say(f"loaded {self._n_turns()} from {path}")
        for turn in self._session.conversation.turns:
            for name in turn.names:
                self._terminal.say(f"[{name}]")

    def _n_turns(self) -> str:
        n = len(self._session.conversation.turns)
        return f"{n} turn{'' if n == 1 else 's'}"

    def _set(self, rest: str) -> None:
        for assignment in rest.split():
            change_setting(self._session, assignment)
        self._terminal.say(show_settings(self._session))

    def _show_stats(self, _: str) -> None:
        for line in stats_lines(self._session):
            self._terminal.say(line)

    def _show_help(self, _: str) -> None:
        for spec in SPECS:
            self._terminal.say(f"{f'/{spec.name} {spec.arguments}':34}{spec.help}")
        self._terminal.say(
            "A file on a line of its own is attached. Alt-Enter or \\ at the end of a line goes on "
            "in a new one. Ctrl-C stops an answer."
        )

    def _leave(self, _: str) -> None:
        self._is_over = True


def _one_path(rest: str) -> Path:
    words = split_words(rest)
    if len(words) != 1 and not (rest and not rest.startswith(("'", '"'))):
        raise InputError("name one file")
    return to_path(words[0] if len(words) == 1 else rest)
