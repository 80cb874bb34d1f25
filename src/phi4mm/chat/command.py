"""What a line of a chat means: a command, dropped files, or words for the model."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from phi4mm.errors import InputError


@dataclass(frozen=True, slots=True)
class Spec:
    """A command as the help shows it."""

    name: str
    arguments: str
    help: str


SPECS = (
    Spec("image", "[--pages 1-3] FILE...", "attach pictures, PDF or TIFF pages"),
    Spec("audio", "FILE...", "attach clips, or the sound of videos"),
    Spec("system", "[TEXT]", "set the system message, or show it; /system \"\" removes it"),
    Spec("regen", "", "answer the last question anew"),
    Spec("undo", "", "take back the last question and its answer"),
    Spec("clear", "", "forget the conversation and what is attached"),
    Spec("save", "FILE", "write the conversation with its media into one file"),
    Spec("load", "FILE", "go on with a saved conversation"),
    Spec("set", "[KEY=VALUE...]", "change temp, top-k, top-p, min-p, seed, n, context-shift"),
    Spec("stats", "", "tokens and seconds of the last answer"),
    Spec("help", "", "this list"),
    Spec("exit", "", "leave; Ctrl-D does too"),
)  # fmt: skip
NAMES = tuple(spec.name for spec in SPECS)


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what follows its name, as typed."""

    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Files on a line of their own."""

    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """Something for the model."""

    text: str


def parse_line(line: str) -> Command | Drop | Words:
    """Read a line.

    ``/name`` is a command; a line of nothing but existing files, or of what can only be meant as
    one, attaches them; ``//`` at the beginning sends what follows the first slash as words.

    Raises:
        InputError: the command is unknown.
    """
    text = line.strip()
    if text.startswith("//"):
        return Words(text[1:])
    if (paths := _dropped(text)) is not None:
        return Drop(tuple(paths))
    if not text.startswith("/"):
        return Words(text)
    name, _, rest = text[1:].partition(" ")
    if name not in NAMES:
        raise InputError(f"/{name}: no such command; /help lists them, // begins words with a /")
    return Command(name, rest.strip())


def file_arguments(rest: str) -> list[Path]:
    """The files a command names: quoted, escaped, with ``~``, or one plain name with blanks.

    Raises:
        InputError: a quotation mark is not closed, or there is no file.
    """
    if not rest:
        raise InputError("name a file")
    whole = to_path(rest)
    if _exists(whole):
        return [whole]
    paths = [to_path(word) for word in split_words(rest)]
    is_plain = not any(sign in rest for sign in "\"'\\")
    return paths if any(map(_exists, paths)) or not is_plain else [whole]


def split_words(text: str) -> list[str]:
    """Words as a shell would read them, without expanding anything.

    Raises:
        InputError: a quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError:
        raise InputError(f"{text}: a quotation mark is not closed") from None


def to_path(word: str) -> Path:
    """A path as typed or dropped: ``~`` and ``file://`` are resolved."""
    if word.startswith("file://"):
        word = unquote(urlsplit(word).path)
    return Path(os.path.expanduser(word))


def _dropped(text: str) -> list[Path] | None:
    """The files of a line that holds nothing else; None if it may be meant otherwise."""
    if "\n" in text or not text:
        return None
    if _is_pathlike(text) and _exists(to_path(text)):
        return [to_path(text)]
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    paths = [to_path(word) for word in words]
    if all(_is_pathlike(word) for word in words) and (
        all(map(_exists, paths)) or _can_only_be_a_path(words)
    ):
        return paths
    return None


def _is_pathlike(word: str) -> bool:
    """Whether a word has the look of a file: a folder before it, or a suffix of letters."""
    suffix = Path(word).suffix
    return "/" in word or (len(suffix) > 2 and not suffix[1:].isdigit())


def _can_only_be_a_path(words: Sequence[str]) -> bool:
    """Whether a single absolute path with a suffix was typed, wrongly perhaps."""
    return (
        len(words) == 1
        and (words[0].startswith(("~/", "./", "../", "file://")) or words[0].count("/") > 1)
        and _is_pathlike(Path(words[0]).name)
        and "://" not in words[0].removeprefix("file://")
    )


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than a path can be, or with a NUL
        return False
