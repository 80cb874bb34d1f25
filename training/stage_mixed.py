"""Stage 4: a spoken question about a picture: vision adapter, "vision" audio projection.

As in the real model the encoders stay as they are; only the second audio projection and the
vision adapter learn, with typed questions among the spoken ones so that nothing is lost.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .initial import adapter_parameters
from .loop import Group, Schedule
from .model import SampleModel, pad_answers
from .speech_data import Clips, Utterance, make_batch
from .stage_vision import PATCHES_PER_BATCH, SIZES, PictureBatch, VisionStage
from .tokenizer import Tokenizer
from .vocabulary import Split

ADAPTER = "vision"
SPOKEN = 0.7


@dataclass(frozen=True)
class MixedBatch:
    """Pictures with their questions typed, or with the questions as clips."""

    pictures: PictureBatch
    mel: Tensor | None


def spoken_form(question: str) -> str:
    """A question as it is spoken: lower case, no punctuation."""
    return question.lower().rstrip("?.")


class SpokenQuestions:
    """Clips of one split that say a question about a picture, by what they say."""

    def __init__(self, run_dir: Path, split: Split) -> None:
        self.clips = Clips(run_dir, split, "question")
        self.by_text: dict[str, list[int]] = defaultdict(list)
        for index, text in enumerate(self.clips.texts):
            self.by_text[text].append(index)

    def say(self, question: str, rng: random.Random) -> Utterance:
        """A clip that says the question."""
        return self.clips.get(rng.choice(self.by_text[spoken_form(question)]))

    def knows(self, question: str) -> bool:
        return spoken_form(question) in self.by_text


class MixedStage:
    """Pictures with typed and with spoken questions."""

    name = "mixed"

    def __init__(
        self, model: SampleModel, tokenizer: Tokenizer, run_dir: Path, schedule: Schedule
    ) -> None:
        self.model, self.tokenizer, self.schedule = model, tokenizer, schedule
        self.vision = VisionStage(model, tokenizer, run_dir, schedule)
        self.spoken = {split: SpokenQuestions(run_dir, split) for split in ("train", "dev")}
        projections = model.audio.audio_projection
        projections["vision"].load_state_dict(projections["speech"].state_dict())

    def groups(self) -> list[Group]:
        projection = list(self.model.audio.audio_projection["vision"].parameters())
        image = list(self.model.image.img_projection.parameters())
        return [
            Group(projection),
            Group(image, 0.5),
            Group(adapter_parameters(self.model, ADAPTER), 1.0),
        ]

    def batches(self, step: int) -> Iterator[MixedBatch]:
        rng = random.Random(f"{self.name} {step}")
        for _ in range(20):
            yield self.batch(rng, "train", rng.random() < SPOKEN)

    def batch(self, rng: random.Random, split: Split, spoken: bool) -> MixedBatch:
        size = rng.choices(list(SIZES), list(SIZES.values()))[0]
        pictures = self.vision.batch(rng, split, size, PATCHES_PER_BATCH)
        source = self.spoken["train" if split == "train" else "dev"]
        if not spoken or not all(source.knows(q.question) for q in pictures.questions):
            return MixedBatch(pictures, None)
        clips = [source.say(q.question, rng) for q in pictures.questions]
        return MixedBatch(pictures, make_batch(clips, rng, float(split == "train")).mel)

    def prompts(self, batch: MixedBatch) -> list[Tensor]:
        """Embedded prompts: picture, then the question typed or spoken."""
        with torch.no_grad():
            features = self.model.image.features(
                batch.pictures.pixels, batch.pictures.mask, batch.pictures.grid
            )
        soft = self.model.image.arrange(*features)
        if batch.mel is None:
            return self.vision.prompts(soft, batch.pictures.questions)
        with torch.no_grad():
            heard = self.model.audio.encoder(batch.mel)
        clips = self.model.audio.audio_projection["vision"](heard)
        before = self.model.embed(self.tokenizer.encode("<|user|>"))
        after = self.model.embed(self.tokenizer.encode("<|end|><|assistant|>"))
        return [torch.cat([before, s, c, after]) for s, c in zip(soft, clips, strict=True)]

    def loss(self, batch: MixedBatch) -> tuple[Tensor, dict[str, float]]:
        texts = [q.answer for q in batch.pictures.questions]
        answers = [[*self.tokenizer.encode(text), self.tokenizer.end] for text in texts]
        padded = pad_answers(self.prompts(batch), answers, self.model)
        result = self.model.answer_loss(*padded, ADAPTER)
        kind = "typed" if batch.mel is None else "spoken"
        return result.loss, {kind: result.loss.item(), f"right_{kind}": result.accuracy}

    @torch.no_grad()
    def evaluate(self, n: int) -> dict[str, Any]:
        rng, right = random.Random(8), {"typed": [], "spoken": []}
        while min(map(len, right.values())) < n:
            batch = self.batch(rng, "dev", len(right["spoken"]) <= len(right["typed"]))
            ids = self.model.generate(self.prompts(batch), ADAPTER, self.tokenizer.end)
            kind = "typed" if batch.mel is None else "spoken"
            right[kind] += [
                self.tokenizer.decode(said) == q.answer
                for said, q in zip(ids, batch.pictures.questions, strict=True)
            ]
        return {kind: round(float(np.mean(values)), 4) for kind, values in right.items()}

    def exported(self) -> Mapping[str, Tensor]:
        return {
            name: p
            for name, p in self.model.named_parameters()
            if "img_projection" in name
            or "audio_projection.vision" in name
            or name.endswith((f"lora_A.{ADAPTER}.weight", f"lora_B.{ADAPTER}.weight"))
        }

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        assert not state
