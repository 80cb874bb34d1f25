"""Scores of every ability: python -m training.evaluate --run-dir DIR [--split test] [--n 300].

The development split steers training; the test split is for reporting. These figures come
from torch; the product measures its own through its bundles.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from . import text_data
from .clips import Clips, SpokenQuestions, grouped
from .metrics import edit_distance, spoken_words
from .picture_batch import PictureBatch, anything, draw_batch
from .prompting import Conversation
from .speech_data import make_batch
from .tokenizer import Tokenizer
from .vocabulary import Split, prompt

PATCHES_PER_BATCH = 4000
TOKENS_PER_BATCH = 1000
N_SHOWN = 5


class Tally:
    """Right and wrong answers by kind, and a few of the wrong ones."""

    def __init__(self) -> None:
        self.right: dict[str, list[bool]] = defaultdict(list)
        self.wrong: dict[str, list[tuple[str, str, str]]] = defaultdict(list)

    def add(self, kind: str, asked: str, expected: str, said: str) -> None:
        self.right[kind].append(said == expected)
        if said != expected and len(self.wrong[kind]) < N_SHOWN:
            self.wrong[kind].append((asked, expected, said))

    def figures(self) -> dict[str, Any]:
        shares = {kind: round(sum(r) / len(r), 4) for kind, r in self.right.items()}
        return {**shares, "wrong": [w[:2] for w in self.wrong.values()]}


@torch.no_grad()
def evaluate_text(talk: Conversation, n: int, split: Split) -> dict[str, Any]:
    """Exact answers per kind of text task."""
    rng, tally = random.Random(f"text {split}"), Tally()
    for kind in text_data.KINDS:
        for start in range(0, n, 50):
            items = [text_data.sample(rng, split, kind) for _ in range(min(50, n - start))]
            answers = talk.answer([talk.embed(item.prompt) for item in items], None)
            for item, said in zip(items, answers, strict=True):
                tally.add(kind, item.prompt[-60:], item.answer, said)
    return tally.figures()


def _picture_batches(
    talk: Conversation, n: int, split: Split, askable: Callable[[str], bool] = anything
) -> Iterator[PictureBatch]:
    rng, done = random.Random(f"pictures {split}"), 0
    while done < n:
        batch = draw_batch(rng, split, talk.model.g.vision, PATCHES_PER_BATCH, askable)
        done += len(batch.questions)
        yield batch


@torch.no_grad()
def evaluate_pictures(
    talk: Conversation, n: int, split: Split, adapter: str | None = "vision"
) -> dict[str, Any]:
    """Exact answers to typed questions: reading and shapes; character errors of reading."""
    tally, errors, characters = Tally(), 0, 0
    for batch in _picture_batches(talk, n, split):
        prompts = talk.user([talk.look(batch)], [q.text for q in batch.questions])
        for q, said in zip(batch.questions, talk.answer(prompts, adapter), strict=True):
            tally.add("read" if q.is_reading else "shapes", q.text, q.answer, said)
            if q.text == prompt("picture"):
                errors += edit_distance(q.answer, said)
                characters += len(q.answer)
    return {**tally.figures(), "character_error": round(errors / characters, 4)}


@torch.no_grad()
def evaluate_speech(
    talk: Conversation, clips: Clips, n: int, adapter: str | None = "speech"
) -> dict[str, Any]:
    """Word error rate in all and by voice, and exact transcripts."""
    rng, tally = random.Random(5), Tally()
    errors: dict[str, int] = defaultdict(int)
    said: dict[str, int] = defaultdict(int)
    chosen = [clips.get(i) for i in range(min(n, len(clips)))]
    for group in grouped(chosen, rng, TOKENS_PER_BATCH):
        soft = talk.listen(make_batch(group, rng, 0).mel, "speech")
        prompts = talk.user([soft], [prompt("clip")] * len(group))
        for utterance, text in zip(group, talk.answer(prompts, adapter), strict=True):
            target = spoken_words(utterance.text)
            errors[utterance.voice] += edit_distance(target, spoken_words(text))
            said[utterance.voice] += len(target)
            tally.add("exact", utterance.voice, utterance.text, text)
    return {
        "word_error": round(sum(errors.values()) / sum(said.values()), 4),
        "voices": {voice: round(errors[voice] / said[voice], 3) for voice in sorted(said)},
        **tally.figures(),
    }


@torch.no_grad()
def evaluate_spoken_questions(
    talk: Conversation,
    spoken: SpokenQuestions,
    n: int,
    split: Split,
    adapter: str | None = "vision",
) -> dict[str, Any]:
    """Exact answers to spoken questions about pictures."""
    rng, tally = random.Random(f"spoken {split}"), Tally()
    for batch in _picture_batches(talk, n, split, spoken.can_say):
        clips = [spoken.say(q.text, rng) for q in batch.questions]
        heard = talk.listen(make_batch(clips, rng, 0).mel, "vision")
        prompts = talk.user([talk.look(batch), heard], [""] * len(clips))
        for q, said in zip(batch.questions, talk.answer(prompts, adapter), strict=True):
            tally.add("read" if q.is_reading else "shapes", q.text, q.answer, said)
    return tally.figures()


def evaluate(talk: Conversation, run_dir: Path, n: int, split: Split) -> Iterator[dict[str, Any]]:
    """Every ability, with its adapter and without."""
    yield {"text": evaluate_text(talk, n, split)}
    yield {"pictures": evaluate_pictures(talk, n, split)}
    yield {"pictures, adapter off": evaluate_pictures(talk, n // 2, split, None)}
    clips = Clips(run_dir, split, "phrase")
    yield {"speech": evaluate_speech(talk, clips, n)}
    yield {"speech, adapter off": evaluate_speech(talk, clips, n // 2, None)}
    spoken = SpokenQuestions(run_dir, split)
    yield {"spoken questions": evaluate_spoken_questions(talk, spoken, n, split)}


def main() -> None:
    """Command line."""
    from .plan import STAGES, assemble

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--split", choices=["dev", "test"], default="test")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.load()
    model = assemble(arguments.run_dir, tokenizer, list(STAGES))
    talk = Conversation(model, tokenizer)
    for figures in evaluate(talk, arguments.run_dir, arguments.n, arguments.split):
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
