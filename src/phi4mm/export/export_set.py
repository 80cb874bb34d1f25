"""What an export consists of: small texts that are written, links to big files, words to a person.

Big files are never copied: a text names them, or a link stands for them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from phi4mm.errors import InputError


@dataclass(frozen=True, slots=True)
class ExportSet:
    """An export, not written yet.

    Attributes:
        texts: contents of files, by their path within the folder.
        scripts: those of ``texts`` that can be run.
        links: files of the bundle, by the path that a link to them has within the folder.
        commands: what to type, in order.
        notes: what the other program cannot do, and what to use instead; one line each.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    scripts: frozenset[str] = frozenset()
    links: Mapping[str, Path] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def write_export(export: ExportSet, folder: Path) -> list[str]:
    """Write the texts and make the links; a text or link that is there is replaced.

    Returns:
        A line for each: what was made.

    Raises:
        InputError: something cannot be written, or a file that is no link is where one belongs.
    """
    made = []
    try:
        for name, text in export.texts.items():
            path = _place(folder, name)
            path.write_text(text, encoding="utf-8")
            if name in export.scripts:
                path.chmod(0o755)
            made.append(f"wrote {path}")
        for name, target in export.links.items():
            made.append(_link(_place(folder, name), target.resolve()))
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from None
    return made


def _place(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _link(path: Path, target: Path) -> str:
    """Link symbolically; where the system does not allow that, hard."""
    if path.exists() and path.samefile(target):
        return f"{path} is there"
    if path.exists() and not path.is_symlink():
        raise InputError(f"{path}: in the way of a link to {target}: remove it first")
    path.unlink(missing_ok=True)
    try:
        path.symlink_to(target)
    except OSError:
        os.link(target, path)
        return f"linked {path} (hard) to {target}"
    return f"linked {path} to {target}"
