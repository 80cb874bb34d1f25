"""Clips: what libsndfile decodes comes out mono at a rate of the model; the rest is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from phi4mm.errors import MediaError
from phi4mm.media import audio
from phi4mm.media.audio import Clip
from phi4mm.media.params import FrameParams, MelParams

PUBLISHED = MelParams(
    wide=FrameParams(sample_rate=16000, window=400, hop=160, n_fft=512),
    narrow=FrameParams(sample_rate=8000, window=200, hop=80, n_fft=256),
    n_mels=80,
    top_hz=7690.0,
    preemphasis=0.97,
    scale=32768.0,
    floor=1.0,
    compression=8,
)


def load_audio(source: audio.AudioSource, max_seconds: float | None = None) -> Clip:
    return audio.load_audio(source, PUBLISHED, max_seconds=max_seconds)


def tone(hz: float = 440.0, rate: int = 16000, seconds: float = 0.5) -> npt.NDArray[np.float32]:
    t = np.arange(round(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def encode(
    samples: npt.NDArray[np.float32], rate: int = 16000, format: str = "WAV", subtype: str = "FLOAT"
) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def pitch(clip: Clip) -> float:
    """Hz of the strongest component."""
    window = np.hanning(len(clip.samples))
    spectrum = abs(np.fft.rfft(clip.samples * window))
    return float(spectrum.argmax() * clip.rate / len(clip.samples))


class TestSources:
    def test_path_bytes_and_array_agree(self, tmp_path: Path) -> None:
        samples = tone()
        path = tmp_path / "a.wav"
        path.write_bytes(encode(samples))
        for source, name in (
            (path, str(path)),
            (str(path), str(path)),
            (path.read_bytes(), "<audio bytes>"),
            ((samples, 16000), "<audio samples>"),
        ):
            clip = load_audio(source)
            assert (clip.name, clip.rate, clip.duration_s) == (name, 16000, 0.5)
            assert clip.samples.dtype == np.float32
            assert np.array_equal(clip.samples, samples)

    @pytest.mark.parametrize("name", ["a.mp3", "a.raw", "a.txt", "a"])
    def test_contents_count_and_not_the_name(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        path.write_bytes(encode(tone(), format="FLAC", subtype="PCM_16"))
        assert len(load_audio(path).samples) == 8000

    @pytest.mark.parametrize(
        ("format", "subtype", "tolerance"),
        [
            ("WAV", "PCM_U8", 2**-7),
            ("WAV", "PCM_16", 2**-15),
            ("WAV", "PCM_24", 2**-23),
            ("WAV", "PCM_32", 2**-24),
            ("WAV", "FLOAT", 0),
            ("WAV", "DOUBLE", 0),
            ("WAV", "ALAW", 2**-5),
            ("WAV", "ULAW", 2**-5),
            ("WAVEX", "PCM_24", 2**-23),
            ("FLAC", "PCM_16", 2**-15),
            ("AIFF", "PCM_16", 2**-15),
            ("AU", "PCM_16", 2**-15),
            ("CAF", "PCM_16", 2**-15),
        ],
    )
    def test_exact_formats(self, format: str, subtype: str, tolerance: float) -> None:
        samples = tone()
        found = load_audio(encode(samples, format=format, subtype=subtype)).samples
        assert found.shape == samples.shape
        assert abs(found - samples).max() <= tolerance

    @pytest.mark.parametrize(
        ("format", "subtype"), [("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
    )
    def test_lossy_formats(self, format: str, subtype: str) -> None:
        clip = load_audio(encode(tone(seconds=1), format=format, subtype=subtype))
        assert clip.rate == 16000
        assert clip.duration_s == pytest.approx(1, abs=0.1)
        assert pitch(clip) == pytest.approx(440, abs=2)

    def test_blocks_do_not_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stereo = np.stack([tone(rate=44100), tone(300, rate=44100)], axis=1)
        data = encode(stereo, 44100)
        whole = load_audio(data).samples
        monkeypatch.setattr(audio, "_BLOCK_VALUES", 1000)
        assert np.array_equal(load_audio(data).samples, whole)
        assert np.array_equal(load_audio((stereo, 44100)).samples, whole)


class TestChannels:
    def test_sound_in_the_right_channel_only(self) -> None:
        samples = tone()
        stereo = np.stack([np.zeros_like(samples), samples], axis=1)
        for source in (encode(stereo), (stereo, 16000)):
            assert load_audio(source).samples == pytest.approx(samples / 2, abs=1e-7)

    def test_many_channels_are_averaged(self) -> None:
        channels = np.tile(np.arange(6, dtype=np.float32) / 10, (500, 1))
        assert load_audio((channels, 16000)).samples == pytest.approx(0.25)


class TestRates:
    @pytest.mark.parametrize(
        ("rate", "kept"),
        [
            (6000, 8000),
            (8000, 8000),
            (8001, 16000),
            (11025, 16000),
            (16000, 16000),
            (22050, 16000),
            (44100, 16000),
            (48000, 16000),
            (192000, 16000),
        ],
    )
    def test_rate_length_and_pitch(self, rate: int, kept: int) -> None:
        clip = load_audio(encode(tone(1000, rate, seconds=1), rate))
        assert clip.rate == kept
        assert abs(len(clip.samples) - kept) <= 1
        assert pitch(clip) == pytest.approx(1000, abs=1)
        level = np.abs(clip.samples[kept // 4 : -kept // 4]).max()
        assert level == pytest.approx(0.5, abs=0.01)

    def test_the_references_shortcut_would_show(self) -> None:
        # The control: every second sample of 44.1 kHz, declared as 16 kHz.
        thinned = load_audio((tone(1000, 44100, seconds=1)[::2], 16000))
        assert abs(pitch(thinned) - 1000) > 200

    def test_no_aliases(self) -> None:
        clip = load_audio((tone(12000, 48000, seconds=1), 48000))
        assert abs(clip.samples[2000:-2000]).max() < 1e-4

    def test_resampling_is_soxr_hq(self) -> None:
        samples = tone(1000, 44100)
        expected = soxr.resample(samples, 44100, 16000, quality="HQ")
        assert load_audio((samples, 44100)).samples == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("rate", [-1, 0, 999, 2**31 - 1])
    def test_absurd_rates(self, rate: int) -> None:
        with pytest.raises(MediaError, match=f"sample rate {rate} Hz; must be 1000..10000000"):
            load_audio((tone(), rate))


class TestArrays:
    @pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
    def test_signed_integers(self, dtype: type[np.signedinteger]) -> None:
        limits = np.iinfo(dtype)
        samples = np.tile(np.array([limits.min, 0, limits.max // 2 + 1], dtype), 200)
        assert load_audio((samples, 16000)).samples[:3].tolist() == [-1, 0, 0.5]

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    def test_unsigned_integers(self, dtype: type[np.unsignedinteger]) -> None:
        half = (np.iinfo(dtype).max + 1) // 2
        samples = np.tile(np.array([0, half, half * 3 // 2], dtype), 200)
        assert load_audio((samples, 16000)).samples[:3].tolist() == [-1, 0, 0.5]

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_floats_are_taken_as_they_are(self, dtype: type[np.floating]) -> None:
        samples = np.tile(np.array([-3, 0.25, 1.5], dtype), 200)
        assert load_audio((samples, 16000)).samples[:3].tolist() == [-3, 0.25, 1.5]

    def test_the_clip_owns_its_samples(self) -> None:
        samples = tone()
        clip = load_audio((samples, 16000))
        samples[:] = 0
        assert clip.samples.any()

    @pytest.mark.parametrize("shape", [(), (2, 16000), (400, 2, 2), (400, 0)])
    def test_wrong_shapes(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(MediaError, match=r"of shape \(.*; give \[n\] or \[n, channels\]"):
            load_audio((np.zeros(shape, np.float32), 16000))

    def test_wrong_types(self) -> None:
        for dtype in (bool, complex, object):
            with pytest.raises(MediaError, match="give integers or floats"):
                load_audio((np.zeros(9999, dtype), 16000))
        with pytest.raises(MediaError, match=r"sample rate 16000.5; give whole Hz"):
            load_audio((tone(), 16000.5))  # type: ignore[arg-type]


class TestErrors:
    def refusal(self, source: audio.AudioSource, max_seconds: float | None = None) -> str:
        with pytest.raises(MediaError) as caught:
            load_audio(source, max_seconds)
        message = str(caught.value)
        assert message.isprintable(), "one line"
        return message

    def test_paths(self, tmp_path: Path) -> None:
        empty, missing = tmp_path / "empty.wav", tmp_path / "missing.wav"
        empty.touch()
        assert self.refusal(missing) == f"{missing}: no such file; give the path of an existing one"
        assert self.refusal(tmp_path) == f"{tmp_path}: is a directory; give the path of a file"
        assert self.refusal(empty) == f"{empty}: has 0 bytes; give a file with contents"

    def test_not_audio(self, tmp_path: Path) -> None:
        path = tmp_path / "a.wav"
        path.write_bytes(b"%PDF-1.7 " * 100)
        message = self.refusal(path)
        assert message.startswith(f"{path}: is not audio libsndfile can read")
        assert message.endswith("give a complete WAV, FLAC, OGG, MP3 or AIFF")
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
        assert "<audio bytes>: is a Git LFS pointer" in self.refusal(pointer)
        assert self.refusal(None) == (  # type: ignore[arg-type]
            "<audio>: of type NoneType; give a path, bytes or (samples, rate)"
        )

    def test_header_cut_short(self) -> None:
        assert "is not audio libsndfile can read" in self.refusal(encode(tone())[:30])

    def test_header_without_samples(self) -> None:
        silent = encode(np.zeros(0, np.float32), subtype="PCM_16")
        assert self.refusal(silent) == "<audio bytes>: has no samples; give at least 400"
        assert "has no samples" in self.refusal((np.zeros(0, np.float32), 16000))

    @pytest.mark.parametrize("format", ["FLAC", "CAF"])
    def test_data_cut_short(self, format: str, capfd: pytest.CaptureFixture[str]) -> None:
        data = encode(tone(), format=format, subtype="PCM_16")
        assert "give a complete" in self.refusal(data[: len(data) // 2])
        assert capfd.readouterr().err == ""

    def test_wav_cut_short_is_used_as_far_as_it_goes(self) -> None:
        data = encode(tone(), subtype="PCM_16")
        assert len(load_audio(data[:-8000]).samples) == 4000

    def test_shorter_than_a_frame(self) -> None:
        assert len(load_audio((tone()[:400], 16000)).samples) == 400
        assert self.refusal((tone()[:399], 16000)) == (
            "<audio samples>: 399 samples at 16000 Hz are too short, they make 399 at 16000 Hz; "
            "one frame needs 400"
        )
        assert len(load_audio((tone()[:200], 8000)).samples) == 200
        assert "one frame needs 200" in self.refusal((tone()[:199], 8000))
        message = self.refusal((tone()[:1000], 44100))
        assert "1000 samples at 44100 Hz are too short, they make 363 at 16000 Hz" in message

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
    def test_not_finite(self, value: float) -> None:
        samples = tone()
        samples[777] = value
        for source in (encode(samples), (samples, 16000), (samples, 44100)):
            assert "has samples that are NaN, infinite or huge" in self.refusal(source)
        assert "infinite" in self.refusal((np.full(500, 1e300), 16000))

    def test_duration_limit(self) -> None:
        samples = tone(seconds=1)
        assert load_audio((samples, 16000), max_seconds=1.0).duration_s == 1
        message = self.refusal(encode(samples), max_seconds=0.9)
        assert "longer than the limit of 0.9 s; cut it into shorter clips" in message

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_any_bytes_give_a_clip_or_a_media_error(self, data: st.DataObject) -> None:
        formats = [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("AIFF", "PCM_24"), ("OGG", "VORBIS")]
        format, subtype = data.draw(st.sampled_from(formats))
        file = bytearray(encode(tone(seconds=0.1), format=format, subtype=subtype))
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, min(100, len(file) - 1)))
            file[at] = data.draw(st.integers(0, 255))
        del file[data.draw(st.integers(1, len(file))) :]
        found = clip_or_message(bytes(file))
        if isinstance(found, str):
            assert found.isprintable()
        else:
            assert found.rate in (8000, 16000)
            assert np.isfinite(found.samples).all()


def clip_or_message(data: bytes) -> Clip | str:
    try:
        return load_audio(data)
    except MediaError as error:
        return str(error)
