"""From what a request says of a picture or clip to the bytes of a file."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Literal
from urllib.parse import unquote_to_bytes, urlsplit

from phi4mm.errors import MediaError
from phi4mm.server.media_fetch import fetch, too_long
from phi4mm.server.settings import MediaAccess

Kind = Literal["image", "audio"]


def load_media(url: str, kind: Kind, access: MediaAccess) -> bytes:
    """The bytes behind a URL; may wait for the network or the disk.

    Args:
        url: ``data:``, ``http(s)://``, ``file://``, or base64 alone.
        kind: for messages.
        access: what is allowed.

    Raises:
        MediaError: it is malformed, not allowed, or cannot be had.
    """
    scheme = url[:8].partition(":")[0].lower() if ":" in url[:8] else ""
    if scheme == "data":
        return _from_data_url(url, kind)
    if scheme in ("http", "https"):
        return fetch(url, kind, access)
    if scheme == "file":
        return _from_file(url, kind, access)
    if scheme:
        raise MediaError(f"{kind} URL begins with {scheme}: give data:, http(s):// or base64")
    return from_base64(url, kind)


def from_base64(text: str, kind: Kind) -> bytes:
    """Decode base64, in which blanks and line breaks do no harm.

    Raises:
        MediaError: it is no base64, or holds nothing.
    """
    compact = "".join(text.split())
    compact = compact.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise MediaError(f"the {kind} is neither a URL nor base64: give one of them") from None
    if not data:
        raise MediaError(f"the {kind} has 0 bytes: give a file with contents")
    return data


def _from_data_url(url: str, kind: Kind) -> bytes:
    """What is said of the type is not looked at: the bytes tell."""
    header, comma, payload = url.partition(",")
    if not comma:
        raise MediaError(f"the {kind}'s data: URL has no comma: write data:;base64,...")
    if "base64" in [parameter.strip().lower() for parameter in header.split(";")]:
        return from_base64(unquote_to_bytes(payload).decode("latin-1"), kind)
    data = unquote_to_bytes(payload)
    if not data:
        raise MediaError(f"the {kind} has 0 bytes: give a file with contents")
    return data


def _from_file(url: str, kind: Kind, access: MediaAccess) -> bytes:
    folder = access.path
    if folder is None:
        raise MediaError(f"{kind} URL: files are off; the server needs --media-path for them")
    parts = urlsplit(url)
    path = Path(unquote_to_bytes(parts.path).decode(errors="surrogateescape"))
    try:
        resolved = path.resolve()
        if parts.netloc not in ("", "localhost") or not resolved.is_relative_to(folder.resolve()):
            raise MediaError(f"{kind} URL: the file is not in the server's media folder")
        if not resolved.is_file():  # nor a pipe, which may never end
            raise MediaError(f"{kind} URL: there is no such file in the server's media folder")
        with resolved.open("rb") as file:
            data = file.read(access.max_bytes + 1)
    except (OSError, ValueError):
        raise MediaError(f"{kind} URL: the file cannot be read") from None
    if len(data) > access.max_bytes:
        raise too_long(kind, access)
    return data
