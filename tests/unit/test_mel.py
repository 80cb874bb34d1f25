"""Log-mel features and their counts against the references' answers in goldens/media.npz."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from phi4mm.errors import MediaError, ModelFileError
from phi4mm.media import mel
from phi4mm.media.mel import log_mel, mel_bank, n_audio_tokens, n_frames
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
GOLDENS = np.load(Path(__file__).parents[1] / "goldens" / "media.npz")
RATES = (16000, 8000)


def clip(rate: int) -> npt.NDArray[np.float32]:
    samples: npt.NDArray[np.float32] = GOLDENS[f"clip.{rate}"] / np.float32(32768)
    return samples


def error(rate: int, params: MelParams = PUBLISHED) -> float:
    found = log_mel(clip(rate), rate, params)
    assert found.shape == GOLDENS[f"mel.{rate}"].shape
    assert found.dtype == np.float32
    return float(abs(found - GOLDENS[f"mel.{rate}"]).max())


class TestFeatures:
    @pytest.mark.parametrize("rate", RATES)
    def test_against_the_reference(self, rate: int) -> None:
        assert error(rate) <= 1e-4

    def test_against_transformers(self) -> None:
        # Its bank has one bin more, which only the last mel bin sees.
        gap = abs(log_mel(clip(16000), 16000, PUBLISHED) - GOLDENS["mel.transformers"])
        assert gap[:, :79].max() <= 1e-4
        assert 1e-3 < gap[:, 79].max() < 0.03

    def test_silence_is_exactly_zero(self) -> None:
        for rate in RATES:
            assert not log_mel(np.zeros(4000, np.float32), rate, PUBLISHED).any()

    def test_upper_mels_of_narrow_clips_are_zero(self) -> None:
        features = log_mel(clip(8000), 8000, PUBLISHED)
        assert not features[:, -18:].any()
        assert features[:, -19].any()

    def test_a_tone_lies_in_its_mel_bin(self) -> None:
        spacing = 1127 * math.log(1 + 7690 / 700) / 81
        for rate in RATES:
            for hz in (300, 1000, 3000):
                wave = 0.5 * np.sin(2 * np.pi * hz * np.arange(rate) / rate)
                features = log_mel(wave.astype(np.float32), rate, PUBLISHED)
                loudest = features.mean(axis=0).argmax()
                assert abs(loudest + 1 - 1127 * math.log(1 + hz / 700) / spacing) < 1

    def test_blocks_do_not_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = log_mel(clip(16000), 16000, PUBLISHED)
        monkeypatch.setattr(mel, "_BLOCK_FRAMES", 7)
        assert log_mel(clip(16000), 16000, PUBLISHED) == pytest.approx(whole, abs=1e-5)

    def test_samples_are_left_alone(self) -> None:
        samples = clip(16000)
        samples.setflags(write=False)
        log_mel(samples, 16000, PUBLISHED)

    def test_bank(self) -> None:
        bank = mel_bank(PUBLISHED)
        assert bank.shape == (256, 80)
        used = np.flatnonzero(bank.any(axis=1))
        assert (used[0], used[-1]) == (1, 245)
        assert bank.max() <= 1
        # The oracle's last triangle, by hand: bin 245 at 7656.25 Hz, its peak at m(7690) * 80 / 81.
        top = 1127 * math.log(1 + 7690 / 700)
        m = 1127 * math.log(1 + 7656.25 / 700)
        assert bank[245, 79] == pytest.approx(1 - (m - top * 80 / 81) / (top / 81), abs=1e-6)


class TestControls:
    """Mistakes that the tolerance must show."""

    def test_periodic_window(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hamming = np.hamming
        monkeypatch.setattr(mel.np, "hamming", lambda n: hamming(n + 1)[:-1])
        assert error(16000) > 1e-2

    @pytest.mark.parametrize(
        "change",
        [
            {"preemphasis": 0.95},
            {"scale": 32767.0 * 0.99},
            {"top_hz": 7725.0},
            {"floor": 2.0},
        ],
    )
    def test_other_settings(self, change: dict[str, float]) -> None:
        assert error(16000, replace(PUBLISHED, **change)) > 1e-3

    def test_emphasis_across_frames(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def from_zero(frames: npt.NDArray[np.float32], params: MelParams) -> object:
            previous = np.concatenate([np.zeros_like(frames[:, :1]), frames[:, :-1]], axis=1)
            return (frames - np.float32(0.97) * previous) * np.float32(32768)

        monkeypatch.setattr(mel, "_emphasise", from_zero)
        assert error(16000) > 1e-2

    def test_nyquist_bin_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def with_nyquist(
            emphasised: npt.NDArray[np.float32], frames: FrameParams
        ) -> npt.NDArray[np.float32]:
            spectrum = np.fft.rfft(emphasised * np.hamming(frames.window), n=frames.n_fft)
            return (abs(spectrum) ** 2).astype(np.float32)

        monkeypatch.setattr(mel, "_power", with_nyquist)
        assert error(8000) > 1e-2


class TestCounts:
    @pytest.mark.parametrize(
        ("n_samples", "rate", "frames", "tokens"),
        [
            (0, 16000, 0, 0),
            (399, 16000, 0, 0),
            (400, 16000, 1, 1),
            (559, 16000, 1, 1),
            (560, 16000, 2, 1),
            (400 + 7 * 160, 16000, 8, 1),
            (400 + 8 * 160, 16000, 9, 2),
            (48077, 16000, 298, 38),
            (199, 8000, 0, 0),
            (200, 8000, 1, 1),
            (16000, 8000, 198, 25),
        ],
    )
    def test_frames_and_tokens(self, n_samples: int, rate: int, frames: int, tokens: int) -> None:
        assert n_frames(n_samples, rate, PUBLISHED) == frames
        assert n_audio_tokens(frames, PUBLISHED) == tokens
        if frames:
            features = log_mel(np.zeros(n_samples, np.float32), rate, PUBLISHED)
            assert features.shape == (frames, 80)

    def test_too_short(self) -> None:
        with pytest.raises(MediaError, match="399 samples at 16000 Hz: a frame needs 400 samples"):
            log_mel(np.zeros(399, np.float32), 16000, PUBLISHED)

    def test_unknown_rate(self) -> None:
        with pytest.raises(ModelFileError, match="44100 Hz: the model takes 8000 or 16000 Hz"):
            log_mel(np.zeros(9999, np.float32), 44100, PUBLISHED)


class TestParams:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"n_mels": 0}, "0 mel bins"),
            ({"top_hz": 9000.0}, r"must end within 0..8000.0 Hz"),
            ({"compression": 0}, "compression 0"),
            ({"narrow": FrameParams(8000, 200, 80, 512)}, "bins equally wide"),
            ({"narrow": FrameParams(16000, 400, 160, 512)}, "the first rate must be lower"),
        ],
    )
    def test_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ModelFileError, match=message):
            replace(PUBLISHED, **change)

    @pytest.mark.parametrize(
        "numbers", [(0, 400, 160, 512), (16000, 513, 160, 512), (16000, 400, 0, 512)]
    )
    def test_frames_refused(self, numbers: tuple[int, int, int, int]) -> None:
        with pytest.raises(ModelFileError, match="Hz"):
            FrameParams(*numbers)
