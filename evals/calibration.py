"""Makes what quantising the sample needs: python -m evals.calibration DIR [--n 60] [--jobs 2].

DIR gets conversations of everything the sample was taught, with their pictures, clips and answers:
``calibration.jsonl`` from the training split, for ``phi4mm imatrix --conversations``, and
``measured.jsonl`` from the held-out split, for ``phi4mm compare --conversations``, so that no type
is measured on what it was made with.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import soundfile
from training import text_data
from training.geometry import RATE
from training.question_data import Question, draw_size, question
from training.speech_synthesis import PAUSED, Order, Wave, draw_voice, spoken_form, transcript
from training.vocabulary import Split, prompt

from .ability import Line
from .speech_items import EDGE, synthesise
from .speech_items import Pool as PoolMap

MANIFESTS: dict[Split, str] = {"train": "calibration.jsonl", "test": "measured.jsonl"}


def texts(split: Split, n: int) -> Iterator[Line]:
    """Conversations without media, n of each kind."""
    for kind in text_data.PLAIN:
        rng = random.Random(f"{split} {kind} to quantise with")
        for _ in range(n):
            asked, answer = text_data.PLAIN[kind](rng, split)
            yield {"prompt": asked, "answer": answer}
    rng = random.Random(f"{split} tools to quantise with")
    for _ in range(n):
        system, asked, answer = text_data.tools(rng, split)
        line = {"tools": system.tools, "prompt": asked, "answer": answer}
        yield {"system": system.text, **line} if system.text else line


def typed(folder: Path, split: Split, number: int) -> Line:
    """A picture and a typed question."""
    name = f"{split}-typed-{number:03d}"
    asked = _question(name, split)
    return {**_picture(folder, name, asked), "prompt": asked.text}


def heard(folder: Path, split: Split, n: int, pool: PoolMap, jobs: int) -> Iterator[Line]:
    """Clips to write down, and pictures with a spoken question."""
    clips = [f"{split}-speech-{number:03d}" for number in range(n)]
    asked = {name: _question(name, split) for name in (f"{split}-spoken-{k:03d}" for k in range(n))}
    orders = [_order(name, split) for name in clips]
    orders += [_order(name, split, one.text) for name, one in asked.items()]
    waves = iter(synthesise(orders, pool, 4 * jobs))
    for name, order in zip(clips, orders, strict=False):
        audio = _sound(folder, name, next(waves))
        yield {"audio": audio, "prompt": prompt("clip"), "answer": order.text}
    for name, one in asked.items():
        yield {"audio": _sound(folder, name, next(waves)), **_picture(folder, name, one)}


def make(folder: Path, n: int, jobs: int) -> None:
    """Write both manifests and the media."""
    folder.mkdir(parents=True, exist_ok=True)
    with Pool(jobs) as pool:
        for split, name in MANIFESTS.items():
            lines = [*texts(split, n)]
            lines += pool.map(partial(typed, folder, split), range(n), chunksize=8)
            lines += heard(folder, split, n, pool.map, jobs)
            rows = (json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / name).write_text("".join(rows), encoding="utf-8")


def _question(name: str, split: Split) -> Question:
    rng = random.Random(f"{name} to quantise with")
    return question(rng, split, draw_size(rng))


def _order(name: str, split: Split, asked: str | None = None) -> Order:
    """A phrase, or a question that is spoken."""
    rng = random.Random(f"{name} to say")
    voice, speed = draw_voice(rng, split)
    text = transcript(rng, split, "phrase") if asked is None else spoken_form(asked)
    return Order(text, voice, speed, rng.random() < PAUSED)


def _picture(folder: Path, name: str, asked: Question) -> Line:
    asked.picture.image.save(folder / f"{name}.png", optimize=True)
    return {"image": f"{name}.png", "answer": asked.answer}


def _sound(folder: Path, name: str, wave: Wave) -> str:
    path = folder / f"{name}.flac"
    soundfile.write(path, np.clip(np.pad(wave, EDGE), -1, 1), RATE, subtype="PCM_16")
    return path.name


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.add_argument("--n", type=int, default=60, help="conversations of a kind (default: 60)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    arguments = parser.parse_args()
    make(arguments.folder, arguments.n, arguments.jobs)


if __name__ == "__main__":
    main()
