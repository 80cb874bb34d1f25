"""Stage 2b: vision encoder, projector, separators and vision adapter; the decoder is frozen."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .anchor import Anchor, class_rows
from .evaluate import evaluate_pictures
from .initial import adapter_parameters
from .loop import Group, Schedule, saved_heads
from .picture_batch import SLOTS_PER_CELL, PictureBatch, anchor_classes, draw_batch
from .prompting import Conversation
from .stage_vision_encoder import ReadingHeads, class_loss
from .tokenizer import IMAGE

PATCHES_PER_BATCH = 1900
BATCHES_PER_BLOCK = 20
ADAPTER = "vision"


class VisionStage:
    """Answers to questions about pictures, helped by heads on cells and anchors on soft tokens."""

    name = "vision"

    def __init__(self, talk: Conversation, run_dir: Path, schedule: Schedule) -> None:
        self.talk, self.model, self.schedule = talk, talk.model, schedule
        self.image = talk.model.image
        torch.manual_seed(5)
        self.heads = ReadingHeads(self.model.g.vision.n_embd)
        self.heads.load_state_dict(saved_heads(run_dir, "vision_encoder"))
        rows = class_rows(self.model, talk.tokenizer, IMAGE, anchor_classes())
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
            yield draw_batch(rng, "train", self.model.g.vision, PATCHES_PER_BATCH)

    def loss(self, batch: PictureBatch) -> tuple[Tensor, dict[str, float]]:
        whole, sub = self.image.features(batch.pixels, batch.mask, batch.grid)
        soft = self.image.arrange(whole, sub)
        reading, figures = self.heads.cell_losses(sub, batch.characters, batch.words)
        rows, cols = sub.shape[1:3]
        cells = soft[:, : rows * (cols + 1)].unflatten(1, (rows, cols + 1))[:, :, :cols]
        anchor, anchored = class_loss(self.anchor(cells), batch.anchors)
        prompts = self.talk.user([soft], [q.text for q in batch.questions])
        targets = self.talk.targets(prompts, [q.answer for q in batch.questions])
        answer = self.model.answer_loss(*targets, ADAPTER)
        figures.update(answer=answer.loss.item(), right=answer.accuracy, anchored=anchored)
        return answer.loss + 0.5 * reading + 0.5 * anchor, figures

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
