"""Stage 4: a spoken question about a picture: vision adapter, "vision" audio projection.

The encoders stay as they are; the second audio projection, the picture projector and the vision
adapter learn, with typed questions among the spoken ones so that nothing is lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .clips import SpokenQuestions
from .evaluate import evaluate_pictures, evaluate_spoken_questions
from .initial import adapter_parameters
from .loop import Group, Schedule
from .picture_batch import PictureBatch, draw_batch
from .prompting import Conversation
from .question_data import Mixture
from .speech_data import make_batch

PATCHES_PER_BATCH = 1900
BATCHES_PER_BLOCK = 20
ADAPTER = "vision"
SPOKEN = 0.65
MIXTURE = Mixture(shapes=0.55, counts=0.75, prices=0.5)  # more of what it still gets wrong


@dataclass(frozen=True)
class MixedBatch:
    """Pictures with their questions typed, or with the questions as clips."""

    pictures: PictureBatch
    mel: Tensor | None


class MixedStage:
    """Pictures with typed and with spoken questions."""

    name = "mixed"

    def __init__(self, talk: Conversation, run_dir: Path, schedule: Schedule) -> None:
        self.talk, self.model, self.schedule = talk, talk.model, schedule
        self.spoken = SpokenQuestions(run_dir, "train")
        self.held_out = SpokenQuestions(run_dir, "dev")
        projections = self.model.audio.audio_projection
        projections["vision"].load_state_dict(projections["speech"].state_dict())

    def groups(self) -> list[Group]:
        clip = list(self.model.audio.audio_projection["vision"].parameters())
        picture = list(self.model.image.img_projection.parameters())
        adapter = adapter_parameters(self.model, ADAPTER)
        return [Group(clip), Group(picture, 0.5), Group(adapter)]

    def batches(self, step: int) -> Iterator[MixedBatch]:
        rng = random.Random(f"{self.name} {step}")
        for _ in range(BATCHES_PER_BLOCK):
            pictures = draw_batch(
                rng, "train", self.model.g.vision, PATCHES_PER_BATCH, self.spoken.can_say, MIXTURE
            )
            if rng.random() > SPOKEN:
                yield MixedBatch(pictures, None)
                continue
            clips = [self.spoken.say(q.text, rng) for q in pictures.questions]
            yield MixedBatch(pictures, make_batch(clips, rng, 1.0).mel)

    @torch.no_grad()
    def _features(self, batch: MixedBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        pictures = batch.pictures
        seen = self.model.image.features(pictures.pixels, pictures.mask, pictures.grid)
        return *seen, None if batch.mel is None else self.model.audio.encoder(batch.mel)

    def loss(self, batch: MixedBatch) -> tuple[Tensor, dict[str, float]]:
        whole, sub, heard = self._features(batch)
        media, questions = [self.model.image.arrange(whole, sub)], batch.pictures.questions
        if heard is not None:
            media.append(self.model.audio.audio_projection["vision"](heard))
        texts = [q.text if heard is None else "" for q in questions]
        prompts = self.talk.user(media, texts)
        targets = self.talk.targets(prompts, [q.answer for q in questions])
        answer = self.model.answer_loss(*targets, ADAPTER)
        kind = "typed" if heard is None else "spoken"
        return answer.loss, {kind: answer.loss.item(), f"right_{kind}": answer.accuracy}

    def evaluate(self, n: int) -> dict[str, Any]:
        return {
            "typed": evaluate_pictures(self.talk, n, "dev"),
            "spoken": evaluate_spoken_questions(self.talk, self.held_out, n, "dev"),
        }

    def exported(self) -> Mapping[str, Tensor]:
        return {
            name: p
            for name, p in self.model.named_parameters()
            if "img_projection" in name
            or "audio_projection.vision" in name
            or (f".{ADAPTER}.weight" in name and "lora_" in name)
        }

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing beyond the weights."""
