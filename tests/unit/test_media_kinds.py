"""Media of every other kind: data URLs, base64, HEIC, PDF, TIFF, M4A, WebM and video."""

from __future__ import annotations

import base64
import builtins
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import ExifTags, Image

from phi4mm.errors import InputError, MediaError
from phi4mm.media.audio import load_audio, open_audio
from phi4mm.media.image import load_image
from phi4mm.media.pages import load_pages, parse_pages
from phi4mm.media.params import FrameParams, MelParams
from phi4mm.media.sniff import container_name, media_kind
from phi4mm.media.source import decode_base64, is_data_url, read_source

PARAMS = MelParams(
    wide=FrameParams(sample_rate=16000, window=400, hop=160, n_fft=512),
    narrow=FrameParams(sample_rate=8000, window=200, hop=80, n_fft=256),
    n_mels=80,
    top_hz=7690.0,
    preemphasis=0.97,
    scale=32768.0,
    floor=1.0,
    compression=8,
)
RED, BLUE = (255, 0, 0), (0, 0, 255)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pages_of(format: str, n: int = 3) -> bytes:
    images = [Image.new("RGB", (70, 50), (n_page * 50, 0, 0)) for n_page in range(n)]
    return encoded(images[0], format, save_all=True, append_images=images[1:])


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package look as if it were not installed."""
    real = builtins.__import__

    def import_(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_)
    monkeypatch.delitem(sys.modules, package, raising=False)


class TestDataUrls:
    PNG = encoded(Image.new("RGB", (3, 2), "red"), "PNG")
    TEXT = base64.b64encode(PNG).decode()

    @pytest.mark.parametrize(
        "head",
        [
            "data:image/png;base64,",
            "data:image/jpeg;base64,",
            "data:;base64,",
            "data:text/plain;charset=utf-8;base64,",
            "DATA:image/png;BASE64,",
        ],
    )
    def test_the_declared_type_does_not_matter(self, head: str) -> None:
        assert load_image(head + self.TEXT).size == (3, 2)

    def test_spellings_of_base64(self) -> None:
        lines = "\r\n".join(self.TEXT[at : at + 20] for at in range(0, len(self.TEXT), 20))
        for text in (
            lines,
            self.TEXT.rstrip("="),
            self.TEXT.replace("+", "-").replace("/", "_"),
            self.TEXT.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        ):
            assert read_source(f"data:;base64,{text}", "image") == self.PNG
        assert decode_base64(lines, "x") == self.PNG

    def test_percent_encoding(self) -> None:
        ppm = "data:image/x-portable-pixmap,P3%0A1%201%0A255%0A255%200%200"
        assert load_image(ppm).getpixel((0, 0)) == RED

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("data:image/png;base64", "has no comma"),
            ("data:image/png;base64,", "has 0 bytes"),
            ("data:image/png;base64,AA§A", "is not base64"),
            ("data:image/png;base64,A", "is not base64"),
            ("data:image/png;base64,AAAA", "is not a picture"),
            ("data:image/png,hello", "is not a picture"),
        ],
    )
    def test_what_is_wrong_is_said_on_one_line(self, url: str, message: str) -> None:
        with pytest.raises(MediaError, match=rf"^<image data URL>: .*{message}"):
            load_image(url)

    def test_sound(self) -> None:
        tone = np.sin(np.arange(1600) / 5).astype(np.float32)
        data = base64.b64encode(wav(tone)).decode()
        assert len(load_audio(f"data:audio/mpeg;base64,{data}", PARAMS).samples) == 1600

    def test_paths_are_not_urls(self) -> None:
        assert not is_data_url("data.png")
        assert not is_data_url(b"data:,x")


def wav(samples: npt.NDArray[np.float32], rate: int = 16000) -> bytes:
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV")
    return buffer.getvalue()


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = wav(np.zeros(200_000, np.float32))
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    assert len(load_audio(pipe, PARAMS).samples) == 200_000
    writer.join()


def test_a_device_is_refused() -> None:
    for open_medium in (load_image, lambda path: load_audio(path, PARAMS)):
        with pytest.raises(MediaError, match="/dev/zero: is a device"):
            open_medium("/dev/zero")


class TestHeic:
    @pytest.fixture
    def heic(self) -> bytes:
        pillow_heif = pytest.importorskip("pillow_heif")
        image = Image.new("RGB", (64, 32), RED)
        image.paste(BLUE, (0, 0, 32, 32))
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        buffer = io.BytesIO()
        pillow_heif.from_pillow(image).save(buffer, quality=95, exif=exif.tobytes())
        return buffer.getvalue()

    def test_is_decoded_upright(self, heic: bytes) -> None:
        image = load_image(heic)
        assert (image.mode, image.size) == ("RGB", (32, 64))
        assert image.getpixel((16, 8))[2] > 200
        assert image.getpixel((16, 56))[0] > 200

    def test_limits_and_damage(self, heic: bytes) -> None:
        with pytest.raises(MediaError, match="32x64 is 2048 pixels; shrink it to at most 2000"):
            load_image(heic, max_pixels=2000)
        with pytest.raises(MediaError, match="damaged"):
            load_image(heic[: len(heic) // 2])

    def test_without_the_extra(self, heic: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        without(monkeypatch, "pillow_heif")
        with pytest.raises(MediaError, match=r"is HEIC, .*pip install 'phi4mm\[heic\]'"):
            load_image(heic)


class TestPages:
    @pytest.mark.parametrize(
        ("text", "numbers"),
        [("2", (2,)), ("1-3,7", (1, 2, 3, 7)), ("3, 1-2", (3, 1, 2)), ("1,1-2", (1, 2))],
    )
    def test_selections(self, text: str, numbers: tuple[int, ...]) -> None:
        assert parse_pages(text) == numbers

    @pytest.mark.parametrize("text", ["", "0", "3-1", "a", "1-", "-1", "1-99999999", "1;2"])
    def test_selections_that_mean_nothing(self, text: str) -> None:
        with pytest.raises(InputError, match="write numbers from 1 and ranges, such as 1-3,7"):
            parse_pages(text)

    @pytest.mark.parametrize("format", ["PDF", "TIFF"])
    def test_documents(self, format: str) -> None:
        if format == "PDF":
            pytest.importorskip("pypdfium2")
        data = pages_of(format)
        second, third = load_pages(data, (2, 3))
        assert second.n_pages == 3
        assert (second.number, third.number) == (2, 3)
        assert second.image.getpixel((5, 5))[0] == pytest.approx(50, abs=3)
        assert third.image.getpixel((5, 5))[0] == pytest.approx(100, abs=3)
        with pytest.raises(MediaError, match="has 3 pages; choose some with --pages"):
            load_pages(data)
        with pytest.raises(MediaError, match="has no page 4; it has 3"):
            load_pages(data, (1, 4))
        assert len(load_pages(pages_of(format, 1))) == 1

    @pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
    def test_animations_give_their_first_frame(self, format: str) -> None:
        data = pages_of(format)
        (page,) = load_pages(data)
        assert page.n_pages == 3
        assert page.image.getpixel((5, 5))[0] < 5
        assert load_pages(data, (3,))[0].image.getpixel((5, 5))[0] == pytest.approx(100, abs=5)

    def test_a_pdf_is_rendered_at_150_dpi_and_bounded(self) -> None:
        pytest.importorskip("pypdfium2")
        (page,) = load_pages(pages_of("PDF", 1))  # Pillow writes 72 dpi
        assert page.image.size == (146, 105)
        with pytest.raises(MediaError, match="page 1 is 1 x 1 inches, at 150 dpi more than 99"):
            load_pages(pages_of("PDF", 1), max_pixels=99)

    def test_errors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(MediaError, match="not a picture but a PDF document; choose pages"):
            load_image(pages_of("PDF"))
        pytest.importorskip("pypdfium2")
        with pytest.raises(MediaError, match="PDF is damaged or locked"):
            load_pages(b"%PDF-1.7 nothing", (1,))
        without(monkeypatch, "pypdfium2")
        with pytest.raises(MediaError, match=r"needs pypdfium2: pip install 'phi4mm\[pdf\]'"):
            load_pages(pages_of("PDF"), (1,))


def container(format: str, codec: str, rate: int = 48000, channels: int = 2) -> bytes:
    """Two seconds of 440 Hz, in the last channel only."""
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    layout = "stereo" if channels == 2 else "mono"
    samples = np.zeros((channels, 2 * rate), np.float32)
    samples[-1] = 0.5 * np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate)
    with av.open(buffer, "w", format=format) as file:
        track = file.add_stream(codec, rate=rate, layout=layout)
        for at in range(0, 2 * rate, 960):
            part = np.ascontiguousarray(samples[:, at : at + 960])
            frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, at
            for packet in track.encode(frame):
                file.mux(packet)
        for packet in track.encode(None):
            file.mux(packet)
    return buffer.getvalue()


class TestContainers:
    @pytest.mark.parametrize(
        ("format", "codec", "rate", "channels"),
        [
            ("ipod", "aac", 44100, 2),
            ("mp4", "aac", 22050, 1),
            ("adts", "aac", 48000, 2),
            ("webm", "libopus", 48000, 2),
            ("matroska", "flac", 16000, 1),
            ("mov", "pcm_s16le", 8000, 1),
        ],
    )
    def test_sound_is_found(self, format: str, codec: str, rate: int, channels: int) -> None:
        clip = load_audio(container(format, codec, rate, channels), PARAMS)
        assert clip.rate == (8000 if rate == 8000 else 16000)
        assert clip.duration_s == pytest.approx(2, abs=0.1)
        spectrum = np.abs(np.fft.rfft(clip.samples * np.hanning(len(clip.samples))))
        assert spectrum.argmax() / clip.duration_s == pytest.approx(440, abs=2)
        middle = clip.samples[len(clip.samples) // 4 : len(clip.samples) // 2]
        assert np.abs(middle).max() == pytest.approx(0.5 / channels, rel=0.15)

    def test_the_length_is_known_beforehand(self) -> None:
        with open_audio(container("ipod", "aac"), PARAMS) as audio:
            assert audio.duration_s == pytest.approx(2, abs=0.1)
        with open_audio(wav(np.zeros(8000, np.float32)), PARAMS) as audio:
            assert audio.duration_s == 0.5

    def test_a_file_cut_short(self) -> None:
        data = container("ipod", "aac")
        with pytest.raises(MediaError, match=r"MP4, M4A or QuickTime .*damaged or cut short"):
            load_audio(data[: len(data) // 2], PARAMS)

    def test_a_video_without_sound(self) -> None:
        av = pytest.importorskip("av")
        buffer = io.BytesIO()
        with av.open(buffer, "w", format="mp4") as file:
            track = file.add_stream("mpeg4", rate=10)
            track.width = track.height = 32
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
            for packet in [*track.encode(frame), *track.encode(None)]:
                file.mux(packet)
        with pytest.raises(MediaError, match="has no sound; give one with a sound track"):
            load_audio(buffer.getvalue(), PARAMS)

    def test_without_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = container("ipod", "aac")
        without(monkeypatch, "av")
        with pytest.raises(MediaError, match=r"is MP4, .*pip install 'phi4mm\[av\]'"):
            load_audio(data, PARAMS)

    def test_a_recording_without_samples(self) -> None:
        with (
            open_audio(wav(np.zeros(0, np.float32)), PARAMS) as audio,
            pytest.raises(MediaError, match="has no samples"),
        ):
            list(audio.blocks)


class TestKinds:
    @pytest.mark.parametrize(
        "format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "PDF", "JPEG2000"]
    )
    def test_pictures(self, format: str) -> None:
        assert media_kind(encoded(Image.new("RGB", (16, 16)), format)[:32]) == "image"

    @pytest.mark.parametrize(
        ("head", "kind"),
        [
            (b"RIFF\0\0\0\0WAVEfmt ", "audio"),
            (b"RIFF\0\0\0\0AVI LIST", "audio"),
            (b"fLaC\0\0\0\x22", "audio"),
            (b"OggS\0\x02", "audio"),
            (b"ID3\x04\0", "audio"),
            (b"\xff\xfb\x90\x64", "audio"),
            (b"\xff\xf1\x50\x80", "audio"),
            (b"FORM\0\0\0\0AIFF", "audio"),
            (b"\0\0\0\x18ftypM4A ", "audio"),
            (b"\0\0\0\x18ftypheic", "image"),
            (b"\0\0\0\x18ftypavif", "image"),
            (b"\x1aE\xdf\xa3\x01", "audio"),
            (b"Hello, world", None),
            (b"\xff\xff\xff\xff"[:1], None),
            (b"", None),
        ],
    )
    def test_by_the_first_bytes(self, head: bytes, kind: str | None) -> None:
        assert media_kind(head) == kind

    def test_mp3_is_no_container(self) -> None:
        assert container_name(b"\xff\xfb\x90\x64") is None
        assert container_name(b"\xff\xf1\x50\x80") == "AAC"
