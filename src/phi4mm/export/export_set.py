"""What an export consists of: small texts, links to big files, weights laid out anew, words.

Big files are never copied: a text names them, or a link stands for them.  Weights are written only
where the other program needs them in another form.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from phi4mm.convert.output_folder import check_space
from phi4mm.convert.writer import OutputFile, StagedFiles
from phi4mm.errors import InputError
from phi4mm.measurement.staged_file import staged_file
from phi4mm.progress import Progress, counter

Maker: TypeAlias = Callable[[Path], OutputFile]
"""Plans a file of weights, given its path; the bundle it is made from stays open meanwhile."""


@dataclass(frozen=True, slots=True)
class ExportSet:
    """An export, not written yet.

    Attributes:
        texts: contents of files, by their path within the folder.
        scripts: those of ``texts`` that can be run.
        links: files of the bundle, by the path that a link to them has within the folder.
        weights: files that are made from the bundle's, by their path within the folder.
        commands: what to type, in order.
        notes: what the other program cannot do, and what to use instead; one line each.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    scripts: frozenset[str] = frozenset()
    links: Mapping[str, Path] = field(default_factory=dict)
    weights: Mapping[str, Maker] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def write_export(export: ExportSet, folder: Path, progress: Progress | None = None) -> list[str]:
    """Write texts and weights and make the links; what is there under their names is replaced.

    Args:
        export: what is written.
        folder: where; made if missing.
        progress: told about every block of weights.

    Returns:
        A line for each: what was made.

    Raises:
        InputError: something cannot be written, or something else is where a file or link belongs.
    """
    made = []
    try:
        for name in (*export.weights, *export.texts):
            if (folder / name).is_dir():
                raise InputError(
                    f"{folder / name}: a folder, in the way of a file: remove it first"
                )
        made += _write_weights(export, folder, progress)
        for name, text in export.texts.items():
            path = _place(folder, name)
            with staged_file(path) as stream:
                stream.write(text.encode())
            if name in export.scripts:
                path.chmod(0o755)
            made.append(f"wrote {path}")
        for name, target in export.links.items():
            made.append(_link(_place(folder, name), target.resolve()))
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from None
    return made


def _write_weights(export: ExportSet, folder: Path, progress: Progress | None) -> list[str]:
    files = [make(folder / name) for name, make in export.weights.items()]
    n_bytes = sum(file.n_bytes for file in files)
    check_space(folder, n_bytes)
    advance = counter(n_bytes, progress)
    for file in files:
        with StagedFiles(file.path.parent) as staged:
            staged.write(file, advance)
    return [f"wrote {file.path} ({file.n_bytes / 1e9:.2f} GB)" for file in files]


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
