"""Stage 2b: vision encoder, projector, separators and vision adapter; the decoder is frozen.

First towards the soft tokens that the adapter knows already, without the decoder; then on answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .evaluate import evaluate_pictures
from .initial import adapter_parameters
from .loop import Group, Schedule, saved_heads
from .picture_batch import SLOTS_PER_CELL, PictureBatch, cell_words, draw_batch
from .prompting import Conversation
from .soft_space import SoftSpace
from .stage_adapter import NEWLINE, SEPARATOR, fixed
from .stage_vision_encoder import ReadingHeads

PATCHES_PER_BATCH = 1900
BATCHES_PER_BLOCK = 20
ADAPTER = "vision"
# The share of the steps that go without the decoder.
SILENT_SHARE = 0.4


class VisionStage:
    """Answers to questions about pictures, helped by heads and by what the cells are to say."""

    name = "vision"

    def __init__(self, talk: Conversation, run_dir: Path, schedule: Schedule) -> None:
        self.talk, self.model, self.schedule = talk, talk.model, schedule
        self.image = talk.model.image
        torch.manual_seed(5)
        self.heads = ReadingHeads(self.model.g.vision.n_embd)
        self.heads.load_state_dict(saved_heads(run_dir, "vision_encoder"))
        self.space = SoftSpace(self.model, talk.tokenizer, cell_words(), SLOTS_PER_CELL)
        self.newline = fixed(self.model, talk.tokenizer, NEWLINE)
        self.separator = fixed(self.model, talk.tokenizer, SEPARATOR)
        self.answering = False

    def groups(self) -> list[Group]:
        tower = self.image.img_processor.live_parameters()
        projector = [*self.image.img_projection.parameters(), self.image.glb_GN, self.image.sub_GN]
        adapter = adapter_parameters(self.model, ADAPTER)
        aids = [*self.heads.parameters(), *self.space.parameters()]
        return [Group(tower, 0.5), Group(projector), Group(adapter, 0.4), Group(aids)]

    def batches(self, step: int) -> Iterator[PictureBatch]:
        rng = random.Random(f"{self.name} {step}")
        self.answering = step >= SILENT_SHARE * self.schedule.steps
        for _ in range(BATCHES_PER_BLOCK):
            yield draw_batch(rng, "train", self.model.g.vision, PATCHES_PER_BATCH)

    def loss(self, batch: PictureBatch) -> tuple[Tensor, dict[str, float]]:
        whole, sub = self.image.features(batch.pixels, batch.mask, batch.grid)
        soft = self.image.arrange(whole, sub)
        reading, figures = self.heads.cell_losses(sub, batch.characters, batch.words)
        agreement, figures["said"] = self._agreement(soft, batch)
        loss = 0.5 * reading + agreement
        if self.answering:
            prompts = self.talk.user([soft], [q.text for q in batch.questions])
            targets = self.talk.targets(prompts, [q.answer for q in batch.questions])
            answer = self.model.answer_loss(*targets, ADAPTER)
            loss = loss + answer.loss
            figures.update(answer=answer.loss.item(), right=answer.accuracy)
        return loss, figures

    def _agreement(self, soft: Tensor, batch: PictureBatch) -> tuple[Tensor, float]:
        """How far the soft tokens are from saying what they should, and the share that is right."""
        n = batch.said.shape[1] * (batch.said.shape[2] + 1)
        sub, ends = _lines(soft[:, :n], batch.said.shape[2])
        whole, whole_ends = _lines(soft[:, n + 1 :], batch.said_whole.shape[2])
        loss, right = self.space.loss(sub, batch.said)
        loss_whole, _ = self.space.loss(whole, batch.said_whole)
        ends = torch.cat([ends, whole_ends], 1)
        marks = self.space.distance(ends, self.newline).mean()
        marks = marks + self.space.distance(soft[:, n], self.separator).mean()
        return loss + 0.5 * loss_whole + 0.2 * marks, right

    def evaluate(self, n: int) -> dict[str, Any]:
        return evaluate_pictures(self.talk, 2 * n, "dev")

    def exported(self) -> Mapping[str, Tensor]:
        return {
            name: p
            for name, p in self.model.named_parameters()
            if "image_embed" in name or (f".{ADAPTER}.weight" in name and "lora_" in name)
        }

    def state(self) -> dict[str, Any]:
        return {"heads": self.heads.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The heads are among the weights that the loop restores."""


def _lines(soft: Tensor, cols: int) -> tuple[Tensor, Tensor]:
    """Soft tokens of cells [n, rows, columns, width], and those that end the rows."""
    rows = soft.unflatten(1, (-1, cols + 1))
    return rows[:, :, :-1], rows[:, :, -1]
