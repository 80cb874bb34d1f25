"""Where pictures and clips come from: a path, a data URL, or the bytes of a file.

Contents are judged by their bytes, never by a name or a declared type.  Errors name the path, or a
stand-in such as ``<image bytes>``.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import shutil
import stat
import tempfile
from typing import BinaryIO, Literal, TypeAlias
from urllib.parse import unquote_to_bytes

from phi4mm.errors import MediaError

Source: TypeAlias = str | os.PathLike[str] | bytes

_LFS_PREFIX = b"version https://git-lfs"
_OBJECT = {"image": "a Pillow picture", "audio": "(samples, rate)"}
_LONGEST_NAME = 200  # a caller may mistake contents for a path
_STANDARD_ALPHABET = bytes.maketrans(b"-_", b"+/")  # from that of URLs


def source_name(source: Source, kind: Literal["image", "audio"]) -> str:
    """The name that messages give to ``source``: one printable line.

    Raises:
        MediaError: it is neither a path nor bytes.
    """
    if isinstance(source, bytes):
        return f"<{kind} bytes>"
    if is_data_url(source):
        return f"<{kind} data URL>"
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
        MediaError: the file is missing, a directory, a device, unreadable, empty, or a Git LFS
            pointer; the data URL is malformed.
    """
    if isinstance(source, str) and is_data_url(source):
        source = decode_data_url(source, name)
    stream = io.BytesIO(source) if isinstance(source, bytes) else _open_path(source, name)
    try:
        require_contents(stream, name)
    except MediaError:
        stream.close()
        raise
    return stream


def require_contents(stream: BinaryIO, name: str) -> None:
    """Refuse a file, which is at its start and stays there, that cannot hold a medium.

    Raises:
        MediaError: it is unreadable, empty, or a Git LFS pointer.
    """
    try:
        head = stream.read(len(_LFS_PREFIX))
    except OSError as error:
        raise MediaError(f"{name}: cannot be read ({error.strerror})") from None
    stream.seek(0)
    if not head:
        raise MediaError(f"{name}: has 0 bytes; give a file with contents")
    if head == _LFS_PREFIX:
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
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        file.close()
        raise MediaError(f"{name}: is a device, which may never end; give a file or a pipe")
    if file.seekable():
        return file
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - handed to the caller
    with file:  # a pipe, which may bring hours of sound
        shutil.copyfileobj(file, spool)
    spool.seek(0)
    return spool


def read_source(source: Source, kind: Literal["image", "audio"]) -> bytes:
    """All bytes of ``source``.

    Raises:
        MediaError: as ``open_source``.
    """
    with open_source(source, source_name(source, kind)) as stream:
        return stream.read()


def is_data_url(source: object) -> bool:
    """Whether a source is text in the form of RFC 2397, ``data:[type][;base64],contents``."""
    return isinstance(source, str) and source[:5].lower() == "data:"


def decode_data_url(url: str, name: str) -> bytes:
    """The bytes in a data URL; its declared type and parameters are not looked at.

    Raises:
        MediaError: it has no comma, or its base64 is malformed.
    """
    header, comma, payload = url.partition(",")
    if not comma:
        raise MediaError(f"{name}: has no comma; write data:TYPE;base64,CONTENTS")
    contents = unquote_to_bytes(payload)
    if header.split(";")[-1].strip().lower() != "base64":
        return contents
    return decode_base64(contents, name)


def decode_base64(text: str | bytes, name: str) -> bytes:
    """Bytes written in base64: either alphabet, with or without padding and line breaks.

    Raises:
        MediaError: there is anything else in it, or it ends within a byte.
    """
    raw = text.encode("ascii", "replace") if isinstance(text, str) else text
    packed = b"".join(raw.split()).rstrip(b"=").translate(_STANDARD_ALPHABET)
    try:
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error as error:
        raise MediaError(
            f"{name}: is not base64 ({one_line(error)}); give A-Z a-z 0-9 + / and = at the end"
        ) from error


def one_line(error: Exception) -> str:
    """What a foreign library said, fit for the middle of a message."""
    text = getattr(error, "error_string", None) or str(error)  # libsndfile's, without its prefix
    return " ".join(text.split()).rstrip(".") or type(error).__name__
