"""Pictures: what Pillow decodes comes out upright, RGB and on white; what it cannot is named."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps

from phi4mm.errors import MediaError
from phi4mm.media.image import load_image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encode(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def corners(image: Image.Image) -> list[tuple[int, ...]]:
    """Top left, top right, bottom left, bottom right."""
    right, bottom = image.width - 1, image.height - 1
    return [image.getpixel(at) for at in ((0, 0), (right, 0), (0, bottom), (right, bottom))]


@pytest.fixture
def four_colours() -> Image.Image:
    """3 x 2 blocks of 16 pixels, corners red, green, blue and white."""
    small = Image.new("RGB", (3, 2))
    for at, colour in zip(((0, 0), (2, 0), (0, 1), (2, 1)), (RED, GREEN, BLUE, WHITE), strict=True):
        small.putpixel(at, colour)
    return small.resize((48, 32), Image.Resampling.NEAREST)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + ihdr + struct.pack(">I", zlib.crc32(ihdr))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT"


class TestSources:
    def test_path_bytes_and_picture_agree(self, tmp_path: Path, four_colours: Image.Image) -> None:
        data = encode(four_colours, "PNG")
        path = tmp_path / "a.png"
        path.write_bytes(data)
        for source in (path, str(path), data, four_colours):
            image = load_image(source)
            assert image.mode == "RGB"
            assert image.tobytes() == four_colours.tobytes()

    def test_contents_count_and_not_the_name(
        self, tmp_path: Path, four_colours: Image.Image
    ) -> None:
        for name in ("a.jpg", "a.eps", "a.raw", "a"):
            path = tmp_path / name
            path.write_bytes(encode(four_colours, "PNG"))
            assert load_image(path).tobytes() == four_colours.tobytes()

    @pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "TGA"])
    def test_formats(self, format: str, four_colours: Image.Image) -> None:
        found = np.asarray(load_image(encode(four_colours, format)), np.int16)
        assert found.shape == (32, 48, 3)
        inner = found[4:-4:8, 4:-4:8] - np.asarray(four_colours, np.int16)[4:-4:8, 4:-4:8]
        assert abs(inner).max() <= (40 if format in ("JPEG", "WEBP") else 0)

    def test_a_given_picture_is_left_alone(self, four_colours: Image.Image) -> None:
        before = four_colours.tobytes()
        load_image(four_colours).putpixel((0, 0), BLUE)
        assert four_colours.tobytes() == before


class TestOrientation:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF", "WEBP"])
    def test_exif(self, orientation: int, format: str, four_colours: Image.Image) -> None:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        options = {"lossless": True} if format == "WEBP" else {}
        image = load_image(encode(four_colours, format, exif=exif, **options))
        # Where the stored top left corner is shown, by the standard's table of rows and columns.
        top_left = {1: 0, 2: 1, 3: 3, 4: 2, 5: 0, 6: 1, 7: 3, 8: 2}[orientation]
        top_right = {1: 1, 2: 0, 3: 2, 4: 3, 5: 2, 6: 3, 7: 1, 8: 0}[orientation]
        assert image.size == ((48, 32) if orientation < 5 else (32, 48))
        assert nearest(corners(image)[top_left]) == RED
        assert nearest(corners(image)[top_right]) == GREEN

    def test_a_given_picture_is_turned_once(self, four_colours: Image.Image) -> None:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        stored = Image.open(io.BytesIO(encode(four_colours, "PNG", exif=exif)))
        assert load_image(stored).size == (32, 48)
        assert load_image(ImageOps.exif_transpose(stored)).size == (32, 48)

    def test_damaged_or_unknown_exif_turns_nothing(self, four_colours: Image.Image) -> None:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 9
        for junk in (exif, b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01", b"Exif\0\0junk"):
            image = load_image(encode(four_colours, "JPEG", exif=junk))
            assert image.size == (48, 32)


def nearest(pixel: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(255 if value > 127 else 0 for value in pixel)


class TestModes:
    def test_alpha_lies_on_white(self) -> None:
        image = Image.new("RGBA", (2, 1))
        image.putpixel((0, 0), (0, 0, 0, 0))
        image.putpixel((1, 0), (255, 0, 0, 128))
        found = load_image(encode(image, "PNG"))
        assert found.getpixel((0, 0)) == WHITE
        assert found.getpixel((1, 0)) == (255, 127, 127)

    def test_grey_with_alpha(self) -> None:
        image = Image.new("LA", (1, 1), (0, 64))
        assert load_image(encode(image, "PNG")).getpixel((0, 0)) == (191, 191, 191)

    @pytest.mark.parametrize("mode", ["La", "RGBa", "PA"])
    def test_rare_alpha_modes(self, mode: str) -> None:
        assert load_image(Image.new(mode, (2, 2))).getpixel((0, 0)) in (WHITE, (0, 0, 0))

    @pytest.mark.parametrize("transparency", [1, b"\xff\x00"])
    def test_palette_transparency(self, transparency: int | bytes) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([*RED, *BLUE])
        image.putpixel((1, 0), 1)
        found = load_image(encode(image, "PNG", transparency=transparency))
        assert [found.getpixel((x, 0)) for x in (0, 1)] == [RED, WHITE]

    def test_transparent_colour(self) -> None:
        image = Image.new("RGB", (2, 1), RED)
        image.putpixel((1, 0), BLUE)
        found = load_image(encode(image, "PNG", transparency=BLUE))
        assert [found.getpixel((x, 0)) for x in (0, 1)] == [RED, WHITE]

    def test_cmyk_jpeg_is_not_inverted(self) -> None:
        # Pillow writes the Adobe marker and inverted values, as Adobe's programs do.
        image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
        data = encode(image, "JPEG", quality=95)
        assert b"Adobe" in data
        red, green, blue = load_image(data).getpixel((8, 8))
        assert red > 245
        assert green < 10
        assert blue < 10

    def test_one_bit(self) -> None:
        image = Image.new("1", (2, 1))
        image.putpixel((1, 0), 1)
        found = load_image(encode(image, "PNG"))
        assert [found.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 0), WHITE]

    def test_first_frame(self) -> None:
        frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, GREEN, BLUE)]
        for format in ("GIF", "PNG", "WEBP", "TIFF"):
            options = {"lossless": True} if format == "WEBP" else {}
            data = encode(frames[0], format, save_all=True, append_images=frames[1:], **options)
            assert load_image(data).getpixel((1, 1)) == RED


class TestDeepGrey:
    LEVELS = np.array([[0, 128, 257, 32768, 65407, 65535]], np.uint16)
    EIGHT_BITS = (0, 0, 1, 128, 255, 255)

    def levels(self, image: Image.Image) -> list[int]:
        return np.asarray(load_image(image))[0, :, 0].tolist()

    @pytest.mark.parametrize("format", ["PNG", "TIFF"])
    def test_16_bit_files_are_scaled(self, format: str) -> None:
        data = encode(Image.fromarray(self.LEVELS), format)
        found = np.asarray(load_image(data))
        assert tuple(found[0, :, 0]) == self.EIGHT_BITS
        # The control: Pillow's own conversion clips.
        clipped = np.asarray(Image.open(io.BytesIO(data)).convert("L"))[0]
        assert clipped[3] == 255

    def test_16_bit_pgm(self) -> None:
        data = b"P5 6 1 65535\n" + self.LEVELS.astype(">u2").tobytes()
        assert tuple(np.asarray(load_image(data))[0, :, 0]) == self.EIGHT_BITS

    def test_both_byte_orders(self) -> None:
        for mode, order in (("I;16", "<u2"), ("I;16B", ">u2")):
            image = Image.frombytes(mode, (6, 1), self.LEVELS.astype(order).tobytes())
            assert tuple(self.levels(image)) == self.EIGHT_BITS

    def test_a_dark_picture_stays_dark(self) -> None:
        assert self.levels(Image.fromarray(np.full((1, 1), 257, np.uint16))) == [1]
        assert self.levels(Image.fromarray(np.full((1, 1), 257, np.int32))) == [1]

    @pytest.mark.parametrize("white", [1.0, 255.0, 65535.0])
    def test_float_files_have_three_customary_whites(self, white: float) -> None:
        ramp = np.array([[0, 0.5, 1]], np.float32) * np.float32(white)
        assert self.levels(Image.fromarray(ramp)) == [0, 128, 255]

    @pytest.mark.parametrize("value", [-1, 70000])
    def test_integers_out_of_range(self, value: int) -> None:
        image = Image.fromarray(np.array([[0, value]], np.int32))
        with pytest.raises(MediaError, match=rf"run from .*{value}.*; scale them to 0..65535"):
            load_image(image)

    @pytest.mark.parametrize("value", [-0.5, 1e6, np.nan, np.inf])
    def test_floats_out_of_range(self, value: float) -> None:
        image = Image.fromarray(np.array([[0, value]], np.float32))
        with pytest.raises(MediaError, match="scale them to 0"):
            load_image(image)

    def test_16_bit_grey_with_a_transparent_level(self) -> None:
        image = Image.fromarray(self.LEVELS)
        image.info["transparency"] = 0
        assert tuple(self.levels(image)) == (255, *self.EIGHT_BITS[1:])


class TestErrors:
    def refusal(self, source: object, **options: int) -> str:
        with pytest.raises(MediaError) as caught:
            load_image(source, **options)  # type: ignore[arg-type]
        message = str(caught.value)
        assert message.isprintable(), "one line"
        return message

    def test_paths(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty.png"
        empty.touch()
        missing = tmp_path / "missing.png"
        assert self.refusal(missing) == f"{missing}: no such file; give the path of an existing one"
        assert self.refusal(tmp_path) == f"{tmp_path}: is a directory; give the path of a file"
        assert self.refusal(empty) == f"{empty}: has 0 bytes; give a file with contents"
        assert "cannot be opened" in self.refusal("a\0b.png")
        assert "no such file" in self.refusal(str(tmp_path / "two\nlines"))
        assert len(self.refusal("data:image/png;base64," + "A" * 10**6)) < 400

    def test_bytes(self, tmp_path: Path) -> None:
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
        assert self.refusal(b"") == "<image bytes>: has 0 bytes; give a file with contents"
        assert "<image bytes>: is a Git LFS pointer" in self.refusal(pointer)
        assert "is not a picture Pillow knows; give a JPEG" in self.refusal(b"hello" * 100)
        assert self.refusal(np.zeros(9)) == (
            "<image>: of type ndarray; give a path, bytes or a Pillow picture"
        )
        path = tmp_path / "named.png"
        path.write_bytes(b"%PDF-1.7 " * 100)
        assert self.refusal(path).startswith(f"{path}: is not a picture")

    @pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "TIFF", "WEBP"])
    def test_cut_short(self, format: str) -> None:
        noise = np.random.RandomState(0).randint(0, 256, (64, 64, 3)).astype(np.uint8)
        data = encode(Image.fromarray(noise), format)
        message = self.refusal(data[: len(data) // 2])
        assert "<image bytes>" in message
        assert "; give a" in message
        if format == "JPEG":
            assert "damaged or cut short" in message

    def test_postscript_is_refused(self) -> None:
        data = encode(Image.new("RGB", (2, 2)), "EPS")
        assert "PostScript is not decoded" in self.refusal(data)

    @pytest.mark.parametrize("size", [(15000, 15000), (65000, 65000)])
    def test_bomb_is_refused_from_its_header(self, size: tuple[int, int]) -> None:
        message = self.refusal(png_header(*size))
        assert f"{size[0] * size[1]} pixels" in message
        assert "at most 178956970" in message

    def test_pillows_own_warning_does_not_leak(self) -> None:
        data = png_header(10000, 10000)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert "damaged or cut short" in self.refusal(data)
            assert "is 100000000 pixels" in self.refusal(data, max_pixels=10**7)
            assert not seen
            Image.open(io.BytesIO(data))  # the control
            assert seen

    def test_threads_leave_the_warning_filters_alone(self, four_colours: Image.Image) -> None:
        data, before = encode(four_colours, "JPEG"), list(warnings.filters)
        with ThreadPoolExecutor(8) as pool:
            assert len(list(pool.map(load_image, [data] * 400))) == 400
        assert warnings.filters == before

    def test_limit_counts_pixels(self, four_colours: Image.Image) -> None:
        data = encode(four_colours, "PNG")
        assert load_image(data, max_pixels=48 * 32).size == (48, 32)
        for source in (data, four_colours):
            message = self.refusal(source, max_pixels=48 * 32 - 1)
            assert "48x32 is 1536 pixels; shrink it to at most 1535" in message

    def test_no_pixels(self) -> None:
        assert "0x5 pixels" in self.refusal(Image.new("RGB", (0, 5)))

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_any_bytes_give_a_picture_or_a_media_error(self, data: st.DataObject) -> None:
        format = data.draw(st.sampled_from(["PNG", "GIF", "BMP", "TIFF", "JPEG", "PPM", "TGA"]))
        file = bytearray(encode(Image.new("RGB", (9, 7), RED), format))
        for _ in range(data.draw(st.integers(1, 4))):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
        del file[data.draw(st.integers(1, len(file))) :]
        found = picture_or_message(bytes(file))
        assert found.isprintable() if isinstance(found, str) else found.mode == "RGB"


def picture_or_message(data: bytes) -> Image.Image | str:
    try:
        return load_image(data, max_pixels=10**6)
    except MediaError as error:
        return str(error)
