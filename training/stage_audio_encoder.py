"""Stage 3a: the conformer alone, on spoken units: exact frame labels first, CTC more and more."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .audio import AudioEncoder
from .clips import UNITS, Clips, Utterance, grouped, join_items, silence
from .loop import Group, Schedule
from .metrics import edit_distance
from .prompting import Conversation
from .speech_data import SpeechBatch, make_batch

TOKENS_PER_BATCH = 560
BATCHES_PER_BLOCK = 25
PREFIX = "model.embed_tokens_extend.audio_embed.encoder."


class UnitHeads(nn.Module):
    """Frame classifier and CTC classifier over spoken units; thrown away later."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frame = nn.Linear(width, len(UNITS) + 1)
        self.ctc = nn.Linear(width, len(UNITS) + 1)

    def ctc_loss(self, x: Tensor, targets: list[list[int]]) -> Tensor:
        scores = self.ctc(x).log_softmax(-1).transpose(0, 1)
        lengths = torch.tensor([len(t) for t in targets])
        flat = torch.tensor([unit for t in targets for unit in t], dtype=torch.long)
        times = torch.full((len(targets),), scores.shape[0])
        return F.ctc_loss(scores, flat, times, lengths, zero_infinity=True)

    def spoken(self, x: Tensor) -> list[list[int]]:
        """Best path of each clip, repeats and blanks removed."""
        best = self.ctc(x).argmax(-1).tolist()
        return [[b for a, b in zip([0, *row], row, strict=False) if b and b != a] for row in best]


class AudioEncoderStage:
    """Single items, then joined items, then phrases, each from when the last is learnt."""

    name = "audio_encoder"

    def __init__(self, talk: Conversation, run_dir: Path, schedule: Schedule) -> None:
        self.schedule, self.encoder = schedule, talk.model.audio.encoder
        torch.manual_seed(4)
        self.heads = UnitHeads(talk.model.g.audio.n_embd)
        self.items = Clips(run_dir, "train", "item")
        self.phrases = Clips(run_dir, "train", "phrase")
        self.questions = Clips(run_dir, "train", "question")
        self.held_out = Clips(run_dir, "dev", "phrase")
        self.difficulty, self.level = 0.0, 0.0
        self._fit_normalisation()

    def _fit_normalisation(self) -> None:
        rng = random.Random(3)
        batch = make_batch([self.phrases.draw(rng) for _ in range(64)], rng, 0)
        mel = batch.mel.flatten(0, 1)
        self.encoder.encoder_embedding.global_mean.copy_(mel.mean(0))
        self.encoder.encoder_embedding.global_invstd.copy_(1 / mel.std(0))

    def groups(self) -> list[Group]:
        weights = [*self.encoder.parameters(), *self.heads.parameters()]
        return [
            Group([p for p in weights if p.dim() > 1], decay=0.02),
            Group([p for p in weights if p.dim() == 1]),
        ]

    def _utterance(self, rng: random.Random) -> Utterance:
        """difficulty 0: items; 1: phrases for the most part."""
        if rng.random() < 0.02:
            return silence(rng)
        if rng.random() < self.difficulty:
            if rng.random() < 0.75 * self.difficulty:
                return (self.phrases if rng.random() < 0.8 else self.questions).draw(rng)
            return join_items(self.items, rng, rng.randint(2, 5))
        return self.items.draw(rng)

    def batches(self, step: int) -> Iterator[SpeechBatch]:
        rng = random.Random(f"{self.name} {step}")
        utterances = [self._utterance(rng) for _ in range(400)]
        strength = 0.4 + 0.6 * self.difficulty
        for group in grouped(utterances, rng, TOKENS_PER_BATCH)[:BATCHES_PER_BLOCK]:
            yield make_batch(group, rng, strength)

    def loss(self, batch: SpeechBatch) -> tuple[Tensor, dict[str, float]]:
        x = self.encoder(batch.mel)
        frame = self.heads.frame(x)
        frame_loss = F.cross_entropy(frame.flatten(0, 1), batch.frame_units.flatten())
        ctc_loss = self.heads.ctc_loss(x, batch.units)
        present = batch.frame_units > 0
        right = (
            ((frame.argmax(-1) == batch.frame_units) & present).sum() / present.sum().clamp(min=1)
        ).item()
        self.level = 0.95 * self.level + 0.05 * right
        if self.level > 0.5:
            self.difficulty = min(1.0, self.difficulty + 0.004)
        loss = (0.15 + 0.85 * self.difficulty) * ctc_loss + (2 - 1.6 * self.difficulty) * frame_loss
        figures = {"ctc": ctc_loss.item(), "frame": frame_loss.item(), "right": right}
        return loss, {**figures, "difficulty": self.difficulty}

    @torch.no_grad()
    def evaluate(self, n: int) -> dict[str, Any]:
        return evaluate_units(self.encoder, self.heads, self.held_out, 2 * n)

    def exported(self) -> Mapping[str, Tensor]:
        return {PREFIX + name: t for name, t in self.encoder.state_dict().items()}

    def state(self) -> dict[str, Any]:
        heads = self.heads.state_dict()
        return {"difficulty": self.difficulty, "level": self.level, "heads": heads}

    def restore(self, state: dict[str, Any]) -> None:
        self.difficulty, self.level = state["difficulty"], state["level"]


@torch.no_grad()
def evaluate_units(encoder: AudioEncoder, heads: UnitHeads, clips: Clips, n: int) -> dict[str, Any]:
    """Error rate of the throw-away CTC head over units, in all and by voice."""
    wrong: dict[str, int] = defaultdict(int)
    said: dict[str, int] = defaultdict(int)
    rng = random.Random(5)
    chosen = [clips.get(i) for i in range(min(n, len(clips)))]
    for group in grouped(chosen, rng, 2 * TOKENS_PER_BATCH):
        batch = make_batch(group, rng, 0)
        for utterance, target, heard in zip(
            group, batch.units, heads.spoken(encoder(batch.mel)), strict=True
        ):
            wrong[utterance.voice] += edit_distance(target, heard)
            said[utterance.voice] += len(target)
    voices = {voice: round(wrong[voice] / said[voice], 3) for voice in sorted(said)}
    return {"unit_error": round(sum(wrong.values()) / sum(said.values()), 4), "voices": voices}
