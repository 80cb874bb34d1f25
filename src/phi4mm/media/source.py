"""Where pictures and clips come from: a path, or the bytes of a file.

Contents are judged by their bytes, never by a name.  Errors name the path, or a stand-in such as
``<image bytes>``.
"""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Literal, TypeAlias

from phi4mm.errors import MediaError

Source: TypeAlias = str | os.PathLike[str] | bytes

_LFS_PREFIX = b"version https://git-lfs"
_OBJECT = {"image": "a Pillow picture", "audio": "(samples, rate)"}
_LONGEST_NAME = 200  # a caller may mistake a data URI for a path


def source_name(source: Source, kind: Literal["image", "audio"]) -> str:
    """The name that messages give to ``source``: one printable line.

    Raises:
        MediaError: it is neither a path nor bytes.
    """
    if isinstance(source, bytes):
        return f"<{kind} bytes>"
    try:
        name = os.fsdecode(source)
    except TypeError:
        given, wanted = type(source).__name__, f"a path, bytes or {_OBJECT[kind]}"
        raise MediaError(f"<{kind}>: of type {given}; give {wanted}") from None
    if len(name) > _LONGEST_NAME:
        name = name[:_LONGEST_NAME] + "..."
    return name if name.isprintable() else ascii(name)


def open_source(source: Source, name: str) -> BinaryIO:
    """Open ``source`` as a seekable stream at its start; the caller closes it.

    Raises:
        MediaError: the file is missing, a directory, unreadable, empty, or a Git LFS pointer.
    """
    stream = io.BytesIO(source) if isinstance(source, bytes) else _open_path(source, name)
    head = stream.read(len(_LFS_PREFIX))
    stream.seek(0)
    if head and head != _LFS_PREFIX:
        return stream
    stream.close()
    if not head:
        raise MediaError(f"{name}: has 0 bytes; give a file with contents")
    raise MediaError(f"{name}: is a Git LFS pointer, not the file itself; run `git lfs pull`")


def _open_path(path: str | os.PathLike[str], name: str) -> BinaryIO:
    try:
        file = open(path, "rb")  # noqa: SIM115 - handed to the caller
    except FileNotFoundError:
        raise MediaError(f"{name}: no such file; give the path of an existing one") from None
    except IsADirectoryError:
        raise MediaError(f"{name}: is a directory; give the path of a file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise MediaError(f"{name}: cannot be opened ({reason}); give a readable file") from None
    if file.seekable():
        return file
    with file:  # a pipe
        return io.BytesIO(file.read())


def one_line(error: Exception) -> str:
    """What a foreign library said, fit for the middle of a message."""
    text = getattr(error, "error_string", None) or str(error)  # libsndfile's, without its prefix
    return " ".join(text.split()).rstrip(".") or type(error).__name__
