"""Documents of several pages (PDF, TIFF) and animations: how many pictures, and which are wanted.

PDF pages need pypdfium2, an optional extra, imported when a PDF is opened.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from PIL import Image

from phi4mm.errors import InputError, MediaError
from phi4mm.media.image import MAX_PIXELS, Page, load_image
from phi4mm.media.sniff import HEAD_BYTES, is_pdf, is_tiff
from phi4mm.media.source import Source, one_line, read_source, source_name

# Small print on A4 stays legible, and a page makes 12 crops of 448 pixels.
PDF_DPI = 150

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def parse_pages(text: str) -> tuple[int, ...]:
    """Page numbers, from 1, of a selection such as ``1-3,7``; in the order written, once each.

    Raises:
        InputError: it is not written so.
    """
    numbers: dict[int, None] = {}
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else 0
        if not 1 <= first <= last <= 1_000_000:
            raise InputError(f"pages {text!r}: write numbers from 1 and ranges, such as 1-3,7")
        numbers.update(dict.fromkeys(range(first, last + 1)))
    return tuple(numbers)


def count_frames(data: bytes) -> int:
    """Pages of a TIFF file, frames of an animation, 1 for any other picture."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return int(getattr(image, "n_frames", 1))
    except Exception:  # no picture Pillow knows, or damaged: decoding it will say what is wrong
        return 1


def load_pages(
    source: Source, numbers: Sequence[int] | None = None, *, max_pixels: int = MAX_PIXELS
) -> list[Page]:
    """Decode pages of a PDF or TIFF file, frames of an animation, or any other picture as one page.

    Args:
        source: a path, a data URL, or the bytes of a file.
        numbers: which pages, from 1; None takes the only one there is, and of an animation or a
            file with several views the first.
        max_pixels: largest width times height of a page.

    Raises:
        MediaError: there are several pages and none was chosen, a chosen one does not exist, it
            cannot be decoded, or it is a PDF and pypdfium2 is not installed.
    """
    data, name = read_source(source, "image"), source_name(source, "image")
    if is_pdf(data[:HEAD_BYTES]):
        return _pdf_pages(data, name, numbers, max_pixels)
    n_pages = count_frames(data)
    if numbers is None and not is_tiff(data[:HEAD_BYTES]):
        numbers = (1,)
    chosen = _check_numbers(numbers, n_pages, name)
    if n_pages == 1:
        return [Page(1, load_image(data, max_pixels=max_pixels, name=name), name, 1)]
    return [
        Page(number, _load_frame(data, number, name, max_pixels), f"{name} p. {number}", n_pages)
        for number in chosen
    ]


def _check_numbers(numbers: Sequence[int] | None, n_pages: int, name: str) -> Sequence[int]:
    if numbers is None:
        if n_pages != 1:
            raise MediaError(f"{name}: has {n_pages} pages; choose some with --pages, such as 1-3")
        return (1,)
    for number in numbers:
        if not 1 <= number <= n_pages:
            raise MediaError(f"{name}: has no page {number}; it has {n_pages}")
    return numbers


def _load_frame(data: bytes, number: int, name: str, max_pixels: int) -> Image.Image:
    """A page as a file of several has it.  The first goes the way that a file of one page goes."""
    if number == 1:
        return load_image(data, max_pixels=max_pixels, name=name)
    with Image.open(io.BytesIO(data)) as file:
        try:
            file.seek(number - 1)
            frame = file.copy()
        except Exception as error:  # Pillow's decoders raise whatever their parsing ran into
            raise MediaError(
                f"{name}: page {number} is damaged or cut short ({one_line(error)}); give a "
                "complete file"
            ) from error
    return load_image(frame, max_pixels=max_pixels, name=name)


def _pdf_pages(
    data: bytes, name: str, numbers: Sequence[int] | None, max_pixels: int
) -> list[Page]:
    with _open_pdf(data, name) as document:
        n_pages = len(document)
        chosen = _check_numbers(numbers, n_pages, name)
        return [
            Page(
                number,
                _render(document, number, name, max_pixels),
                name if n_pages == 1 else f"{name} p. {number}",
                n_pages,
            )
            for number in chosen
        ]


@contextmanager
def _open_pdf(data: bytes, name: str) -> Iterator[Any]:
    try:
        import pypdfium2
    except ImportError as error:
        raise MediaError(
            f"{name}: is a PDF document, which needs pypdfium2: pip install 'phi4mm[pdf]'"
        ) from error
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise MediaError(
            f"{name}: PDF is damaged or locked ({one_line(error)}); give a complete file "
            "without a password"
        ) from error
    try:
        yield document
    finally:
        document.close()


def _render(document: Any, number: int, name: str, max_pixels: int) -> Image.Image:
    scale = PDF_DPI / 72  # a PDF's unit is 1/72 inch
    page = document[number - 1]
    try:
        width, height = page.get_size()
        if width * height * scale * scale > max_pixels:
            raise MediaError(
                f"{name}: page {number} is {width / 72:.0f} x {height / 72:.0f} inches, at "
                f"{PDF_DPI} dpi more than {max_pixels} pixels; make the page smaller"
            )
        image: Image.Image = page.render(scale=scale).to_pil()
        return image.convert("RGB")
    finally:
        page.close()
