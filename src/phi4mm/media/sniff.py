"""What a file is, by its first bytes: enough to send it to the right decoder or to refuse it well.

Sources: the magic numbers of the formats' own specifications; ISO base media (``ftyp``) brands from
the registration authority's list at mp4ra.org.
"""

from __future__ import annotations

from typing import Literal

MediaKind = Literal["image", "audio"]

HEAD_BYTES = 32
"""How many bytes the functions here look at."""

_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_PICTURE_BRANDS = _HEIC_BRANDS | {b"avif", b"avis"}
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_PICTURES = (
    *_TIFF, b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"%PDF-", b"\0\0\0\x0cjP  ",
    *(b"P%d" % n for n in range(1, 7)), b"qoif", b"DDS ",
)  # fmt: skip
_SOUNDS = (b"fLaC", b"OggS", b"ID3", b"FORM", b"caff", b".snd", b"RF64", b"riff", b"wvpk")
_CONTAINERS = (
    (b"\x1aE\xdf\xa3", "WebM or Matroska"),
    (b"0&\xb2u\x8ef\xcf\x11", "Windows media"),
    (b"FLV\x01", "Flash video"),
    (b"#!AMR", "AMR"),
    (b"\0\0\x01\xba", "MPEG video"),
)


def media_kind(head: bytes) -> MediaKind | None:
    """Whether a file that begins with ``head`` is a picture, or sound (video counts for its sound).

    None means that neither is recognised; it may still be a picture of a rare format.
    """
    if is_heic(head) or _brand(head) in _PICTURE_BRANDS or head.startswith(_PICTURES):
        return "image"
    if head[:4] == b"RIFF":
        return "image" if head[8:12] == b"WEBP" else "audio"
    if head.startswith(_SOUNDS) or container_name(head) is not None or _is_mpeg_audio(head):
        return "audio"
    return None


def is_pdf(head: bytes) -> bool:
    """Whether it is a PDF document."""
    return head.startswith(b"%PDF-")


def is_tiff(head: bytes) -> bool:
    """Whether it is a TIFF file, of either byte order, big or not."""
    return head.startswith(_TIFF)


def is_heic(head: bytes) -> bool:
    """Whether it is a picture in HEIF with HEVC, which telephones write."""
    return _brand(head) in _HEIC_BRANDS


def container_name(head: bytes) -> str | None:
    """What to call a file of sound or video that libsndfile does not read; None if it is none."""
    if (brand := _brand(head)) is not None and brand not in _PICTURE_BRANDS:
        return "MP4, M4A or QuickTime"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "AVI"
    if head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xF6 == 0xF0:
        return "AAC"
    return next((name for magic, name in _CONTAINERS if head.startswith(magic)), None)


def _brand(head: bytes) -> bytes | None:
    return head[8:12] if head[4:8] == b"ftyp" else None


def _is_mpeg_audio(head: bytes) -> bool:
    """Eleven set bits, then a version and a layer that exist."""
    return len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06 != 0
