"""Stage 1: the decoder on text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from . import text_data
from .evaluate import evaluate_text
from .loop import Group, Schedule
from .model import pad_answers
from .prompting import Conversation

TOKENS_PER_BATCH = 1300
BATCHES_PER_BLOCK = 16
RANDOM_COPIES = 0.08


@dataclass(frozen=True)
class Example:
    """A prompt and an answer as ids, the end token included."""

    prompt: list[int]
    answer: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def bucket(examples: list[Example], rng: random.Random, budget: int) -> list[list[Example]]:
    """Batches of similar lengths that stay within the budget of padded tokens."""
    batches: list[list[Example]] = []
    for example in sorted(examples, key=len):
        if not batches or len(example) * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(example)
    rng.shuffle(batches)
    return batches


class TextStage:
    """Facts, arithmetic, copying and tools; answers only are scored."""

    name = "text"

    def __init__(self, talk: Conversation, schedule: Schedule) -> None:
        self.talk, self.schedule = talk, schedule
        self.model, self.tokenizer = talk.model, talk.tokenizer
        self.trained = {
            name: p
            for name, p in talk.model.named_parameters()
            if "embed_tokens_extend" not in name and "lora_" not in name
        }

    def groups(self) -> list[Group]:
        table = self.model.table
        matrices = [p for p in self.trained.values() if p.dim() > 1 and p is not table]
        others = [p for p in self.trained.values() if p.dim() == 1 or p is table]
        return [Group(matrices, decay=0.05), Group(others)]

    def _example(self, rng: random.Random) -> Example:
        encode, end = self.tokenizer.encode, self.tokenizer.end
        if rng.random() < RANDOM_COPIES:
            ids = [rng.randrange(self.tokenizer.n_text) for _ in range(rng.randint(2, 20))]
            before, after = encode("<|user|>Repeat:"), encode("<|end|><|assistant|>")
            return Example([*before, *ids, *after], [*ids, end])
        item = text_data.sample(rng, "train")
        return Example(encode(item.prompt), [*encode(item.answer), end])

    def batches(self, step: int) -> Iterator[list[Example]]:
        rng = random.Random(f"{self.name} {step}")
        batches: list[list[Example]] = []
        while len(batches) < BATCHES_PER_BLOCK:
            batches += bucket([self._example(rng) for _ in range(400)], rng, TOKENS_PER_BATCH)
        yield from batches

    def loss(self, batch: list[Example]) -> tuple[Tensor, dict[str, float]]:
        prompts = [self.model.embed(example.prompt) for example in batch]
        answers = [example.answer for example in batch]
        result = self.model.answer_loss(*pad_answers(prompts, answers, self.model), None)
        return result.loss, {"right": result.accuracy}

    def evaluate(self, n: int) -> dict[str, Any]:
        return evaluate_text(self.talk, n, "dev")

    def exported(self) -> Mapping[str, Tensor]:
        return self.trained

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing beyond the weights."""
