"""The whole sample model: decoder, adapters, encoders; losses and greedy generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .audio import AudioEmbed
from .decoder import Cache, DecoderLayer, LongRope, RMSNorm
from .geometry import Geometry
from .vision import ImageEmbed

IGNORED = -100


@dataclass(frozen=True)
class AnswerLoss:
    """Weighted sum of losses over a batch of answers, and each sample's share of right tokens."""

    total: Tensor
    weight: Tensor
    right: Tensor  # [batch]

    @property
    def loss(self) -> Tensor:
        return self.total / self.weight

    @property
    def accuracy(self) -> float:
        return self.right.mean().item()


class Extension(nn.Module):
    """Where pictures and clips enter."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.image_embed = ImageEmbed(g.vision, g.decoder.n_embd)
        self.audio_embed = AudioEmbed(g.audio, g.decoder.n_embd)


class Backbone(nn.Module):
    """Everything under the name ``model`` in the checkpoint."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(g.decoder.n_vocab, g.decoder.n_embd)
        self.embed_tokens_extend = Extension(g)
        self.layers = nn.ModuleList(
            DecoderLayer(g.decoder, g.adapter) for _ in range(g.decoder.n_layer)
        )
        self.norm = RMSNorm(g.decoder.n_embd, g.decoder.eps)


class SampleModel(nn.Module):
    """A small Phi-4-multimodal; the state dict has the original checkpoint's names."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.g = g
        self.model = Backbone(g)
        self.rope = LongRope(g.decoder)

    @property
    def image(self) -> ImageEmbed:
        return self.model.embed_tokens_extend.image_embed

    @property
    def audio(self) -> AudioEmbed:
        return self.model.embed_tokens_extend.audio_embed

    @property
    def table(self) -> Tensor:
        """The token embeddings, tied with the output."""
        return self.model.embed_tokens.weight

    def embed(self, ids: Sequence[int]) -> Tensor:
        return self.table[torch.tensor(ids, dtype=torch.long)]

    def hidden(self, embeddings: Tensor, adapter: str | None) -> Tensor:
        """[batch, time, width], padded on the right -> normed hidden states."""
        rotation = self.rope(torch.arange(embeddings.shape[1]), embeddings.shape[1])
        x = embeddings
        for layer in self.model.layers:
            x = layer(x, rotation, adapter)
        return self.model.norm(x)

    def logits(self, embeddings: Tensor, adapter: str | None = None) -> Tensor:
        return F.linear(self.hidden(embeddings, adapter), self.table)

    def answer_loss(self, embeddings: Tensor, labels: Tensor, adapter: str | None) -> AnswerLoss:
        """labels: [batch, time], IGNORED outside the answers.

        A sample weighs as the square root of its answer's length: between a mean over tokens, in
        which long answers (calls) dominate, and one over samples, in which short ones do.
        """
        hidden, target = self.hidden(embeddings, adapter)[:, :-1], labels[:, 1:]
        kept = target != IGNORED
        logits = F.linear(hidden[kept], self.table)
        lengths = kept.sum(1, keepdim=True).float()
        weight = lengths.rsqrt().expand_as(target)[kept]
        losses = F.cross_entropy(logits, target[kept], reduction="none")
        right = torch.zeros_like(target, dtype=torch.float)
        right[kept] = (logits.argmax(-1) == target[kept]).float()
        total = (losses * weight).sum()
        return AnswerLoss(total, weight.sum(), right.sum(1) / lengths[:, 0])

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Tensor], adapter: str | None, stop: int, n_max: int = 48
    ) -> list[list[int]]:
        """Greedy answers to prompts given as embeddings [time, width], one batch."""
        lengths = torch.tensor([len(p) for p in prompts])
        x = nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
        time = x.shape[1]
        # Rows of one batch share the factors; no prompt here comes near the original context.
        rotation = self.rope(torch.arange(time), time + n_max)
        caches: list[list[Cache]] = [[] for _ in self.model.layers]
        for layer, cache in zip(self.model.layers, caches, strict=True):
            x = layer(x, rotation, adapter, cache)
        x = x[torch.arange(len(prompts)), lengths - 1][:, None]
        valid = torch.arange(time)[None] < lengths[:, None]
        answers: list[list[int]] = [[] for _ in prompts]
        running = torch.ones(len(prompts), dtype=torch.bool)
        for step in range(n_max):
            token = F.linear(self.model.norm(x[:, 0]), self.table).argmax(-1)
            running &= token != stop
            if not running.any():
                break
            for row in running.nonzero().flatten().tolist():
                answers[row].append(int(token[row]))
            valid = torch.cat([valid, torch.ones(len(prompts), 1, dtype=torch.bool)], 1)
            cos, sin = self.rope(lengths[:, None] + step, time + n_max)
            x = self.table[token][:, None]
            for layer, cache in zip(self.model.layers, caches, strict=True):
                x = layer(x, (cos[:, None], sin[:, None]), adapter, cache, valid[:, None, None])
        return answers


def pad_answers(
    prompts: Sequence[Tensor], answers: Sequence[Sequence[int]], model: SampleModel
) -> tuple[Tensor, Tensor]:
    """Embeddings and labels of a batch, padded on the right."""
    rows = [torch.cat([p, model.embed(a)]) for p, a in zip(prompts, answers, strict=True)]
    labels = torch.full((len(rows), max(map(len, rows))), IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), labels
