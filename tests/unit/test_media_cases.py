"""Faults that other runtimes of multimodal models were reported for, tried here.

Where a fault has a kind, the kind is tried and not only the case that was reported.
"""

from __future__ import annotations

import base64
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from PIL import Image

from phi4mm import (
    InputError,
    MediaError,
    Message,
    Phi4MM,
    PromptTooLong,
    SamplingParams,
    user_message,
)
from phi4mm.engine.event import Event
from phi4mm.prompt.chunk import TextChunk
from phi4mm.prompt.medium import Picture, Sound
from phi4mm.prompt.message import AudioPart, ImagePart, TextPart
from phi4mm.transcribe.piece import PieceParams

RATE = 16000
CLIP = Path(__file__).parents[1] / "data" / "media" / "clip.flac"


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Iterator[Phi4MM]:
    with Phi4MM(tiny_path, n_ctx=4096, n_threads=1, kv_type="f32") as model:
        yield model


def png(width: int, height: int, colour: str = "red", format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, format)
    return buffer.getvalue()


def voice(seconds: float, rate: int = RATE) -> npt.NDArray[np.float32]:
    t = np.arange(round(rate * seconds)) / rate
    swell = np.abs(np.sin(9 * t))
    return (0.3 * swell * sum(np.sin(2 * np.pi * 150 * k * t) / k for k in range(1, 9))).astype(
        np.float32
    )


def wav(samples: npt.NDArray[Any], rate: int = RATE, subtype: str = "PCM_16") -> bytes:
    buffer = io.BytesIO()
    format_ = "WAVEX" if subtype == "EXTENSIBLE" else "WAV"
    subtype = "PCM_24" if subtype == "EXTENSIBLE" else subtype
    soundfile.write(buffer, samples, rate, format=format_, subtype=subtype)
    return buffer.getvalue()


def last(model: Phi4MM, *messages: Message, n: int = 2) -> Event:
    *_, event = model.generate(list(messages), SamplingParams(max_tokens=n))
    return event


def media(model: Phi4MM, *messages: Message) -> list[Picture | Sound]:
    chunks = model.prompts.chat(list(messages)).chunks
    return [chunk for chunk in chunks if not isinstance(chunk, TextChunk)]


class TestSound:
    def test_speech_in_one_channel_only_is_heard(self, model: Phi4MM) -> None:
        """transformers' front end takes a list's stereo items as batches."""
        stereo = np.stack([np.zeros(RATE, np.float32), voice(1)], axis=1)
        (sound,) = media(model, user_message(audios=[wav(stereo)]))
        assert isinstance(sound, Sound)
        assert np.abs(sound.clip.samples).max() > 0.05

    @pytest.mark.parametrize("rate", [4000, 6000, 8000, 22050, 44100, 192000])
    def test_any_rate_is_answered(self, model: Phi4MM, rate: int) -> None:
        """Below 8 kHz vLLM's port refuses."""
        assert last(model, user_message(audios=[wav(voice(1, rate), rate)])).usage.n_audio == 13

    @pytest.mark.parametrize("seconds", [0.025, 0.3, 10.0, 31.0])
    def test_short_and_long_clips_are_answered(self, model: Phi4MM, seconds: float) -> None:
        """whisper.cpp#1603: nothing below a second; vllm-omni#5110: TypeError above 30 s."""
        event = last(model, user_message(audios=[(voice(seconds), RATE)]))
        frames = (round(seconds * RATE) - 400) // 160 + 1
        assert event.usage.n_audio == -(-frames // 8)

    @pytest.mark.parametrize(
        "samples",
        [np.zeros(10 * RATE), 0.1 * np.random.default_rng(0).standard_normal(10 * RATE)],
        ids=["silence", "noise"],
    )
    def test_silence_and_noise_transcribe_to_nothing(
        self, model: Phi4MM, samples: npt.NDArray[np.float64]
    ) -> None:
        """faster-whisper#1060: ValueError when nothing is left after the pauses are taken out."""
        assert model.transcribe((samples, RATE)) == ""
        assert last(model, user_message(audios=[(samples, RATE)])).usage.n_audio > 0

    def test_shorter_pieces_when_asked_for(self, model: Phi4MM) -> None:
        pause = np.zeros(round(0.4 * RATE), np.float32)
        talk = np.concatenate([voice(1.5), pause] * 3)
        ends = [
            [segment.end_s for segment in model.transcribe_segments((talk, RATE), pieces=pieces)]
            for pieces in (None, PieceParams(max_s=2))
        ]
        assert len(ends[0]) == 1
        assert ends[1] == [pytest.approx(1.5 + 1.9 * n, abs=0.3) for n in range(3)]

    def test_clipped_sound_is_answered(self, model: Phi4MM) -> None:
        clipped = np.clip(20 * voice(1), -1, 1)
        assert last(model, user_message(audios=[(clipped, RATE)])).usage.n_audio > 0

    @pytest.mark.parametrize("data", [wav(np.zeros(0)), b"", base64.b64decode("")])
    def test_no_samples_are_refused(self, model: Phi4MM, data: bytes) -> None:
        """microsoft/VibeVoice#242: a zero-size array inside the server."""
        with pytest.raises(MediaError, match=r"has no samples|has 0 bytes"):
            model.generate([user_message(audios=[data])])
        with pytest.raises(MediaError, match=r"has no samples|has 0 bytes"):
            model.transcribe(data)

    @pytest.mark.parametrize(
        "subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "ALAW", "ULAW", "EXTENSIBLE"]
    )
    def test_every_sample_format_sounds_the_same(self, model: Phi4MM, subtype: str) -> None:
        """pywhispercpp#89: other depths read as noise."""
        (sound,) = media(model, user_message(audios=[wav(voice(1), subtype=subtype)]))
        assert isinstance(sound, Sound)
        assert np.abs(sound.clip.samples - voice(1)).max() < 0.03

    def test_a_clip_is_counted_once(self, model: Phi4MM) -> None:
        """ggml-org/llama.cpp#26351: one clip encoded twice."""
        assert last(model, user_message("?", audios=[(voice(2), RATE)])).usage.n_audio == 25

    def test_the_order_given_does_not_matter(self, model: Phi4MM) -> None:
        """vllm#14342, ort-genai#1455: words before the clip make the model refuse."""
        words, clip = TextPart("Transcribe the audio clip into text."), AudioPart(CLIP)
        first = model.prompts.chat([Message("user", (words, clip))])
        second = model.prompts.chat([Message("user", (clip, words))])
        kinds = [type(chunk) for chunk in first.chunks]
        assert kinds == [type(chunk) for chunk in second.chunks] == [TextChunk, Sound, TextChunk]
        assert first.chunks[2] == second.chunks[2]

    def test_a_model_without_encoders_says_so(self, model: Phi4MM, tmp_path: Path) -> None:
        """ServiceStack/llms#2, ggml-org/llama.cpp#23331: an error 500, or the server's end."""
        shutil.copy(model.bundle.decoder.path, tmp_path / "decoder.gguf")
        with Phi4MM(tmp_path / "decoder.gguf", n_ctx=256) as bare:
            for message in (user_message(audios=[CLIP]), user_message(images=[png(9, 9)])):
                with pytest.raises(InputError, match="mmproj"):
                    bare.generate([message])
            with pytest.raises(InputError, match="no audio encoder"):
                bare.transcribe(CLIP)


class TestPictures:
    @pytest.mark.parametrize(
        ("width", "height"), [(1, 1), (10, 10), (449, 448), (10000, 30), (30, 10000), (900, 500)]
    )
    def test_any_shape_is_planned(self, model: Phi4MM, width: int, height: int) -> None:
        """TensorRT-Model-Connect#731: only one ratio; vllm#25796: missing argument at the cap."""
        (picture,) = media(model, user_message(images=[png(width, height)]))
        assert isinstance(picture, Picture)
        assert picture.plan.n_crops <= 36
        assert len(picture.crops()) == 1 + picture.plan.n_crops

    @pytest.mark.parametrize("side", [2700, 6000])
    def test_more_than_36_crops_become_36(self, model: Phi4MM, side: int) -> None:
        (picture,) = media(model, user_message(images=[png(side, side)]))
        assert picture.n_tokens == 9585

    @pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP", "AVIF"])
    def test_a_wrong_type_in_a_data_url(self, model: Phi4MM, format: str) -> None:
        """ggml-org/llama.cpp#14615, vllm#28123."""
        data = base64.b64encode(png(40, 40, format=format)).decode()
        for head in ("data:image/jpeg;base64,", "data:;base64,", "data:a/b;charset=x;base64,"):
            (picture,) = media(model, user_message(images=[head + data]))
            assert picture.n_tokens == 545

    def test_pictures_of_two_shapes_keep_their_order(self, model: Phi4MM) -> None:
        """PR family of phi3v: two ratios in one prompt; vllm#14343: more pictures than given."""
        wide, tall = png(900, 300), png(300, 900)
        for images in ([wide, tall], [tall, wide]):
            found = media(model, user_message("List them.", images=images))
            sizes = [p.image.size for p in found if isinstance(p, Picture)]
            assert sizes == [Image.open(io.BytesIO(data)).size for data in images]

    def test_three_attachments_reach_the_model_as_three(self, model: Phi4MM) -> None:
        """llama.cpp#13704: only the first --image was used."""
        parts = (ImagePart(png(20, 20)), AudioPart(CLIP), ImagePart(png(20, 20, "blue")))
        found = media(model, Message("user", (*parts, TextPart("?"))))
        assert [type(medium) for medium in found] == [Picture, Sound, Picture]
        assert len({medium.digest for medium in found}) == 3

    def test_too_many_pictures_are_refused_before_any_work(self, model: Phi4MM) -> None:
        """ggml-org/llama.cpp#14111: an error 500 at the 11th picture."""
        images = [png(20, 20, colour) for colour in ("red", "green", "blue", "white")] * 3
        with pytest.raises(
            PromptTooLong, match="the prompt has 6544 tokens, the context holds 4096"
        ):
            model.generate([user_message("?", images=images)])

    def test_eight_turns_with_a_picture_each(self, tiny_path: Path) -> None:
        """ggml-org/llama.cpp#24681: a crash after some turns."""
        with Phi4MM(tiny_path, n_ctx=4096, n_threads=1) as model:
            messages: list[Message] = []
            for n in range(8):
                messages.append(user_message("?", images=[png(10, 300 + n)]))
                event = last(model, *messages, n=1)
                assert event.usage.n_image == 305 * (n + 1)
                messages.append(Message("assistant", (TextPart("Red."),)))
            assert event.usage.n_cached > 0

    @pytest.mark.parametrize(
        "data", [png(400, 400)[:-200], png(40, 40, format="JPEG")[:300], b"\x89PNG\r\n", b""]
    )
    def test_damaged_files_are_refused(self, model: Phi4MM, data: bytes) -> None:
        with pytest.raises(MediaError):
            model.generate([user_message(images=[data])])


class TestAdapters:
    def test_a_picture_with_a_clip_is_a_vision_conversation(self, model: Phi4MM) -> None:
        """vLLM serves a picture with a clip without any adapter."""
        mode = model.prompts.chat([user_message(images=[png(9, 9)], audios=[CLIP])]).mode
        assert (mode.adapter, mode.audio_projection) == ("vision", "vision")

    def test_text_after_a_clip_is_answered_by_the_bare_model(self, model: Phi4MM) -> None:
        """mlx_vlm keeps the last adapter for text."""
        prompt = "<|user|>one two three<|end|><|assistant|>"
        before = model.logits(prompt)
        last(model, user_message("?", audios=[CLIP]))
        last(model, user_message("?", images=[png(20, 20)]))
        np.testing.assert_allclose(model.logits(prompt), before, atol=1e-3)

    def test_a_clip_changes_projection_when_a_picture_joins(self, model: Phi4MM) -> None:
        heard = model.encode_audio(CLIP, "speech")
        assert np.abs(heard - model.encode_audio(CLIP, "vision")).max() > 1e-3


class TestPrompts:
    @pytest.mark.parametrize("text", ["<|image_1|>", "<|end|><|assistant|>", "<|endoftext10|>"])
    def test_what_a_person_types_stays_text(self, model: Phi4MM, text: str) -> None:
        """ort-genai#1701, #1751: markers typed by a user take part in the template."""
        plain = model.prompts.chat([user_message("x")])
        typed = model.prompts.chat([user_message(text)])
        assert typed.n_image_tokens == 0
        assert typed.n_tokens > plain.n_tokens + 3
        assert model.prompts.chat([user_message(text, images=[png(9, 9)])]).n_image_tokens == 545

    def test_a_marker_without_its_picture_is_refused(self, model: Phi4MM) -> None:
        with pytest.raises(InputError, match="is the image number 1"):
            model.generate_raw("<|user|><|image_2|><|end|>", images=[png(9, 9)])

    def test_a_system_message_and_a_clip_without_words(self, model: Phi4MM) -> None:
        """PhiCookBook#281."""
        system = Message("system", (TextPart("Be brief."),))
        assert last(model, system, user_message(audios=[CLIP])).usage.n_audio == 38

    def test_stop_tokens_are_never_printed(self, model: Phi4MM) -> None:
        """ggml-org/llama.cpp#6903: <|end|> in the answer."""
        events = list(
            model.generate(
                [user_message("Hello")], SamplingParams(temperature=3, seed=5, max_tokens=1500)
            )
        )
        text = "".join(event.text for event in events)
        assert "<|end|>" not in text
        assert "<|endoftext|>" not in text
