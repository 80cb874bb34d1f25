"""Stage 3b: conformer, "speech" projection and speech adapter; the decoder is frozen.

The link from the encoder to the decoder is made frame by frame: what the throw-away CTC head
hears in a frame is what the soft token has to say in the decoder's embedding space.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .anchor import Anchor, class_rows
from .initial import adapter_parameters
from .loop import Group, Schedule
from .metrics import edit_distance, spoken_words
from .model import SampleModel, pad_answers
from .speech_data import Clips, SpeechBatch, Utterance, join_items, joined, make_batch, silence
from .speech_synthesis import unit_words
from .stage_audio_encoder import UnitHeads, grouped
from .tokenizer import AUDIO, Tokenizer
from .vocabulary import prompt

TOKENS_PER_BATCH = 420
BATCHES_PER_BLOCK = 25
ADAPTER = "speech"


class SpeechStage:
    """Transcripts of phrases, joined items, several utterances with pauses, and silence."""

    name = "speech"

    def __init__(
        self, model: SampleModel, tokenizer: Tokenizer, run_dir: Path, schedule: Schedule
    ) -> None:
        self.model, self.tokenizer, self.schedule = model, tokenizer, schedule
        self.audio = model.audio
        torch.manual_seed(6)
        self.heads = UnitHeads(model.g.audio.n_embd)
        earlier = run_dir / "audio_encoder" / "checkpoint.pt"
        self.heads.load_state_dict(torch.load(earlier, weights_only=False)["state"]["heads"])
        self.anchor = Anchor(class_rows(model, tokenizer, AUDIO, unit_words()))
        self.items = Clips(run_dir, "train", "item")
        self.phrases = Clips(run_dir, "train", "phrase")
        self.questions = Clips(run_dir, "train", "question")
        self.held_out = Clips(run_dir, "dev", "phrase")

    def groups(self) -> list[Group]:
        encoder = list(self.audio.encoder.parameters())
        projection = list(self.audio.audio_projection[ADAPTER].parameters())
        aids = [*self.heads.parameters(), *self.anchor.parameters()]
        adapter = adapter_parameters(self.model, ADAPTER)
        return [Group(encoder, 0.25), Group(projection), Group(adapter, 1.5), Group(aids)]

    def _phrase(self, rng: random.Random) -> Utterance:
        return self.phrases.get(rng.randrange(len(self.phrases)))

    def _utterance(self, rng: random.Random) -> Utterance:
        kind = rng.random()
        if kind < 0.03:
            return silence(rng)
        if kind < 0.15:
            return self.items.get(rng.randrange(len(self.items)))
        if kind < 0.3:
            return join_items(self.items, rng, rng.randint(2, 6))
        if kind < 0.36:
            parts = [self._phrase(rng) for _ in range(rng.randint(2, 5))]
            return joined(parts, [rng.randint(4000, 24000) for _ in parts])
        if kind < 0.45:
            return self.questions.get(rng.randrange(len(self.questions)))
        return self._phrase(rng)

    def batches(self, step: int) -> Iterator[SpeechBatch]:
        rng = random.Random(f"{self.name} {step}")
        utterances = [self._utterance(rng) for _ in range(400)]
        for group in grouped(utterances, rng, TOKENS_PER_BATCH)[:BATCHES_PER_BLOCK]:
            yield make_batch(group, rng, 1.0)

    def prompts(self, soft: Tensor) -> list[Tensor]:
        """Embedded prompts, the clip before the request."""
        before = self.model.embed(self.tokenizer.encode("<|user|>"))
        request = f"{prompt('clip')}<|end|><|assistant|>"
        after = self.model.embed(self.tokenizer.encode(request))
        return [torch.cat([before, s, after]) for s in soft]

    def loss(self, batch: SpeechBatch) -> tuple[Tensor, dict[str, float]]:
        x = self.audio.encoder(batch.mel)
        soft = self.audio.audio_projection[ADAPTER](x)
        ctc = self.heads.ctc_loss(x, batch.units)
        heard = self.heads.ctc(x).detach().softmax(-1).flatten(0, 1)
        said = self.anchor(soft)[..., 0, :].log_softmax(-1).flatten(0, 1)
        link = F.kl_div(said, heard, reduction="batchmean")
        answers = [[*self.tokenizer.encode(t), self.tokenizer.end] for t in batch.texts]
        padded = pad_answers(self.prompts(soft), answers, self.model)
        answer = self.model.answer_loss(*padded, ADAPTER)
        figures = {"answer": answer.loss.item(), "right": answer.accuracy, "ctc": ctc.item()}
        return answer.loss + 0.3 * ctc + link, {**figures, "link": link.item()}

    @torch.no_grad()
    def transcripts(self, batch: SpeechBatch, adapter: str | None = ADAPTER) -> list[str]:
        """What the model writes."""
        prompts = self.prompts(self.audio(batch.mel, ADAPTER))
        ids = self.model.generate(prompts, adapter, self.tokenizer.end)
        return [self.tokenizer.decode(i) for i in ids]

    def evaluate(self, n: int, adapter: str | None = ADAPTER) -> dict[str, Any]:
        """Word error rate on development clips, in all and by voice."""
        return word_errors(self, self.held_out, 2 * n, adapter)

    def exported(self) -> Mapping[str, Tensor]:
        prefix = "model.embed_tokens_extend.audio_embed."
        return {
            **{prefix + name: t for name, t in self.audio.state_dict().items()},
            **{n: p for n, p in self.model.named_parameters() if f"lora_A.{ADAPTER}" in n},
            **{n: p for n, p in self.model.named_parameters() if f"lora_B.{ADAPTER}" in n},
        }

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        assert not state


def word_errors(stage: SpeechStage, clips: Clips, n: int, adapter: str | None) -> dict[str, Any]:
    """Word error rate of n clips, exact transcripts, the rate by voice, a few wrong ones."""
    errors: dict[str, int] = defaultdict(int)
    said: dict[str, int] = defaultdict(int)
    rng, exact, wrong = random.Random(5), 0, []
    chosen = [clips.get(i) for i in range(min(n, len(clips)))]
    for group in grouped(chosen, rng, 2 * TOKENS_PER_BATCH):
        for utterance, text in zip(
            group, stage.transcripts(make_batch(group, rng, 0), adapter), strict=True
        ):
            target = spoken_words(utterance.text)
            errors[utterance.voice] += edit_distance(target, spoken_words(text))
            said[utterance.voice] += len(target)
            exact += text == utterance.text
            if text != utterance.text and len(wrong) < 5:
                wrong.append((utterance.text, text))
    return {
        "word_error": round(sum(errors.values()) / sum(said.values()), 4),
        "exact": round(exact / len(chosen), 4),
        "voices": {voice: round(errors[voice] / said[voice], 3) for voice in sorted(said)},
        "wrong": wrong,
    }
