"""Stage 1: the decoder on text."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from . import text_data
from .evaluate import evaluate_text
from .loop import Group, Schedule
from .model import pad_answers
from .prompting import CLOSING, Conversation
from .soft_space import BLANK
from .vocabulary import vocabulary

TOKENS_PER_STEP = 1400
STEPS_PER_BLOCK = 20
# Examples of a step that go through the model together differ in length by no more than this.
LENGTH_RATIO = 1.7
# A lower rate for the embeddings and the copying heads, against losing their initial structure. It
# slowed the loss somewhat (random copies right after 75 steps: 71 % against 65 %), no more.
SLOW = 0.15
# Strong, against learning sums by heart.
DECAY = 0.5
LONGEST_GAP = 12


@dataclass(frozen=True)
class Phase:
    """A mixture of kinds, up to a share of the steps."""

    until: float
    weights: dict[str, float]


# Copying first, in the belief that what is learnt before it (which tokens are frequent, sums that
# are noise at that time) breaks the copying heads; README.md has what was seen.
PHASES = (
    Phase(0.045, {"random_copy": 0.5, "copy": 0.5}),
    Phase(
        0.22,
        {
            "random_copy": 0.12,
            "facts": 0.28,
            "arithmetic": 0.18,
            "copy": 0.2,
            "no_media": 0.03,
            "tools": 0.15,
            "tool_result": 0.04,
        },
    ),
    Phase(
        0.55,
        {
            "random_copy": 0.05,
            "sparse_copy": 0.12,
            "facts": 0.16,
            "arithmetic": 0.36,
            "copy": 0.12,
            "no_media": 0.02,
            "tools": 0.13,
            "tool_result": 0.04,
        },
    ),
    Phase(
        1.0,
        {
            "random_copy": 0.03,
            "sparse_copy": 0.2,
            "facts": 0.08,
            "arithmetic": 0.28,
            "copy": 0.11,
            "no_media": 0.02,
            "tools": 0.23,
            "tool_result": 0.05,
        },
    ),
)


@dataclass(frozen=True)
class Example:
    """A prompt and an answer as ids, the end token included."""

    kind: str
    prompt: list[int]
    answer: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def by_length(examples: list[Example]) -> list[list[Example]]:
    """Groups of similar lengths, so that little is padded."""
    groups: list[list[Example]] = []
    for example in sorted(examples, key=len):
        if not groups or len(example) > LENGTH_RATIO * len(groups[-1][0]):
            groups.append([])
        groups[-1].append(example)
    return groups


class TextStage:
    """Facts, arithmetic, copying and tools; answers only are scored."""

    name = "text"

    def __init__(self, talk: Conversation, _: Path, schedule: Schedule) -> None:
        self.talk, self.schedule = talk, schedule
        self.model, self.tokenizer = talk.model, talk.tokenizer
        self.trained = {
            name: p
            for name, p in talk.model.named_parameters()
            if "embed_tokens_extend" not in name and "lora_" not in name
        }

    def groups(self) -> list[Group]:
        table, heads = self.model.table, self.model.model.layers[:2]
        copying = [p for layer in heads for p in layer.self_attn.parameters() if p.requires_grad]
        slow = {id(p) for p in [table, *copying]}
        trained = self.trained.values()
        matrices = [p for p in trained if p.dim() > 1 and id(p) not in slow]
        attention = [p for p in copying if any(p is t for t in trained)]
        return [
            Group(matrices, decay=DECAY),
            Group([p for p in trained if p.dim() == 1]),
            Group([table], 2 * SLOW),
            Group(attention, SLOW),
        ]

    def _example(self, rng: random.Random, kind: str) -> Example:
        encode, end = self.tokenizer.encode, self.tokenizer.end
        if kind in ("random_copy", "sparse_copy"):
            return self._random_copy(rng, kind)
        item = text_data.sample(rng, "train", kind)
        return Example(kind, encode(item.prompt), [*encode(item.answer), end])

    def _random_copy(self, rng: random.Random, kind: str) -> Example:
        """Copying of random tokens, words or not; sparse: with blanks among them, as between the
        soft tokens of a picture or a clip."""
        encode, n = self.tokenizer.encode, rng.randint(1, 16)
        ids = [rng.randrange(self.tokenizer.n_text) for _ in range(n)]
        blank = self.tokenizer.specials[BLANK]
        shown = [token for i in ids for token in (i, *[blank] * rng.randint(0, LONGEST_GAP))]
        before, after = rng.choice(vocabulary()["prompts"]["repeat"]).split("{text}")
        middle = shown if kind == "sparse_copy" else ids
        prompt = [*encode(f"<|user|>{before}"), *middle, *encode(f"{after}{CLOSING}")]
        return Example(kind, prompt, [*ids, self.tokenizer.end])

    def batches(self, step: int) -> Iterator[list[Example]]:
        """Every step mixes all kinds; with steps of one length the long kinds take most steps."""
        rng = random.Random(f"{self.name} {step}")
        phase = next(p for p in PHASES if step <= p.until * self.schedule.steps)
        kinds, weights = list(phase.weights), list(phase.weights.values())
        for _ in range(STEPS_PER_BLOCK):
            batch: list[Example] = []
            while sum(map(len, batch)) < TOKENS_PER_STEP:
                batch.append(self._example(rng, rng.choices(kinds, weights)[0]))
            yield batch

    def loss(self, batch: list[Example]) -> tuple[Tensor, dict[str, float]]:
        totals, weights = [], []
        by_kind: dict[str, list[float]] = defaultdict(list)
        for group in by_length(batch):
            prompts = [self.model.embed(example.prompt) for example in group]
            answers = [example.answer for example in group]
            result = self.model.answer_loss(*pad_answers(prompts, answers, self.model), None)
            totals.append(result.total)
            weights.append(result.weight)
            for example, right in zip(group, result.right.tolist(), strict=True):
                by_kind[example.kind].append(right)
        figures = {kind: sum(rights) / len(rights) for kind, rights in by_kind.items()}
        return sum(totals) / sum(weights), figures

    def evaluate(self, n: int) -> dict[str, Any]:
        return evaluate_text(self.talk, n, "dev")

    def exported(self) -> Mapping[str, Tensor]:
        return self.trained

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing beyond the weights."""
