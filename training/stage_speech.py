"""Stage 3b: "speech" projection and speech adapter; conformer and decoder are frozen.

The link from the encoder to the decoder is made frame by frame: what the throw-away CTC head
hears in a frame is what the soft token has to say, and the adapter knows how to read it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .clips import Clips, Utterance, grouped, join_items, joined, silence
from .evaluate import evaluate_speech
from .initial import adapter_parameters
from .loop import Group, Schedule, saved_heads
from .prompting import Conversation
from .soft_space import EMPTY_WEIGHT, SoftSpace, fit_projector
from .speech_data import SpeechBatch, make_batch
from .speech_synthesis import unit_words
from .stage_audio_encoder import UnitHeads
from .vocabulary import prompt

TOKENS_PER_BATCH = 420
BATCHES_PER_BLOCK = 25
ADAPTER = "speech"
LINKING = 0.4  # share of the steps in which the projection learns alone, without the decoder


class SpeechStage:
    """Transcripts of phrases, joined items, several utterances with pauses, and silence."""

    name = "speech"

    def __init__(self, talk: Conversation, run_dir: Path, schedule: Schedule) -> None:
        self.talk, self.model, self.schedule = talk, talk.model, schedule
        self.audio = talk.model.audio
        torch.manual_seed(6)
        self.heads = UnitHeads(self.model.g.audio.n_embd)
        self.heads.load_state_dict(saved_heads(run_dir, "audio_encoder"))
        self.space = SoftSpace(self.model, talk.tokenizer, unit_words())
        self.items = Clips(run_dir, "train", "item")
        self.phrases = Clips(run_dir, "train", "phrase")
        self.questions = Clips(run_dir, "train", "question")
        self.held_out = Clips(run_dir, "dev", "phrase")
        self.step = 0
        self._fit()

    @torch.no_grad()
    def _fit(self) -> None:
        """Start the projector near to what it is to say."""
        features, heard = [], []
        for batch in self.batches(0):
            x = self.audio.encoder(batch.mel).flatten(0, 1)
            features.append(x)
            heard.append(self.heads.ctc(x).softmax(-1))
        x, shares = torch.cat(features), torch.cat(heard)
        weight = EMPTY_WEIGHT + 1 - shares[:, 0]
        fit_projector(self.audio.audio_projection[ADAPTER], x, self.space.expected(shares), weight)

    def groups(self) -> list[Group]:
        projection = list(self.audio.audio_projection[ADAPTER].parameters())
        adapter = adapter_parameters(self.model, ADAPTER)
        return [Group(projection), Group(adapter), Group(list(self.space.parameters()))]

    def _utterance(self, rng: random.Random) -> Utterance:
        kind = rng.random()
        if kind < 0.03:
            return silence(rng)
        if kind < 0.15:
            return self.items.draw(rng)
        if kind < 0.3:
            return join_items(self.items, rng, rng.randint(2, 6))
        if kind < 0.45:
            parts = [self.phrases.draw(rng) for _ in range(rng.randint(2, 7))]
            return joined(parts, [rng.randint(4000, 24000) for _ in parts])
        return (self.questions if kind < 0.53 else self.phrases).draw(rng)

    def batches(self, step: int) -> Iterator[SpeechBatch]:
        rng, self.step = random.Random(f"{self.name} {step}"), step
        utterances = [self._utterance(rng) for _ in range(400)]
        for group in grouped(utterances, rng, TOKENS_PER_BATCH)[:BATCHES_PER_BLOCK]:
            yield make_batch(group, rng, 1.0)

    def loss(self, batch: SpeechBatch) -> tuple[Tensor, dict[str, float]]:
        with torch.no_grad():
            x = self.audio.encoder(batch.mel)
            ctc = self.heads.ctc_loss(x, batch.units)
            heard = self.heads.ctc(x).softmax(-1)
        soft = self.audio.audio_projection[ADAPTER](x)
        said = self.space.scores(soft)[..., 0, :].log_softmax(-1)
        link = F.kl_div(said.flatten(0, 1), heard.flatten(0, 1), reduction="batchmean")
        distance = self.space.distance(soft, self.space.expected(heard)).mean()
        figures = {"ctc": ctc.item(), "link": link.item(), "distance": distance.item()}
        if self.step < LINKING * self.schedule.steps:
            return link + distance, figures
        prompts = self.talk.user([soft], [prompt("clip")] * len(soft))
        answer = self.model.answer_loss(*self.talk.targets(prompts, batch.texts), ADAPTER)
        figures.update(answer=answer.loss.item(), right=answer.accuracy)
        return answer.loss + 0.3 * (link + distance), figures

    def evaluate(self, n: int) -> dict[str, Any]:
        return evaluate_speech(self.talk, self.held_out, 2 * n)

    def exported(self) -> Mapping[str, Tensor]:
        prefix = "model.embed_tokens_extend.audio_embed."
        weights = {prefix + name: t for name, t in self.audio.state_dict().items()}
        for name, p in self.model.named_parameters():
            if f".{ADAPTER}.weight" in name and "lora_" in name:
                weights[name] = p
        return weights

    def state(self) -> dict[str, Any]:
        return {"heads": self.heads.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The heads are among the weights that the loop restores."""
