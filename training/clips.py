"""Clips with what is said in them and when: from the cache, joined, labelled frame by frame.

The span of every unit (word or digit) is exact for single items and for items joined here, and
laid out in proportion to the letters for phrases that a synthesiser spoke at once.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .geometry import RATE
from .speech_synthesis import Kind, Wave, shard_path, spoken_form, unit_words, units
from .vocabulary import Split, vocabulary

UNITS = {word: index + 1 for index, word in enumerate(unit_words())}
SAMPLES_PER_TOKEN = 8 * 160
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


def joined_text(texts: list[str]) -> str:
    """Transcripts one after the other; digits that meet are one number, as they sound."""
    return re.sub(r"(?<=\d) (?=\d)", "", " ".join(texts))


def joined(parts: list[Utterance], gaps: list[int]) -> Utterance:
    """Utterances one after the other, each followed by a gap in samples."""
    waves, spans, texts, position = [], [], [], 0
    for part, gap in zip(parts, gaps, strict=True):
        spans += [Span(s.unit, s.start + position, s.end + position) for s in part.spans]
        waves += [part.wave, np.zeros(gap, np.float32)]
        position += len(part.wave) + gap
        texts.append(part.text)
    return Utterance(np.concatenate(waves), joined_text(texts), spans, parts[0].voice)


def join_items(clips: Clips, rng: random.Random, n: int) -> Utterance:
    """n single items of one voice with short gaps: exact spans for any sequence of words."""
    voice = clips.voices[rng.randrange(len(clips))]
    parts = [clips.get(rng.choice(clips.by_voice[voice])) for _ in range(n)]
    return joined(parts, [rng.randint(0, 2400) for _ in parts])


def frame_units(spans: list[Span], n_tokens: int) -> NDArray[np.int64]:
    """The unit said at the middle of each token's 80 ms; 0 between units."""
    centres = (np.arange(n_tokens) + 0.5) * SAMPLES_PER_TOKEN + 120
    labels = np.zeros(n_tokens, np.int64)
    for span in spans:
        labels[(centres >= span.start) & (centres < span.end)] = span.unit
    return labels


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
