"""Pictures: whatever Pillow (or pillow-heif) decodes in, an upright 8-bit RGB picture out.

Rules that change pixels, all of them chosen to show what a viewer would show: EXIF orientation is
applied; transparency is laid over white; deep grey is scaled to 8 bits, not clipped; of an
animation the first frame is taken.  Embedded colour profiles are not applied, as in the reference.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from phi4mm.errors import MediaError, MediaTooLarge
from phi4mm.media.sniff import HEAD_BYTES, is_heic, is_pdf
from phi4mm.media.source import Source, one_line, open_source, source_name


@dataclass(frozen=True, slots=True)
class Page:
    """One picture of a file, decoded.

    Attributes:
        number: from 1.
        image: upright RGB.
        name: what messages call it.
        n_pages: pages of the document, or frames of the animation, that it is one of.
    """

    number: int
    image: Image.Image
    name: str
    n_pages: int


ImageSource: TypeAlias = Source | Image.Image | Page

# Where Pillow, left alone, raises its bomb error: twice its Image.MAX_IMAGE_PIXELS.
MAX_PIXELS = 178_956_970

_FORMATS = "JPEG, PNG, WebP, AVIF, GIF, TIFF or BMP"

# The warning filters belong to the process: two threads that save and restore them at the same time
# would leave one another's behind.  Decoding takes milliseconds where an encoder takes seconds.
_DECODING = threading.Lock()

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def load_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """Decode a picture to upright 8-bit RGB.

    Args:
        source: a path, a data URL, the bytes of a file, a page, or a Pillow picture, which is left
            unchanged.
        max_pixels: largest width times height, checked before pixels are decoded.  A file beyond
            the default is refused by Pillow even if more is allowed here, unless its own
            ``Image.MAX_IMAGE_PIXELS`` is raised too.
        name: what messages call it; None for the source's own name.

    Raises:
        MediaError: the source cannot be opened, is no picture, is damaged or is too large.
    """
    name = name or image_name(source)
    if isinstance(source, Page):
        source = source.image
    if isinstance(source, Image.Image):
        return _quietly_decode(source, name, max_pixels)
    with open_source(source, name) as stream:
        return _quietly_decode(stream, name, max_pixels)


def image_name(source: ImageSource) -> str:
    """What messages call a picture.

    Raises:
        MediaError: it is no picture source at all.
    """
    if isinstance(source, Page):
        return source.name
    return "<image>" if isinstance(source, Image.Image) else source_name(source, "image")


def _quietly_decode(source: BinaryIO | Image.Image, name: str, max_pixels: int) -> Image.Image:
    # Pillow warns of large pictures, of damaged metadata and of odd palettes; the first is decided
    # here by error, the others do not touch the pixels.
    with _DECODING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = source if isinstance(source, Image.Image) else _open(source, name, max_pixels)
        _check_size(image.size, name, max_pixels)
        try:
            image.load()
            image = _upright(image)
        except Exception as error:  # Pillow's decoders raise whatever their parsing ran into
            raise MediaError(
                f"{name}: {image.format or image.mode} picture is damaged or cut short "
                f"({one_line(error)}); give a complete file"
            ) from error
        return _to_rgb(image, name)


def _open(stream: BinaryIO, name: str, max_pixels: int) -> Image.Image:
    head = stream.read(HEAD_BYTES)
    stream.seek(0)
    if is_pdf(head):
        raise MediaError(
            f"{name}: is not a picture but a PDF document; choose pages of it (--pages 1-3)"
        )
    try:
        if is_heic(head):
            return _open_heic(stream, name, max_pixels)
        return _open_with_pillow(stream, name)
    except Image.DecompressionBombError as error:
        raise MediaTooLarge(
            f"{name}: {one_line(error)}; shrink it to at most {max_pixels} pixels", "pixels"
        ) from error
    except MediaError:
        raise
    except UnidentifiedImageError as error:
        raise MediaError(f"{name}: is not a picture Pillow knows; give a {_FORMATS}") from error
    except Exception as error:  # as above: header parsers have no closed set of errors
        raise MediaError(
            f"{name}: picture has a damaged header ({one_line(error)}); give a {_FORMATS}"
        ) from error


def _open_with_pillow(stream: BinaryIO, name: str) -> Image.Image:
    image = Image.open(stream)
    if image.format == "EPS":  # Pillow would start Ghostscript on it, a program on foreign input
        raise MediaError(f"{name}: PostScript is not decoded; give a {_FORMATS}")
    return image


def _open_heic(stream: BinaryIO, name: str, max_pixels: int) -> Image.Image:
    """The main picture of a HEIF file, already upright."""
    try:
        import pillow_heif
    except ImportError as error:
        raise MediaError(
            f"{name}: is HEIC, which needs pillow-heif: pip install 'phi4mm[heic]', or convert it "
            f"to {_FORMATS}"
        ) from error
    file = pillow_heif.open_heif(stream)
    _check_size(file.size, name, max_pixels)
    image: Image.Image = file.to_pillow()
    return image


def _check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise MediaError(f"{name}: picture of {width}x{height} pixels; give at least 1x1")
    if width * height > max_pixels:
        raise MediaTooLarge(
            f"{name}: picture of {width}x{height} is {width * height} pixels; "
            f"shrink it to at most {max_pixels}",
            "pixels",
        )


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # unreadable metadata states no orientation; the pixels are good
        return image
    method = _UPRIGHT.get(orientation)
    return image if method is None else image.transpose(method)


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _deep_grey_to_8_bits(image, name)
    if not image.has_transparency_data:
        return image.convert("RGB")
    if image.mode == "La":  # premultiplied grey has only this way out
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white, rgba).convert("RGB")


def _deep_grey_to_8_bits(image: Image.Image, name: str) -> Image.Image:
    values = np.asarray(image)
    low, high = values.min(), values.max()
    white = _white_level(image.mode, float(high))
    if not (low >= 0 and high <= white):  # also true of NaN
        raise MediaError(
            f"{name}: grey values run from {low:g} to {high:g}; scale them to 0..{white:g}"
        )
    grey = Image.fromarray(np.rint(values * np.float32(255 / white)).astype(np.uint8))
    if "transparency" in image.info:  # one grey value, given in 16 bits
        alpha = np.where(values == image.info["transparency"], 0, 255).astype(np.uint8)
        grey.putalpha(Image.fromarray(alpha))
    return grey


def _white_level(mode: str, high: float) -> float:
    """The value that is white.

    Pillow's integer modes carry 16-bit files, so 65535 is white even in a dark picture.  Float
    files state no range: the smallest customary one that holds every value is taken.
    """
    if mode != "F":
        return 65535.0
    return next((white for white in (1.0, 255.0) if high <= white), 65535.0)
