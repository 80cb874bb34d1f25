"""What is remembered of media: nothing decoded twice, nothing kept that can be had again."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from PIL import Image

from phi4mm.cli.options import sample_bundle
from phi4mm.modelfile.bundle import Bundle
from phi4mm.prompt import medium
from phi4mm.prompt.chunk import PromptBuilder
from phi4mm.prompt.media_memory import MediaMemory
from phi4mm.prompt.medium import Picture
from phi4mm.prompt.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bundle():
    with Bundle.open(sample_bundle()) as bundle:
        yield bundle


@pytest.fixture
def prompts(bundle):
    return PromptBuilder(bundle, Tokenizer(bundle.decoder.file.metadata))


@pytest.fixture
def decoded(monkeypatch):
    """Sizes of the pictures that are decoded from now on."""
    sizes = []
    load = medium.load_image

    def counted(source, **settings):
        image = load(source, **settings)
        sizes.append(image.size)
        return image

    monkeypatch.setattr(medium, "load_image", counted)
    return sizes


def png(colour, size=(90, 60)):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_equal_contents_are_decoded_once(prompts, decoded):
    first, second = prompts.picture(png("red")), prompts.picture(png("red"))
    assert (first, first.digest) == (second, second.digest)
    assert len(decoded) == 1
    assert prompts.picture(png("blue")).digest != first.digest
    assert len(decoded) == 2


def test_pixels_are_not_kept_and_come_back_when_needed(prompts, decoded):
    first, second = prompts.picture(png("red")), prompts.picture(png("red"))
    assert first.pixels is not None
    assert second.pixels is None
    np.testing.assert_array_equal(second.crops(), first.crops())
    assert len(decoded) == 2


def test_clips_too(prompts):
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.1 * np.sin(np.arange(8000) / 9), 16000, format="WAV")
    first, second = (prompts.sound(buffer.getvalue()) for _ in range(2))
    assert first == second
    assert first.decoded is not None
    assert second.decoded is None
    np.testing.assert_array_equal(second.mel(), first.mel())


def test_what_may_change_is_looked_at_each_time(prompts, decoded, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png("red"))
    red = prompts.picture(path)
    path.write_bytes(png("blue"))
    assert prompts.picture(path).digest != red.digest
    image = Image.new("RGB", (9, 9), "red")
    before = prompts.picture(image).digest
    image.putpixel((0, 0), (0, 0, 0))
    assert prompts.picture(image).digest != before


def test_the_least_recently_used_are_forgotten():
    memory, opened = MediaMemory(max_bytes=25), []

    def get(contents):
        def open_medium():
            opened.append(contents)
            return Picture(contents, None, None, "digest", None)

        memory.get(contents, open_medium)

    for contents in (b"a" * 10, b"b" * 10, b"a" * 10, b"c" * 10, b"a" * 10, b"b" * 10, b"x" * 30):
        get(contents)
    assert [c[:1] for c in opened] == [b"a", b"b", b"c", b"b", b"x"]
    get(b"x" * 30)
    assert len(opened) == 6  # alone longer than the bound
