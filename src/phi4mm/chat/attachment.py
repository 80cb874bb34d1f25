"""Files given to a chat: opened, recognised, planned, and described in one line."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from phi4mm.errors import InputError, MediaError
from phi4mm.media.image import Page
from phi4mm.media.pages import count_frames, load_pages
from phi4mm.media.sniff import HEAD_BYTES, MediaKind, is_pdf, is_tiff, media_kind
from phi4mm.media.source import read_source, source_name
from phi4mm.prompt.chunk import PromptBuilder
from phi4mm.prompt.medium import Picture
from phi4mm.prompt.message import AudioPart, ImagePart

_THUMBNAIL = (80, 80)
_MOST_BYTES = 1 << 30  # a conversation keeps the files whole, to show them again and to be saved


@dataclass(frozen=True, slots=True)
class Attachment:
    """A picture or clip that goes with the next question.

    Attributes:
        name: of its file.
        part: what the message will hold; its source is the bytes of a file.
        n_tokens: soft tokens it takes in the context.
        details: size and the like, in words.
        thumbnail: of a picture.
    """

    name: str
    part: ImagePart | AudioPart
    n_tokens: int
    details: tuple[str, ...]
    thumbnail: Image.Image | None = None

    @property
    def chip(self) -> str:
        """One line: name, size, tokens."""
        return " · ".join((self.name, *self.details, f"{self.n_tokens} tokens"))


def open_attachments(
    path: Path,
    prompts: PromptBuilder,
    kind: MediaKind | None = None,
    pages: Sequence[int] | None = None,
) -> list[Attachment]:
    """Open a file; several pages of a document make several attachments.

    Args:
        path: the file.
        prompts: knows what the bundle takes, and how many tokens that will be.
        kind: what it must be; None decides by its bytes.
        pages: pages of a PDF or TIFF file, frames of an animation, from 1; None for the only one.

    Raises:
        InputError: the bundle does not take this kind, or pages were chosen of a clip.
        MediaError: the file cannot be used.
    """
    _require_size(path)
    data = read_source(path, kind or "image")
    kind = kind or media_kind(data[:HEAD_BYTES])
    if kind is None:
        raise MediaError(f"{path}: is neither a picture nor sound; give one of these")
    if kind == "audio":
        if pages is not None:
            raise InputError(f"{path}: a clip has no pages")
        return [_clip(path, data, prompts)]
    if is_pdf(data[:HEAD_BYTES]) or pages is not None or is_tiff(data[:HEAD_BYTES]):
        return [_page(path, page, prompts) for page in load_pages(path, pages)]
    return [_picture(path, data, prompts)]


def _require_size(path: Path) -> None:
    try:
        n_bytes = path.stat().st_size
    except (OSError, ValueError):
        return  # opening it tells why
    if n_bytes > _MOST_BYTES:
        raise MediaError(
            f"{source_name(path, 'image')}: has {n_bytes} bytes, a chat takes files of up to "
            f"{_MOST_BYTES}; `phi4mm transcribe` takes recordings of any length"
        )


def _clip(path: Path, data: bytes, prompts: PromptBuilder) -> Attachment:
    sound = prompts.sound(data, source_name(path, "audio"))
    clip = sound.clip
    details = (f"{clip.duration_s:.1f} s", f"{clip.rate // 1000} kHz")
    return Attachment(path.name, AudioPart(data), sound.n_tokens, details)


def _picture(path: Path, data: bytes, prompts: PromptBuilder) -> Attachment:
    n_frames = count_frames(data)
    notes = (f"first of {n_frames} frames",) if n_frames > 1 else ()
    picture = prompts.picture(data, source_name(path, "image"))
    return _described(path.name, picture, data, notes)


def _page(path: Path, page: Page, prompts: PromptBuilder) -> Attachment:
    buffer = io.BytesIO()
    page.image.save(buffer, "PNG")
    name = f"{path.name} p. {page.number}" if page.n_pages > 1 else path.name
    data = buffer.getvalue()
    return _described(name, prompts.picture(data, page.name), data, ())


def _described(name: str, picture: Picture, data: bytes, notes: tuple[str, ...]) -> Attachment:
    plan, thumbnail = picture.plan, picture.image.copy()
    thumbnail.thumbnail(_THUMBNAIL)
    details = (f"{plan.width}x{plan.height}", *notes, f"{plan.n_crops} + 1 crops")
    return Attachment(name, ImagePart(data), picture.n_tokens, details, thumbnail)
