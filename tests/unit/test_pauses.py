"""Long recordings to pieces: where they are cut, what is left out, and that memory stays flat."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr

from phi4mm.cli.options import sample_bundle
from phi4mm.errors import InputError
from phi4mm.media.audio import AudioStream, open_audio
from phi4mm.media.params import FrameParams, MelParams
from phi4mm.transcribe.level import LevelMeter
from phi4mm.transcribe.piece import Piece, PieceParams, cut_pieces, split_piece

Samples = npt.NDArray[np.float32]
RATE = 16000
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


def voice(seconds: float, seed: int = 0, rate: int = RATE, level: float = 0.3) -> Samples:
    """Something like speech: harmonics of a gliding pitch, in syllables that swell and fade."""
    t = np.arange(round(rate * seconds)) / rate
    random = np.random.default_rng(seed)
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * t + seed)) / rate
    tone = sum(np.sin(k * phase) / k for k in range(1, 20))
    syllable = 0.25 + 0.75 * np.abs(np.sin(np.pi * 4 * t))  # 4 in a second
    breath = 0.02 * random.standard_normal(len(t))
    return (level * 0.4 * syllable * (tone + breath)).astype(np.float32)


def noise(seconds: float, db: float, seed: int = 0, rate: int = RATE) -> Samples:
    random = np.random.default_rng(seed)
    return (10 ** (db / 20) * random.standard_normal(round(rate * seconds))).astype(np.float32)


def silence(seconds: float, rate: int = RATE) -> Samples:
    return np.zeros(round(rate * seconds), np.float32)


def pieces(samples: Samples, rate: int = RATE, params: PieceParams | None = None) -> list[Piece]:
    with open_audio((samples, rate), PARAMS) as audio:
        return list(cut_pieces(audio, params))


def spans(found: list[Piece]) -> list[tuple[float, float]]:
    return [(piece.start_s, piece.end_s) for piece in found]


class Talk:
    """Clips with pauses of silence or noise between them, and where the pauses are."""

    def __init__(
        self, minutes: float, seed: int, rate: int = RATE, levels_db: tuple[float, float] = (-6, 3)
    ) -> None:
        random = np.random.default_rng(seed)
        parts, self.pauses, at = [silence(0.5)], [(0.0, 0.5)], 0.5
        while at < 60 * minutes:
            length, pause = random.uniform(0.5, 9), random.uniform(0.2, 3)
            level = 10 ** (random.uniform(*levels_db) / 20)
            parts.append(voice(length, seed=len(parts), level=0.3 * level))
            kind = len(parts) % 3
            parts.append(silence(pause) if kind == 0 else noise(pause, -45 - 5 * kind))
            at = sum(map(len, parts)) / RATE
            self.pauses.append((at - pause, at))
        self.samples = np.concatenate(parts)
        if rate != RATE:
            self.samples = soxr.resample(self.samples, RATE, rate)

    def distance(self, second: float) -> float:
        """From a moment to the nearest pause."""
        return min(max(start - second, second - end, 0) for start, end in self.pauses)

    def missing(self, found: list[Piece]) -> float:
        """Seconds of clips that no piece's sound has."""
        heard = [(p.start_s, p.end_s) for p in found]
        clips = [(a[1], b[0]) for a, b in pairwise(self.pauses)]
        return sum(
            end - start - sum(max(0, min(end, e) - max(start, s)) for s, e in heard)
            for start, end in clips
        )


@pytest.mark.parametrize(
    ("rate", "channels"), [(8000, 1), (11025, 2), (16000, 1), (22050, 1), (44100, 2), (48000, 1)]
)
def test_edges_lie_at_pauses_at_every_rate(rate: int, channels: int) -> None:
    talk = Talk(1.0, seed=rate, rate=rate)
    samples = talk.samples if channels == 1 else np.stack([talk.samples] * channels, axis=1)
    found = pieces(samples, rate)
    assert len(found) > 4
    assert all(a.end_s <= b.start_s for a, b in pairwise(found))
    assert max(talk.distance(at) for span in spans(found) for at in span) < 0.3
    assert max(end - start for start, end in spans(found)) <= 30
    assert talk.missing(found) < 0.3
    assert not any(piece.is_cut_short for piece in found)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize(("db", "quietest"), [(-40, -6), (-30, -6), (-20, 0)])
def test_edges_lie_at_pauses_over_white_noise(db: float, quietest: float, rate: int) -> None:
    """Between -40 and -20 dB; a clip has -22 dB, and less by up to 6 over the fainter noises."""
    talk = Talk(0.5, seed=rate, rate=rate, levels_db=(quietest, 3))
    n = len(talk.samples)
    found = pieces(talk.samples + noise(n / rate + 1, db, rate=rate)[:n], rate)
    assert max(talk.distance(at) for span in spans(found) for at in span) < 0.3
    assert talk.missing(found) < 0.3
    assert not any(piece.is_cut_short for piece in found)


@pytest.mark.parametrize("db", [-40, -30, -20])
def test_a_persons_voice_over_noise(db: float) -> None:
    samples, rate = soundfile.read(sample_bundle() / "media" / "clip.flac", dtype="float32")
    talk = np.concatenate([silence(2), samples, silence(1), samples, silence(2)])
    clean, noisy = spans(pieces(talk, rate)), spans(pieces(talk + noise(60, db)[: len(talk)], rate))
    assert noisy == [pytest.approx(span, abs=0.15) for span in clean]


def coloured(seconds: float, db: float, slope: float, seed: int = 0) -> Samples:
    """Noise that falls by 3 ``slope`` dB in each octave."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(round(RATE * seconds)))
    wave = np.fft.irfft(spectrum * np.maximum(np.arange(len(spectrum)), 20) ** (-slope / 2))
    return (wave * 10 ** (db / 20) / wave.std()).astype(np.float32)


@pytest.mark.parametrize("slope", [1, 2])
def test_noise_of_any_colour(slope: float) -> None:
    assert pieces(coloured(20, -20, slope)) == []
    talk = np.concatenate([silence(3), voice(4), silence(2), voice(5, 1), silence(3)])
    found = spans(pieces(talk + coloured(17, -35, slope)))
    assert found == [pytest.approx(span, abs=0.3) for span in ((3, 7), (9, 14))]


def test_noise_that_comes_and_goes() -> None:
    """A clip after loud noise that has stopped is heard, and noise that begins is no speech."""
    parts = [noise(4, -22), voice(3), silence(1), noise(3, -30), silence(1), voice(2, 1)]
    found = spans(pieces(np.concatenate(parts)))
    assert found[0] == pytest.approx((4, 7), abs=0.3)
    assert found[-1] == pytest.approx((12, 14), abs=0.3)
    assert len(found) == 2


@pytest.mark.parametrize("rate", [8000, 11025, 44100])
def test_noise_is_no_speech_at_any_rate(rate: int) -> None:
    for seed in range(3):
        assert pieces(noise(20, -20, seed, rate), rate) == []


def test_the_ear_gets_more_than_the_time_stamps_say() -> None:
    (piece,) = pieces(np.concatenate([silence(2), voice(3), silence(2)]))
    assert piece.start_s == pytest.approx(2, abs=0.15)
    assert piece.end_s == pytest.approx(5, abs=0.15)
    assert 3.4 < len(piece.samples) / piece.rate < 3.8


def test_neighbours_do_not_share_sound() -> None:
    parts = [voice(6), silence(0.8), voice(6, 1), silence(0.5)]
    found = pieces(np.concatenate(parts), params=PieceParams(long_pause_s=0.5))
    assert len(found) == 2
    assert sum(len(piece.samples) for piece in found) <= 13.3 * RATE


def test_the_longer_a_piece_the_shorter_the_pause_that_ends_it() -> None:
    parts = [part for n in range(8) for part in (voice(4, n), silence(0.5))]
    found = pieces(np.concatenate(parts))
    lengths = [end - start for start, end in spans(found)]
    assert all(12 < length < 20 for length in lengths[:-1])


def test_a_long_pause_always_ends_a_piece() -> None:
    parts = [voice(1), silence(1.5), voice(1, 1), silence(1.5), voice(1, 2)]
    assert len(pieces(np.concatenate(parts))) == 3


def test_without_any_pause_it_is_cut_in_a_quiet_place_and_overlaps() -> None:
    samples = voice(70)
    found = pieces(samples)
    assert [piece.is_cut_short for piece in found] == [True] * (len(found) - 1) + [False]
    assert all(len(piece.samples) < 40 * RATE for piece in found)
    for left, right in pairwise(found):
        assert left.end_s == right.start_s
        assert np.array_equal(left.samples[-RATE:], right.samples[:RATE])
        around = np.abs(samples[int((left.end_s - 0.05) * RATE) :][: RATE // 10]).mean()
        assert around < 0.7 * np.abs(samples).mean()


@pytest.mark.parametrize("db", [-60, -40, -20])
def test_noise_alone_is_no_speech(db: float) -> None:
    assert pieces(noise(10, db)) == []


def test_silence_alone_is_no_speech() -> None:
    assert pieces(silence(10)) == []
    assert pieces(silence(0.02)) == []


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.5])
def test_a_short_word_without_any_background_is_speech(seconds: float) -> None:
    (piece,) = pieces(voice(seconds))
    assert len(piece.samples) / piece.rate == pytest.approx(seconds, abs=0.02)


@pytest.mark.parametrize("db", [-60, -45, -35])
def test_speech_over_noise_is_found(db: float) -> None:
    parts = [silence(3), voice(4), silence(2), voice(5, 1), silence(3)]
    samples = np.concatenate(parts)
    samples += noise(len(samples) / RATE, db)
    found = spans(pieces(samples))
    assert len(found) == 2
    for (start, end), (true_start, true_end) in zip(found, [(3, 7), (9, 14)], strict=True):
        assert start == pytest.approx(true_start, abs=0.3)
        assert end == pytest.approx(true_end, abs=0.3)


def test_long_silence_before_and_between_is_left_out() -> None:
    parts = [silence(100), voice(3), noise(90, -50), voice(2, 1), silence(50)]
    found = spans(pieces(np.concatenate(parts)))
    assert len(found) == 2
    assert found[0] == pytest.approx((100, 103), abs=0.2)
    assert found[1] == pytest.approx((193, 195), abs=0.2)


def test_blocks_do_not_show() -> None:
    samples = Talk(1.0, seed=7).samples

    def blocks(size: int) -> Iterator[Samples]:
        return (samples[at : at + size] for at in range(0, len(samples), size))

    whole = list(cut_pieces(AudioStream("a", RATE, None, blocks(len(samples)))))
    cut = list(cut_pieces(AudioStream("a", RATE, None, blocks(12345))))
    assert spans(whole) == spans(cut)
    for a, b in zip(whole, cut, strict=True):
        assert np.array_equal(a.samples, b.samples)


def test_memory_stays_flat() -> None:
    minute = Talk(1.0, seed=3).samples

    def blocks(minutes: int) -> Iterator[Samples]:
        return (part for _ in range(minutes) for part in np.array_split(minute, 6))

    def peak(minutes: int) -> int:
        tracemalloc.start()
        for _ in cut_pieces(AudioStream("a", RATE, None, blocks(minutes))):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(6) < 1.1 * peak(2)


def test_a_piece_is_halved_where_it_is_quiet() -> None:
    (piece,) = pieces(np.concatenate([voice(5), silence(0.3), voice(5, 1)]))
    left, right = split_piece(piece)
    assert left.is_cut_short
    assert left.end_s == right.start_s == pytest.approx(5.15, abs=0.2)
    assert np.array_equal(left.samples[-RATE:], right.samples[:RATE])


def test_levels_are_decibels_of_power() -> None:
    meter = LevelMeter(RATE)
    t = np.arange(RATE) / RATE
    levels = meter.feed(np.sin(2 * np.pi * 1000 * t).astype(np.float32)) + meter.flush()
    assert len(levels) == 100
    assert levels.level[5:-5] == pytest.approx(-3, abs=0.1)
    assert LevelMeter(RATE).feed(noise(1, -20)).flatness.mean() == pytest.approx(0.65, abs=0.03)


@pytest.mark.parametrize("params", [{"max_s": 1}, {"max_s": 60}, {"long_pause_s": 0.1}])
def test_settings_out_of_range(params: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"must be"):
        PieceParams(**params)
