"""Stage 2b: the vision encoder meets the decoder, which is frozen.

First encoder and projector, towards the soft tokens that the adapter knows how to read; then
projector and adapter, on answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .evaluate import evaluate_pictures
from .initial import adapter_parameters
from .loop import Group, Schedule, saved_heads
from .picture_batch import PictureBatch, draw_batch
from .picture_data import BESIDE, CELL_WORDS
from .prompting import Conversation
from .soft_space import EMPTY_WEIGHT, SoftSpace, fit_projector
from .speech_synthesis import spoken_form
from .stage_adapter import NEWLINE, SEPARATOR, SPOKEN, IdealClips, fixed
from .stage_vision_encoder import ReadingHeads

PATCHES_PER_BATCH = 1900
BATCHES_PER_BLOCK = 20
ADAPTER = "vision"
FITTED_BATCHES = 60


@dataclass(frozen=True)
class Asked:
    """Pictures with their questions; heard: these as the soft tokens of clips, where spoken."""

    pictures: PictureBatch
    heard: list[Tensor] | None


class VisionStage:
    """Pictures with questions, helped by what the cells are to say.

    answering: whether the decoder answers. The encoder rests then: at a rate that teaches the
    adapter, it forgets (85 to 75 % of characters in 200 steps).
    """

    def __init__(
        self,
        name: str,
        after: str,
        answering: bool,
        talk: Conversation,
        run_dir: Path,
        schedule: Schedule,
    ) -> None:
        self.name, self.answering, self.schedule = name, answering, schedule
        self.talk, self.model, self.image = talk, talk.model, talk.model.image
        torch.manual_seed(5)
        self.heads = ReadingHeads(self.model.g.vision.n_embd)
        self.heads.load_state_dict(saved_heads(run_dir, after))
        self.space = SoftSpace(self.model, talk.tokenizer, CELL_WORDS, BESIDE)
        self.clips = IdealClips(talk)
        self.newline = fixed(self.model, talk.tokenizer, NEWLINE)
        self.separator = fixed(self.model, talk.tokenizer, SEPARATOR)
        if not answering:
            self._fit()

    @torch.no_grad()
    def _fit(self) -> None:
        """Start the projector near to what it is to say."""
        rng, features, classes = random.Random(9), [], []
        for _ in range(FITTED_BATCHES):
            batch = draw_batch(rng, "train", self.model.g.vision, PATCHES_PER_BATCH)
            _, sub = self.image.features(batch.pixels, batch.mask, batch.grid)
            features.append(sub.flatten(0, 2))
            classes.append(batch.said.flatten(0, 2))
        said = torch.cat(classes)
        weight = torch.where(said[:, 0] > 0, 1.0, EMPTY_WEIGHT)
        fit_projector(
            self.image.img_projection, torch.cat(features), self.space.ideal(said), weight
        )

    def groups(self) -> list[Group]:
        tower = self.image.img_processor.live_parameters()
        projector = [*self.image.img_projection.parameters(), self.image.glb_GN, self.image.sub_GN]
        aids = [*self.heads.parameters(), *self.space.parameters()]
        if self.answering:
            return [Group(projector, 0.5), Group(adapter_parameters(self.model, ADAPTER))]
        return [Group(tower, 0.4), Group(projector), Group(aids)]

    def batches(self, step: int) -> Iterator[Asked]:
        rng = random.Random(f"{self.name} {step}")
        for _ in range(BATCHES_PER_BLOCK):
            batch = draw_batch(rng, "train", self.model.g.vision, PATCHES_PER_BATCH)
            texts = [spoken_form(q.text) for q in batch.questions]
            spoken = self.answering and rng.random() < SPOKEN
            yield Asked(batch, [self.clips.listen(t, rng) for t in texts] if spoken else None)

    def loss(self, asked: Asked) -> tuple[Tensor, dict[str, float]]:
        batch = asked.pictures
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.answering):
            whole, sub = self.image.features(batch.pixels, batch.mask, batch.grid)
            reading, figures = self.heads.cell_losses(sub, batch.characters, batch.said)
        soft = self.image.arrange(whole, sub)
        agreement, figures["said"] = self._agreement(soft, batch)
        if not self.answering:
            return 0.5 * reading + agreement, figures
        if asked.heard:
            prompts = self.talk.user([soft, asked.heard], [""] * len(soft))
        else:
            prompts = self.talk.user([soft], [q.text for q in batch.questions])
        targets = self.talk.targets(prompts, [q.answer for q in batch.questions])
        answer = self.model.answer_loss(*targets, ADAPTER)
        figures.update(answer=answer.loss.item(), right=answer.accuracy)
        return answer.loss + 0.3 * agreement, figures

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

    @torch.no_grad()
    def evaluate(self, n: int) -> dict[str, Any]:
        if self.answering:
            return evaluate_pictures(self.talk, 2 * n, "dev")
        rng, shares = random.Random(7), []
        for _ in range(0, n, 10):
            batch = draw_batch(rng, "dev", self.model.g.vision, PATCHES_PER_BATCH)
            _, figures = self.loss(Asked(batch, None))
            shares.append(figures["said"])
        return {"said": round(sum(shares) / len(shares), 4)}

    def exported(self) -> Mapping[str, Tensor]:
        return {
            name: p
            for name, p in self.model.named_parameters()
            if "image_embed" in name
            or (self.answering and f".{ADAPTER}.weight" in name and "lora_" in name)
        }

    def state(self) -> dict[str, Any]:
        return {"heads": self.heads.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The heads are among the weights that the loop restores."""


def _lines(soft: Tensor, cols: int) -> tuple[Tensor, Tensor]:
    """Soft tokens of cells [n, rows, columns, width], and those that end the rows."""
    rows = soft.unflatten(1, (-1, cols + 1))
    return rows[:, :, :-1], rows[:, :, -1]


def vision_projector(talk: Conversation, run_dir: Path, schedule: Schedule) -> VisionStage:
    """Encoder and projector, without the decoder."""
    return VisionStage("vision_projector", "vision_encoder", False, talk, run_dir, schedule)


def vision(talk: Conversation, run_dir: Path, schedule: Schedule) -> VisionStage:
    """Encoder, projector and adapter on answers."""
    return VisionStage("vision", "vision_projector", True, talk, run_dir, schedule)
