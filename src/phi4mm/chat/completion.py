"""Tab completion: command names, settings, and paths with blanks, quotes and ``~``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from phi4mm.chat.command import SPECS
from phi4mm.chat.setting import KEYS

_COMMAND = re.compile(r"/[a-z]*")
_FILE_COMMANDS = ("/image ", "/audio ", "/save ", "/load ")
# the last word of a line: with an open quotation mark, or without blanks that are not escaped
_LAST_WORD = re.compile(
    r"""(?:"(?P<double>[^"]*)|'(?P<single>[^']*)|(?P<bare>(?:\\.|[^\s"'\\])*))$"""
)
_SPECIAL = re.compile(r"""([\s"'\\()&;|<>*?$`!])""")


class ChatCompleter(Completer):
    """Completes the line of a chat."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Whatever may stand at the cursor."""
        line = document.text_before_cursor
        if _COMMAND.fullmatch(line):
            for spec in SPECS:
                if spec.name.startswith(line[1:]):
                    yield Completion(f"/{spec.name}", -len(line), display_meta=spec.help)
        elif line.startswith("/set "):
            word = line.rpartition(" ")[2]
            yield from (Completion(f"{k}=", -len(word)) for k in KEYS if k.startswith(word))
        elif line.startswith(_FILE_COMMANDS) or line.startswith(("/", "~/", "./", "../", '"', "'")):
            for replacement, n_replaced, shown in complete_path(line):
                yield Completion(replacement, -n_replaced, display=shown)


def complete_path(line: str) -> Iterator[tuple[str, int, str]]:
    """Ways to go on with the path that ends a line.

    Yields:
        What to put, in place of how many characters at the end of the line, and what to show.
    """
    match = _LAST_WORD.search(line)
    if match is None:
        return
    quote = '"' if match["double"] is not None else "'" if match["single"] is not None else ""
    typed = match["double"] or match["single"] or re.sub(r"\\(.)", r"\1", match["bare"] or "")
    folder, _, start = typed.rpartition("/")
    prefix = f"{folder}/" if "/" in typed else ""
    for name, is_folder in _entries(Path(os.path.expanduser(prefix or "."))):
        if not name.startswith(start) or (name.startswith(".") and not start):
            continue
        word = prefix + name
        if quote:
            replacement = quote + word + ("/" if is_folder else quote)
        else:
            replacement = _SPECIAL.sub(r"\\\1", word) + ("/" if is_folder else "")
        yield replacement, len(match[0]), name + ("/" if is_folder else "")


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Names in a folder, and whether each is a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.is_dir()) for entry in entries)
    except OSError:
        return []
