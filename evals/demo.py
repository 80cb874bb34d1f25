"""Makes the demo's pictures, clips and right answers: python -m evals.demo [DIR].

They are held out as the sets are, come from seeds of their own, and were not chosen by how well a
model answers them.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
import soundfile
from training.geometry import RATE
from training.question_data import Question, reading
from training.speech_synthesis import PAUSED, Order, Wave, draw_voice, say, spoken_form
from training.vocabulary import prompt

from .ability import Line
from .picture_items import draw_question
from .speech_items import EDGE, phrase_order
from .text_items import tools

MEDIA = Path(__file__).parents[1] / "src" / "phi4mm" / "sample" / "media"
N_LINES = 3  # of the printed picture
N_WORDS = 4  # of the clip, at least


def printed_text(folder: Path) -> Line:
    """A receipt to read."""
    rng = random.Random("demo picture")
    while True:
        question = reading(rng, "test", (336, 168))
        lines = question.picture.text.split("\n")
        if len(lines) == N_LINES and all("." in line for line in lines):
            break
    question.picture.image.save(folder / "picture.png", optimize=True)
    return {
        "id": "printed text",
        "image": "picture.png",
        "question": prompt("picture"),
        "answers": [question.picture.text],
        "metric": "verbatim",
    }


def speech(folder: Path) -> Line:
    """A phrase to write down."""
    rng = random.Random("demo clip")
    order = phrase_order(rng)
    while len(order.text.split()) < N_WORDS:
        order = phrase_order(rng)
    _save(folder / "clip.flac", say([order])[0])
    return {
        "id": "speech",
        "audio": "clip.flac",
        "question": prompt("clip"),
        "answers": [order.text],
        "metric": "exact",
    }


def spoken_question(folder: Path) -> Line:
    """A picture of shapes, and a clip that asks about it."""
    rng = random.Random("demo question")
    question = draw_question(rng, "colour")
    question.picture.image.save(folder / "shapes.png", optimize=True)
    _save(folder / "question.flac", say([_asked(rng, question)])[0])
    return {
        "id": f"spoken question: {spoken_form(question.text)}",
        "image": "shapes.png",
        "audio": "question.flac",
        "answers": [question.answer],
        "metric": "exact",
    }


def tool_request() -> Line:
    """A request for one of several tools, with two arguments."""
    lines = tools(random.Random("demo request"), 50)
    several = (line for line in lines if len(json.loads(line["tools"])) > 1)
    chosen = next(line for line in several if "find_hotel" in line["answers"][0])
    return {**chosen, "id": "tool request"}


def _asked(rng: random.Random, question: Question) -> Order:
    voice, speed = draw_voice(rng, "test")
    return Order(spoken_form(question.text), voice, speed, rng.random() < PAUSED)


def _save(path: Path, wave: Wave) -> None:
    soundfile.write(path, np.pad(wave, EDGE), RATE, subtype="PCM_16")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?", default=MEDIA)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    lines = [printed_text(folder), speech(folder), spoken_question(folder), tool_request()]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "demo.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
