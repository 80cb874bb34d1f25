"""Clips of held-out voices: phrases, spoken questions about pictures, long recordings, silence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import soundfile
from training.clips import Utterance, joined
from training.disturbance import disturbed, noise
from training.geometry import RATE
from training.speech_synthesis import (
    PAUSED,
    Order,
    Wave,
    draw_voice,
    say,
    spoken_form,
    transcript,
)
from training.vocabulary import prompt

from .ability import Line
from .picture_items import draw_question, picture_line

SPOKEN_FORMS = ("colour", "read", "count", "price", "shape", "count_all")
LONG_S = (20, 38)
EDGE = 1600  # samples of silence before and after
Pool = Callable[[Callable[[Sequence[Order]], list[Wave]], list[list[Order]]], list[list[Wave]]]
"""Maps a function over lists, perhaps several at a time."""


def synthesise(orders: Sequence[Order], pool: Pool, n_parts: int) -> list[Wave]:
    """The waves of orders of any voices, in their order; each synthesiser works in n_parts."""
    engines = sorted({order.voice.split(":")[0] for order in orders})
    groups = [
        [n for n, order in enumerate(orders) if order.voice.startswith(engine)][part::n_parts]
        for engine in engines
        for part in range(n_parts)
    ]
    groups = [group for group in groups if group]
    waves = pool(say, [[orders[n] for n in group] for group in groups])
    by_number = dict(zip(chain(*groups), chain(*waves), strict=True))
    return [by_number[n] for n in range(len(orders))]


def phrase_order(rng: random.Random) -> Order:
    """A phrase that training did not hear, in a voice and at a speed that it did not hear."""
    voice, speed = draw_voice(rng, "test")
    return Order(transcript(rng, "test", "phrase"), voice, speed, rng.random() < PAUSED)


def phrases(name: str, n: int) -> list[Order]:
    """The phrases of one set."""
    return [phrase_order(random.Random(f"{name}-{number:03d}")) for number in range(n)]


def clip_lines(
    folder: Path, name: str, orders: Sequence[Order], waves: Sequence[Wave]
) -> list[Line]:
    """Save clips as they were spoken, or as the set's name says."""
    lines = []
    for number, (order, wave) in enumerate(zip(orders, waves, strict=True)):
        item_id, rate = f"{name}-{number:03d}", RATE
        wave = np.pad(wave, EDGE)
        if name == "speech_disturbed":
            wave = disturbed(wave, random.Random(f"{item_id} noise"), 1.0)
        elif name == "speech_8khz":
            wave, rate = _at_half_rate(wave), RATE // 2
        lines.append({**_sound(folder, item_id, wave, rate), "text": order.text})
    return lines


def spoken_questions(folder: Path, n: int) -> tuple[list[Line], list[Order]]:
    """Pictures, and what is to be asked about each; the forms take turns."""
    lines, orders = [], []
    for number in range(n):
        item_id = f"spoken-{number:03d}"
        rng = random.Random(item_id)
        question = draw_question(rng, SPOKEN_FORMS[number % len(SPOKEN_FORMS)])
        lines.append(picture_line(folder, item_id, question))
        voice, speed = draw_voice(rng, "test")
        orders.append(Order(spoken_form(question.text), voice, speed, rng.random() < PAUSED))
    return lines, orders


def with_sound(folder: Path, lines: Sequence[Line], waves: Sequence[Wave]) -> list[Line]:
    """Give each picture the clip that asks about it."""
    return [
        {**_sound(folder, line["id"], np.pad(wave, EDGE), RATE), **line}
        for line, wave in zip(lines, waves, strict=True)
    ]


def long_orders(n: int) -> list[list[Order]]:
    """For each long recording more phrases of one voice than it has room for."""
    recordings = []
    for number in range(n):
        rng = random.Random(f"speech_long-{number:03d}")
        first = phrase_order(rng)
        texts = [first.text, *(transcript(rng, "test", "phrase") for _ in range(15))]
        recordings.append([Order(text, first.voice, first.speed, False) for text in texts])
    return recordings


def long_lines(
    folder: Path, recordings: Sequence[Sequence[Order]], waves: Sequence[Wave]
) -> list[Line]:
    """Save recordings of several phrases with pauses between them."""
    lines, rest = [], iter(waves)
    for number, orders in enumerate(recordings):
        item_id = f"speech_long-{number:03d}"
        rng = random.Random(f"{item_id} pauses")
        room, parts, gaps = rng.uniform(*LONG_S) * RATE, [], []
        for order, wave in [(order, next(rest)) for order in orders]:
            gap = rng.randint(RATE // 4, 3 * RATE // 2)
            if len(wave) + gap > room:
                break
            room -= len(wave) + gap
            parts.append(Utterance(wave, order.text, [], order.voice))
            gaps.append(gap)
        whole = joined(parts, gaps)
        line = _sound(folder, item_id, np.pad(whole.wave, (EDGE, 0)), RATE)
        lines.append({**line, "text": whole.text})
    return lines


def silence_item(folder: Path, number: int) -> Line:
    """One to ten seconds without a word: nothing at all, or noise."""
    item_id = f"silence-{number:03d}"
    rng = random.Random(item_id)
    n = rng.randint(RATE, 10 * RATE)
    wave = np.zeros(n, np.float32) if number % 2 else noise(rng, n) * 10 ** rng.uniform(-3, -1.5)
    line = _sound(folder, item_id, wave, RATE)
    return {**line, "question": prompt("clip"), "answers": [""], "metric": "verbatim"}


def _at_half_rate(wave: Wave) -> Wave:
    """Every other sample, after what they cannot carry was taken out."""
    n = len(wave) // 2
    return np.fft.irfft(np.fft.rfft(wave[: 2 * n])[: n // 2 + 1], n).astype(np.float32) / 2


def _sound(folder: Path, item_id: str, wave: Wave, rate: int) -> Line:
    """Save a wave; the item without its words."""
    name = f"{item_id}.flac"
    soundfile.write(folder / name, np.clip(wave, -1, 1), rate, subtype="PCM_16")
    return {"id": item_id, "audio": name}
