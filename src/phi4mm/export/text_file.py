"""A text file that appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

from phi4mm.errors import InputError


def write_text_file(path: Path, text: str, *, is_script: bool = False) -> None:
    """Write a file; it gets its name, and replaces what had it, when it is complete.

    Args:
        path: its name; the folder must be there.
        text: what it holds.
        is_script: whether it can be run.

    Raises:
        InputError: it cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path}: a folder, in the way of a file: remove it first")
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        if is_script:
            unfinished.chmod(0o755)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        unfinished.unlink(missing_ok=True)
