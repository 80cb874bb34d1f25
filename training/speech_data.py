"""Batches of clips with what is said in them and when: augmented, joined, of equal length.

The span of every unit (word or digit) is exact for single items and for items joined here, and
laid out in proportion to the letters for phrases that a synthesiser spoke at once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import resample_poly
from torch import Tensor

from .frontend import log_mel
from .geometry import RATE
from .speech_synthesis import Kind, Wave, shard_path, spoken_form, unit_words, units
from .vocabulary import Split, vocabulary

HOP = 160
SAMPLES_PER_TOKEN = 8 * HOP
_LEAD, _TAIL = 300, 600  # silence that the synthesis leaves at the ends of a clip


@dataclass(frozen=True)
class Span:
    """A unit and the samples it covers."""

    unit: int
    start: float
    end: float


@dataclass(frozen=True)
class Utterance:
    """A wave, its transcript and its units in time."""

    wave: Wave
    text: str
    spans: list[Span]
    voice: str


@dataclass(frozen=True)
class SpeechBatch:
    """Clips padded to one length, as log-mel frames."""

    mel: Tensor  # [batch, frames, 80]
    texts: list[str]
    units: list[list[int]]
    frame_units: Tensor  # [batch, ceil(frames / 8)], 0: none

    @property
    def n_tokens(self) -> int:
        return self.frame_units.shape[1]


UNITS = {word: index + 1 for index, word in enumerate(unit_words())}


def unit_ids(text: str) -> list[int]:
    """Units of a transcript; 0 stays free for the blank."""
    return [UNITS[unit] for unit in units(text)]


def _proportional_spans(text: str, n_samples: int) -> list[Span]:
    names = vocabulary()["digits"]
    letters = np.array([len(names[int(u)]) if u.isdigit() else len(u) for u in units(text)]) + 1.5
    edges = (
        _LEAD
        + (n_samples - _LEAD - _TAIL) * np.concatenate([[0], np.cumsum(letters)]) / letters.sum()
    )
    return [Span(u, a, b) for u, a, b in zip(unit_ids(text), edges[:-1], edges[1:], strict=True)]


class Clips:
    """The cached shards of one split and kind."""

    def __init__(self, run_dir: Path, split: Split, kind: Kind) -> None:
        self.waves: list[NDArray[np.int16]] = []
        self.texts: list[str] = []
        self.voices: list[str] = []
        number = 0
        while (path := shard_path(run_dir, split, kind, number)).exists():
            with np.load(path) as shard:
                edges = np.cumsum(shard["length"])[:-1]
                self.waves += np.split(shard["wave"], edges)
                self.texts += [str(text) for text in shard["text"]]
                self.voices += [str(voice) for voice in shard["voice"]]
            number += 1
        assert self.waves, f"no {split} {kind} clips below {run_dir}: run the synthesis first"
        self.by_voice: dict[str, list[int]] = defaultdict(list)
        for index, voice in enumerate(self.voices):
            self.by_voice[voice].append(index)

    def __len__(self) -> int:
        return len(self.waves)

    def get(self, index: int) -> Utterance:
        wave = self.waves[index].astype(np.float32) / 32768
        text = self.texts[index]
        return Utterance(wave, text, _proportional_spans(text, len(wave)), self.voices[index])

    def draw(self, rng: random.Random) -> Utterance:
        """Any clip."""
        return self.get(rng.randrange(len(self)))


class SpokenQuestions:
    """Clips of one split that say a question about a picture, found by the question."""

    def __init__(self, run_dir: Path, split: Split) -> None:
        self.clips = Clips(run_dir, split, "question")
        self.by_text: dict[str, list[int]] = defaultdict(list)
        for index, text in enumerate(self.clips.texts):
            self.by_text[text].append(index)

    def can_say(self, question: str) -> bool:
        """Whether there is a clip of the question."""
        return spoken_form(question) in self.by_text

    def say(self, question: str, rng: random.Random) -> Utterance:
        """A clip that says the question, which must be among those that were synthesised."""
        return self.clips.get(rng.choice(self.by_text[spoken_form(question)]))


def joined(parts: list[Utterance], gaps: list[int]) -> Utterance:
    """Utterances one after the other, each followed by a gap in samples."""
    waves, spans, texts, position = [], [], [], 0
    for part, gap in zip(parts, gaps, strict=True):
        spans += [Span(s.unit, s.start + position, s.end + position) for s in part.spans]
        waves += [part.wave, np.zeros(gap, np.float32)]
        position += len(part.wave) + gap
        glued = texts and texts[-1].isdigit() and part.text.isdigit()
        texts[-1:] = [texts[-1] + part.text] if glued else [*texts[-1:], part.text]
    return Utterance(np.concatenate(waves), " ".join(texts), spans, parts[0].voice)


def join_items(clips: Clips, rng: random.Random, n: int) -> Utterance:
    """n single items of one voice with short gaps: exact spans for any sequence of words."""
    voice = clips.voices[rng.randrange(len(clips))]
    parts = [clips.get(rng.choice(clips.by_voice[voice])) for _ in range(n)]
    return joined(parts, [rng.randint(0, 2400) for _ in parts])


def stretched(utterance: Utterance, factor: float) -> Utterance:
    """Played faster (factor above 1): speed, pitch and formants change together."""
    n = int(len(utterance.wave) / factor)
    wave = np.interp(np.arange(n) * factor, np.arange(len(utterance.wave)), utterance.wave)
    spans = [Span(s.unit, s.start / factor, s.end / factor) for s in utterance.spans]
    return Utterance(wave.astype(np.float32), utterance.text, spans, utterance.voice)


def _noise(rng: random.Random, n: int) -> Wave:
    """White, or with more power in the low frequencies."""
    generator = np.random.default_rng(rng.getrandbits(32))
    white = generator.standard_normal(n, np.float32)
    if rng.random() < 0.5:
        return white
    low = np.cumsum(white)
    low -= np.convolve(low, np.ones(200, np.float32) / 200, "same")
    return low / (low.std() + 1e-9)


def disturbed(wave: Wave, rng: random.Random, strength: float) -> Wave:
    """Gain, noise, a muffled or telephone band; strength 0 changes the gain alone."""
    wave = wave * 10 ** rng.uniform(-1.2, 0.05)
    peak = max(float(np.abs(wave).max()), 1e-3)
    if rng.random() < 0.15 * strength:
        wave = np.convolve(wave, np.ones(4, np.float32) / 4, "same")
    elif rng.random() < 0.15 * strength:
        wave = resample_poly(resample_poly(wave, 1, 2), 2, 1)[: len(wave)].astype(np.float32)
    if rng.random() < 0.7 * strength:
        wave = wave + _noise(rng, len(wave)) * (peak * 10 ** rng.uniform(-2.6, -1.1))
    return np.clip(wave, -1, 1)


def frame_units(spans: list[Span], n_tokens: int) -> NDArray[np.int64]:
    """The unit said at the middle of each token's 80 ms; 0 between units."""
    centres = (np.arange(n_tokens) + 0.5) * SAMPLES_PER_TOKEN + 120
    labels = np.zeros(n_tokens, np.int64)
    for span in spans:
        labels[(centres >= span.start) & (centres < span.end)] = span.unit
    return labels


def masked(mel: Tensor, rng: random.Random) -> Tensor:
    """Two bands of mels replaced by the mean."""
    mel = mel.clone()
    for _ in range(2):
        width = rng.randint(0, 10)
        start = rng.randint(0, mel.shape[-1] - width)
        mel[..., start : start + width] = mel.mean()
    return mel


def make_batch(utterances: list[Utterance], rng: random.Random, strength: float) -> SpeechBatch:
    """Lay clips into one length with silence before and after, disturb them, take the mels.

    strength: how much augmentation, 0 (none, for evaluation) to 1.
    """
    if strength:
        factors = [rng.uniform(0.86, 1.16) if rng.random() < 0.7 else 1.0 for _ in utterances]
        utterances = [stretched(u, f) for u, f in zip(utterances, factors, strict=True)]
    leads = [rng.randint(0, 5000) if strength else 1600 for _ in utterances]
    ends = [lead + len(u.wave) for lead, u in zip(leads, utterances, strict=True)]
    total = max(max(ends) + (rng.randint(300, 4000) if strength else 1600), 4000)
    waves = np.zeros((len(utterances), total), np.float32)
    for row, (lead, end, utterance) in enumerate(zip(leads, ends, utterances, strict=True)):
        waves[row, lead:end] = utterance.wave
        if strength:
            waves[row] = disturbed(waves[row], rng, strength)
    mel = log_mel(torch.from_numpy(waves))
    if rng.random() < 0.5 * strength:
        mel = masked(mel, rng)
    n_tokens = -(-mel.shape[1] // 8)
    labels = [
        frame_units([Span(s.unit, s.start + lead, s.end + lead) for s in u.spans], n_tokens)
        for u, lead in zip(utterances, leads, strict=True)
    ]
    texts = [u.text for u in utterances]
    return SpeechBatch(mel, texts, [unit_ids(t) for t in texts], torch.from_numpy(np.stack(labels)))


def silence(rng: random.Random) -> Utterance:
    """One to four seconds in which nothing is said."""
    return Utterance(np.zeros(rng.randint(RATE, 4 * RATE), np.float32), "", [], "none")


def grouped(utterances: list[Utterance], rng: random.Random, budget: int) -> list[list[Utterance]]:
    """Batches of similar length within a budget of padded tokens."""
    batches: list[list[Utterance]] = []
    for utterance in sorted(utterances, key=lambda u: len(u.wave)):
        tokens = len(utterance.wave) / SAMPLES_PER_TOKEN + 6
        if not batches or tokens * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(utterance)
    rng.shuffle(batches)
    return batches
