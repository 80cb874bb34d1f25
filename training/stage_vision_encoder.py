"""Stage 2a: the vision encoder alone, on characters, through heads that are thrown away."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .canvas import Lattice
from .geometry import VisionGeometry
from .loop import Group, Schedule
from .picture_data import (
    CELL_CLASSES,
    SLOTS_PER_CELL,
    Picture,
    cell_classes,
    glyph_page,
    glyph_targets,
    printed,
    word_page,
)
from .prompting import Conversation
from .question_data import SHAPES
from .shape_data import shapes_picture
from .vision import pool
from .vocabulary import Split, vocabulary

CROPS_PER_BATCH = 12
BATCHES_PER_BLOCK = 25
EMPTY_WEIGHT = 0.2
SLOTS = 2


@dataclass(frozen=True)
class CropBatch:
    """Whole-crop pictures, the characters in their patches and what their cells are to say."""

    pixels: Tensor  # [n, 3, side, side]
    characters: Tensor  # [n, g, g, SLOTS]
    said: Tensor  # [n, g/2, g/2, SLOTS_PER_CELL]


class ReadingHeads(nn.Module):
    """Reads characters, and what a cell is to say, off the features; thrown away later.

    Characters are read from each patch and from each pooled cell; a word is read from the cell
    of its first character, so that the encoder has to gather what stands to the right.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n_character = len(vocabulary()["print_characters"]) + 1
        self.norm = nn.LayerNorm(width)
        self.patch = nn.Linear(width, SLOTS * self.n_character)
        self.cell = nn.Linear(width, 4 * SLOTS * self.n_character)
        self.said = nn.Linear(width, SLOTS_PER_CELL * (len(CELL_CLASSES) + 1))

    def losses(self, x: Tensor, batch: CropBatch) -> tuple[Tensor, dict[str, float]]:
        """x: [n, patches, width] of whole crops."""
        patch, _ = class_loss(self.patch(self.norm(x)), batch.characters)
        loss, figures = self.cell_losses(pool(x), batch.characters, batch.said)
        return 0.5 * patch + loss, {"patch": patch.item(), **figures}

    def cell_losses(
        self, cells: Tensor, characters: Tensor, said: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """cells: [n, rows, cols, width]; characters per patch, what is said per cell."""
        cells = self.norm(cells)
        logits = self.cell(cells).unflatten(-1, (-1, self.n_character))
        cell, right_characters = class_loss(logits, cell_targets(characters))
        saying, right = class_loss(self.said(cells), said)
        figures = {"cell": cell.item(), "saying": saying.item()}
        return 0.5 * cell + saying, {**figures, "characters": right_characters, "read": right}


def class_loss(logits: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """Loss with empty places weighted down, and the share of the others that is right.

    logits: [..., classes], or the same values in fewer dimensions; target: class numbers, 0: empty.
    """
    target = target.flatten()
    logits = logits.reshape(len(target), -1)
    weight = torch.ones(logits.shape[-1])
    weight[0] = EMPTY_WEIGHT
    present = target > 0
    right = ((logits.argmax(-1) == target) & present).sum() / present.sum().clamp(min=1)
    return F.cross_entropy(logits, target, weight), right.item()


def cell_targets(targets: Tensor) -> Tensor:
    """[n, rows, cols, slots] per patch -> [n, rows/2, cols/2, 4 * slots] per pooled cell."""
    n, rows, cols, slots = targets.shape
    cells = targets.view(n, rows // 2, 2, cols // 2, 2, slots).permute(0, 1, 3, 2, 4, 5)
    return cells.flatten(3)


class VisionEncoderStage:
    """Pages of glyphs that become harder as they are read, then printed lines among them."""

    name = "vision_encoder"

    def __init__(self, talk: Conversation, _: Path, schedule: Schedule) -> None:
        self.schedule, self.g = schedule, talk.model.g.vision
        self.tower = talk.model.image.img_processor
        self.lattice = Lattice.of_crop(self.g)
        torch.manual_seed(3)
        self.heads = ReadingHeads(self.g.n_embd)
        self.difficulty, self.level = 0.0, 0.0

    def groups(self) -> list[Group]:
        weights = [*self.tower.live_parameters(), *self.heads.parameters()]
        return [
            Group([p for p in weights if p.dim() > 1], decay=0.05),
            Group([p for p in weights if p.dim() == 1]),
        ]

    def _picture(self, rng: random.Random, split: Split) -> Picture:
        side, kind = self.g.crop, rng.random() / max(self.difficulty, 1e-6)
        if split != "train":
            return self._asked_about(rng, split)
        if kind < 0.4:
            return self._asked_about(rng, split, self.difficulty)
        if kind < 0.8:
            return word_page(rng, side, self.lattice, self.difficulty)
        return glyph_page(rng, side, self.g.patch, self.difficulty)

    def _asked_about(self, rng: random.Random, split: Split, strength: float = 1.0) -> Picture:
        """A picture as questions have it."""
        side = self.g.crop
        if rng.random() < SHAPES:
            return shapes_picture(rng, split, side, side)[0]
        return printed(rng, split, side, side, self.lattice, strength)

    def batch(self, rng: random.Random, split: Split, n: int) -> CropBatch:
        return crop_batch([self._picture(rng, split) for _ in range(n)], self.g)

    def batches(self, step: int) -> Iterator[CropBatch]:
        rng = random.Random(f"{self.name} {step}")
        for _ in range(BATCHES_PER_BLOCK):
            yield self.batch(rng, "train", CROPS_PER_BATCH)

    def loss(self, batch: CropBatch) -> tuple[Tensor, dict[str, float]]:
        loss, figures = self.heads.losses(self.tower(batch.pixels), batch)
        self.level = 0.95 * self.level + 0.05 * figures["characters"]
        if self.level > 0.75:
            self.difficulty = min(1.0, self.difficulty + 0.002)
        return loss, {**figures, "difficulty": self.difficulty}

    @torch.no_grad()
    def evaluate(self, n: int) -> dict[str, Any]:
        rng, rights = random.Random(7), []
        for _ in range(0, n, 20):
            _, figures = self.heads.losses(*self._features(rng))
            rights.append((figures["characters"], figures["read"]))
        characters, read = np.mean(rights, 0)
        return {"characters": round(float(characters), 4), "read": round(float(read), 4)}

    def _features(self, rng: random.Random) -> tuple[Tensor, CropBatch]:
        batch = self.batch(rng, "dev", 20)
        return self.tower(batch.pixels), batch

    def exported(self) -> Mapping[str, Tensor]:
        prefix = "model.embed_tokens_extend.image_embed.img_processor."
        return {prefix + name: p for name, p in self.tower.named_parameters()}

    def state(self) -> dict[str, Any]:
        heads = self.heads.state_dict()
        return {"difficulty": self.difficulty, "level": self.level, "heads": heads}

    def restore(self, state: dict[str, Any]) -> None:
        self.difficulty, self.level = state["difficulty"], state["level"]


def crop_batch(pictures: list[Picture], g: VisionGeometry) -> CropBatch:
    """Pictures of one crop's size with their targets."""
    pixels = torch.from_numpy(np.stack([np.asarray(p.image) for p in pictures]))
    pixels = (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    characters = [glyph_targets(p.glyphs, g.grid, g.grid, g.patch) for p in pictures]
    said = [cell_classes(p, Lattice.of_crop(g)) for p in pictures]
    stacked = (torch.from_numpy(np.stack(x)) for x in (characters, said))
    return CropBatch(pixels.contiguous(), *stacked)
