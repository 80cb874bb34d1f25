"""Stage 2b: vision encoder, projector, separators and vision adapter; the decoder is frozen."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .anchor import Anchor, class_rows
from .frontend import picture_input
from .geometry import VisionGeometry
from .initial import adapter_parameters
from .loop import Group, Schedule
from .metrics import edit_distance
from .model import SampleModel, pad_answers
from .picture_data import WORDS, Mark, Picture, cell_texts, glyph_targets, printed, word_targets
from .shape_data import shape_question, shapes_picture
from .stage_vision_encoder import ReadingHeads, class_loss
from .tokenizer import IMAGE, Tokenizer
from .vision import used_size
from .vocabulary import Split, prompt, vocabulary

PATCHES_PER_BATCH = 1900
BATCHES_PER_BLOCK = 20
SLOTS_PER_CELL = 3
ADAPTER = "vision"
# Sizes of pictures in pixels and how often they come; a batch shares one.
SIZES: dict[tuple[int, int], float] = {
    (168, 168): 0.5,
    (336, 168): 0.16,
    (168, 336): 0.08,
    (252, 168): 0.08,
    (168, 112): 0.07,
    (140, 140): 0.06,
    (300, 120): 0.05,
}


@dataclass(frozen=True)
class Question:
    """A picture, what is asked about it, and the right answer."""

    picture: Picture
    question: str
    answer: str


@dataclass(frozen=True)
class PictureBatch:
    """Questions about pictures of one size, with the throw-away targets of their cells."""

    pixels: Tensor  # [n, 1 + crops, 3, side, side]
    mask: Tensor  # [1 + crops, g, g] bool
    grid: tuple[int, int]
    questions: list[Question]
    characters: Tensor  # [n, patch rows, patch columns, slots]
    words: Tensor  # [n, rows, columns]
    anchors: Tensor  # [n, rows, columns, SLOTS_PER_CELL]


def question(rng: random.Random, split: Split, size: tuple[int, int]) -> Question:
    """Reading for the most part; a price on a receipt; coloured shapes."""
    if rng.random() < 0.25:
        picture, shapes = shapes_picture(rng, split, *size)
        return Question(picture, *shape_question(rng, shapes))
    return reading(rng, split, size)


def reading(rng: random.Random, split: Split, size: tuple[int, int]) -> Question:
    """Read everything, or one price where the lines are those of a receipt."""
    picture = printed(rng, split, *size)
    lines = [line.split(" ") for line in picture.text.split("\n")]
    items = [line[0] for line in lines]
    receipt = all(len(line) == 2 and "." in line[1] for line in lines)
    if receipt and len(set(items)) == len(items) and rng.random() < 0.25:
        item, price = rng.choice(lines)
        form = vocabulary()["picture_questions"]["price"]
        return Question(picture, form.format(item=item), price)
    return Question(picture, prompt("picture"), picture.text)


def _scaled(marks: list[Mark], scale: float) -> list[Mark]:
    return [Mark(m.text, m.x * scale, m.y * scale) for m in marks]


def anchor_classes() -> list[str]:
    """What a cell can be anchored to: printed words, then the characters of numbers."""
    return [*WORDS, *"0123456789.$"]


ANCHORS = {text: index + 1 for index, text in enumerate(anchor_classes())}


def picture_batch(questions: list[Question], g: VisionGeometry) -> PictureBatch:
    """Run pictures of one size through the front end and lay out their targets."""
    inputs = [picture_input(q.picture.image, g.crop, g.patch, g.max_crops) for q in questions]
    _, mask, canvas = inputs[0]
    rows, cols = used_size(mask, (canvas.rows, canvas.cols))
    characters, words, anchors = [], [], []
    for q in questions:
        glyphs = _scaled(q.picture.glyphs, canvas.scale)
        marks = _scaled(q.picture.words, canvas.scale)
        characters.append(glyph_targets(glyphs, 2 * rows, 2 * cols, g.patch))
        words.append(word_targets(marks, rows, cols, 2 * g.patch))
        texts = cell_texts(glyphs, marks, rows, cols, 2 * g.patch, SLOTS_PER_CELL)
        anchors.append([[[ANCHORS.get(t, 0) for t in cell] for cell in row] for row in texts])
    return PictureBatch(
        torch.stack([pixels for pixels, _, _ in inputs]),
        mask,
        (canvas.rows, canvas.cols),
        questions,
        torch.from_numpy(np.stack(characters)),
        torch.from_numpy(np.stack(words)),
        torch.tensor(anchors),
    )


class VisionStage:
    """Answers to questions about pictures, helped by heads on cells and anchors on soft tokens."""

    name = "vision"

    def __init__(
        self, model: SampleModel, tokenizer: Tokenizer, run_dir: Path, schedule: Schedule
    ) -> None:
        self.model, self.tokenizer, self.schedule = model, tokenizer, schedule
        self.image = model.image
        torch.manual_seed(5)
        self.heads = ReadingHeads(model.g.vision.n_embd)
        earlier = run_dir / "vision_encoder" / "checkpoint.pt"
        self.heads.load_state_dict(torch.load(earlier, weights_only=False)["state"]["heads"])
        rows = class_rows(model, tokenizer, IMAGE, anchor_classes())
        self.anchor = Anchor(rows, SLOTS_PER_CELL - 1)

    def groups(self) -> list[Group]:
        tower = self.image.img_processor.live_parameters()
        projector = [*self.image.img_projection.parameters(), self.image.glb_GN, self.image.sub_GN]
        adapter = adapter_parameters(self.model, ADAPTER)
        aids = [*self.heads.parameters(), *self.anchor.parameters()]
        return [Group(tower, 0.3), Group(projector), Group(adapter, 1.5), Group(aids)]

    def batches(self, step: int) -> Iterator[PictureBatch]:
        rng = random.Random(f"{self.name} {step}")
        for _ in range(BATCHES_PER_BLOCK):
            size = rng.choices(list(SIZES), list(SIZES.values()))[0]
            yield self.batch(rng, "train", size, PATCHES_PER_BATCH)

    def batch(
        self, rng: random.Random, split: Split, size: tuple[int, int], patches: int
    ) -> PictureBatch:
        first = question(rng, split, size)
        one = picture_batch([first], self.model.g.vision)
        whole = one.grid == (1, 1) and bool(one.mask.all())
        n = max(1, patches // (one.mask.numel() // (2 if whole else 1)))
        return picture_batch(
            [first, *(question(rng, split, size) for _ in range(n - 1))], self.model.g.vision
        )

    def prompts(self, soft: Tensor, questions: list[Question]) -> list[Tensor]:
        """Embedded prompts, the picture before the question."""
        before = self.model.embed(self.tokenizer.encode("<|user|>"))
        after = [self.tokenizer.encode(f"{q.question}<|end|><|assistant|>") for q in questions]
        return [
            torch.cat([before, s, self.model.embed(a)]) for s, a in zip(soft, after, strict=True)
        ]

    def loss(self, batch: PictureBatch) -> tuple[Tensor, dict[str, float]]:
        whole, sub = self.image.features(batch.pixels, batch.mask, batch.grid)
        soft = self.image.arrange(whole, sub)
        reading, figures = self.heads.cell_losses(sub, batch.characters, batch.words)
        rows, cols = sub.shape[1:3]
        cells = soft[:, : rows * (cols + 1)].unflatten(1, (rows, cols + 1))[:, :, :cols]
        anchor, anchored = class_loss(self.anchor(cells), batch.anchors)
        answers = [[*self.tokenizer.encode(q.answer), self.tokenizer.end] for q in batch.questions]
        padded = pad_answers(self.prompts(soft, batch.questions), answers, self.model)
        answer = self.model.answer_loss(*padded, ADAPTER)
        figures.update(answer=answer.loss.item(), right=answer.accuracy, anchored=anchored)
        return answer.loss + 0.5 * reading + 0.5 * anchor, figures

    @torch.no_grad()
    def answers(self, batch: PictureBatch, adapter: str | None = ADAPTER) -> list[str]:
        """What the model says."""
        soft = self.image(batch.pixels, batch.mask, batch.grid)
        prompts = self.prompts(soft, batch.questions)
        ids = self.model.generate(prompts, adapter, self.tokenizer.end)
        return [self.tokenizer.decode(i) for i in ids]

    def evaluate(
        self, n: int, split: Split = "dev", adapter: str | None = ADAPTER
    ) -> dict[str, Any]:
        """Exact answers to reading and to shapes, and the character error rate of reading."""
        rng, exact, wrong = random.Random(f"evaluate {split}"), {"read": [], "shapes": []}, []
        errors = characters = done = 0
        while done < 2 * n:
            size = rng.choices(list(SIZES), list(SIZES.values()))[0]
            batch = self.batch(rng, split, size, 2 * PATCHES_PER_BATCH)
            for q, said in zip(batch.questions, self.answers(batch, adapter), strict=True):
                exact["read" if q.picture.text else "shapes"].append(said == q.answer)
                if q.question == prompt("picture"):
                    errors += edit_distance(q.answer, said)
                    characters += len(q.answer)
                if said != q.answer and len(wrong) < 6:
                    wrong.append((q.question, q.answer, said))
            done += len(batch.questions)
        shares = {kind: round(float(np.mean(right)), 4) for kind, right in exact.items()}
        return {**shares, "character_error": round(errors / characters, 4), "wrong": wrong}

    def exported(self) -> Mapping[str, Tensor]:
        return {
            name: p
            for name, p in self.model.named_parameters()
            if "image_embed" in name or (name.endswith(f"{ADAPTER}.weight") and "lora_" in name)
        }

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        assert not state
