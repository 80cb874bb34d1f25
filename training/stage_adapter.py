"""Stages 2 and 3, the decoder's side: an adapter on ideal soft tokens, without an encoder.

What a picture's cells or a clip's frames would say is known from how they were made; the adapter
learns to read it, skip what is empty, count it and answer questions about it, long before an
encoder can see or hear. The frozen decoder costs a fraction of what it costs with an encoder.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .clips import joined_text, unit_ids
from .initial import adapter_parameters
from .loop import Group, Schedule
from .model import SampleModel, pad_answers
from .picture_batch import said
from .picture_data import BESIDE, CELL_WORDS
from .prompting import Conversation
from .question_data import Question, draw_size, question
from .soft_space import SoftSpace
from .speech_synthesis import spoken_form, transcript, unit_words, units
from .tokenizer import IMAGE, Tokenizer
from .vocabulary import prompt

TOKENS_PER_STEP = 1500
STEPS_PER_BLOCK = 20
SPOKEN = 0.4
# The agreed soft tokens of the places that end a row of cells and that part the two views.
NEWLINE, SEPARATOR = IMAGE, "<|endofprompt|>"


@dataclass(frozen=True)
class Item:
    """Embedded prompt and answer."""

    prompt: Tensor
    answer: str


def fixed(model: SampleModel, tokenizer: Tokenizer, name: str) -> Tensor:
    """The embedding of a special token, as a soft token without meaning."""
    return model.table[tokenizer.specials[name]].detach()


def disturbed(
    ideal: Tensor, classes: Tensor, space: SoftSpace, rng: torch.Generator, strength: float
) -> Tensor:
    """Soft tokens as an encoder gives them: not quite exact, now and then something else.

    ideal: [..., width]; classes: [..., slots].
    """
    shape = classes.shape[:-1]
    share = torch.rand(shape, generator=rng)[..., None]
    other = torch.zeros_like(classes)
    other[..., 0] = torch.randint(1, len(space.rows), shape, generator=rng)
    wrong = space.ideal(other) * torch.rand((*shape, 1), generator=rng)
    empty = (classes[..., :1] == 0) & (share < 0.03 * strength)
    blurred = (classes[..., :1] > 0) & (share < 0.1 * strength)
    soft = ideal + torch.where(empty, wrong, torch.where(blurred, 0.5 * wrong, 0))
    noise = torch.randn(soft.shape, generator=rng)
    return soft + noise * 0.02 * strength * torch.rand((*shape, 1), generator=rng)


def frames(text: str, rng: random.Random) -> Tensor:
    """What the frames of a clip would say, as a CTC head hears it: a unit in one or two frames."""
    heard = [0] * rng.randint(1, 6)
    for unit, name in zip(unit_ids(text), units(text), strict=True):
        heard += [0] * rng.randint(1, 2 + len(name))
        heard += [unit] * rng.choice([1, 1, 1, 2])
        if rng.random() < 0.06:
            heard += [0] * rng.randint(5, 15)
    return torch.tensor([*heard, *[0] * rng.randint(1, 6)])


class IdealClips:
    """Soft tokens of clips, as an encoder that hears well would give them."""

    def __init__(self, talk: Conversation) -> None:
        self.space = SoftSpace(talk.model, talk.tokenizer, unit_words())
        self.noise = torch.Generator().manual_seed(9)

    @torch.no_grad()
    def listen(self, text: str, rng: random.Random, strength: float = 1.0) -> Tensor:
        """Soft tokens of a clip that says the text."""
        classes = frames(text, rng)[:, None]
        return disturbed(self.space.ideal(classes), classes, self.space, self.noise, strength)


class AdapterStage:
    """Answers from ideal soft tokens; the adapter alone learns."""

    def __init__(self, adapter: str, talk: Conversation, schedule: Schedule) -> None:
        self.name, self.adapter, self.schedule = f"{adapter}_adapter", adapter, schedule
        self.talk, self.model, self.g = talk, talk.model, talk.model.g.vision
        self.cells = SoftSpace(self.model, talk.tokenizer, CELL_WORDS, BESIDE)
        self.clips = IdealClips(talk)
        self.newline = fixed(self.model, talk.tokenizer, NEWLINE)
        self.separator = fixed(self.model, talk.tokenizer, SEPARATOR)
        self.noise = torch.Generator().manual_seed(8)
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        self.trained = adapter_parameters(self.model, adapter)
        for parameter in self.trained:
            parameter.requires_grad_(True)

    def groups(self) -> list[Group]:
        return [Group(self.trained)]

    @torch.no_grad()
    def look(self, asked: Question, strength: float) -> Tensor:
        """Soft tokens of a picture: rows of its cells, the separator, rows of the global view."""
        sub, whole = said(asked.picture, self.g)

        def lines(classes: Tensor) -> Tensor:
            ideal = self.cells.ideal(classes)
            soft = disturbed(ideal, classes, self.cells, self.noise, strength)
            return torch.cat([soft, self.newline.expand(len(soft), 1, -1)], 1).flatten(0, 1)

        return torch.cat([lines(sub), self.separator[None], lines(whole)])

    def _speech(self, rng: random.Random, split: str, strength: float) -> Item:
        kind = rng.random()
        if kind < 0.06:
            text = ""
        elif kind < 0.14:
            text = transcript(rng, split, "item")
        elif kind < 0.22:
            text = transcript(rng, split, "question")
        else:
            n = 1 if kind < 0.8 else rng.randint(2, 7)
            text = joined_text([transcript(rng, split, "phrase") for _ in range(n)])
        media = [[self.clips.listen(text, rng, strength)]]
        return Item(self.talk.user(media, [prompt("clip")])[0], text)

    def _picture(self, rng: random.Random, split: str, strength: float) -> Item:
        asked = question(rng, split, draw_size(rng))
        media, text = [[self.look(asked, strength)]], asked.text
        if rng.random() < SPOKEN:
            media.append([self.clips.listen(spoken_form(text), rng, strength)])
            text = ""
        return Item(self.talk.user(media, [text])[0], asked.answer)

    def item(self, rng: random.Random, split: str, strength: float = 1.0) -> Item:
        """One item of the adapter's modality."""
        make = self._picture if self.adapter == "vision" else self._speech
        return make(rng, split, strength)

    def batches(self, step: int) -> Iterator[list[Item]]:
        """Items of similar lengths, so that little is padded."""
        rng = random.Random(f"{self.name} {step}")
        items = [self.item(rng, "train") for _ in range(STEPS_PER_BLOCK * 12)]
        batches: list[list[Item]] = []
        for item in sorted(items, key=lambda item: len(item.prompt)):
            if not batches or len(item.prompt) * (len(batches[-1]) + 1) > TOKENS_PER_STEP:
                batches.append([])
            batches[-1].append(item)
        rng.shuffle(batches)
        yield from batches

    def loss(self, batch: list[Item]) -> tuple[Tensor, dict[str, float]]:
        ids = [[*self.talk.tokenizer.encode(i.answer), self.talk.tokenizer.end] for i in batch]
        targets = pad_answers([item.prompt for item in batch], ids, self.model)
        answer = self.model.answer_loss(*targets, self.adapter)
        return answer.loss, {"right": answer.accuracy}

    @torch.no_grad()
    def evaluate(self, n: int) -> dict[str, Any]:
        rng, right = random.Random(7), 0
        wrong: list[tuple[str, str]] = []
        for _ in range(0, n, 20):
            items = [self.item(rng, "dev", 0.5) for _ in range(20)]
            answers = self.talk.answer([item.prompt for item in items], self.adapter)
            right += sum(i.answer == a for i, a in zip(items, answers, strict=True))
            wrong += [(i.answer, a) for i, a in zip(items, answers, strict=True) if i.answer != a]
        return {"exact": round(right / (20 * -(-n // 20)), 4), "wrong": wrong[:6]}

    def exported(self) -> Mapping[str, Tensor]:
        suffix = f".{self.adapter}.weight"
        return {
            name: p
            for name, p in self.model.named_parameters()
            if name.endswith(suffix) and "lora_" in name
        }

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing beyond the weights."""


def vision_adapter(talk: Conversation, _: Path, schedule: Schedule) -> AdapterStage:
    """The vision adapter on cells, the question typed or spoken."""
    return AdapterStage("vision", talk, schedule)


def speech_adapter(talk: Conversation, _: Path, schedule: Schedule) -> AdapterStage:
    """The speech adapter on frames."""
    return AdapterStage("speech", talk, schedule)
