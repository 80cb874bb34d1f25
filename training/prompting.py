"""Embedded prompts of every kind, media before text, and the model's answers to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .model import SampleModel, pad_answers
from .picture_batch import PictureBatch
from .tokenizer import Tokenizer

CLOSING = "<|end|><|assistant|>"


class Conversation:
    """A model and its tokenizer: turns media and text into prompts, and ids into text."""

    def __init__(self, model: SampleModel, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer

    def embed(self, text: str) -> Tensor:
        """Embeddings of text with its special tokens, [tokens, width]."""
        return self.model.embed(self.tokenizer.encode(text))

    def user(self, media: Sequence[Sequence[Tensor]], texts: Sequence[str]) -> list[Tensor]:
        """One user turn per text; media: for each kind of medium the soft tokens of every turn."""
        opening = self.embed("<|user|>")
        return [
            torch.cat([opening, *(kind[n] for kind in media), self.embed(text + CLOSING)])
            for n, text in enumerate(texts)
        ]

    def look(self, batch: PictureBatch) -> Tensor:
        """Soft tokens of the pictures of a batch."""
        return self.model.image(batch.pixels, batch.mask, batch.grid)

    def listen(self, mel: Tensor, projection: str) -> Tensor:
        """Soft tokens of clips."""
        return self.model.audio(mel, projection)

    def targets(self, prompts: list[Tensor], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Embeddings and labels for the answer loss; every answer is closed by the end token."""
        ids = [[*self.tokenizer.encode(text), self.tokenizer.end] for text in answers]
        return pad_answers(prompts, ids, self.model)

    def answer(self, prompts: list[Tensor], adapter: str | None) -> list[str]:
        """Greedy answers."""
        ids = self.model.generate(prompts, adapter, self.tokenizer.end)
        return [self.tokenizer.decode(i) for i in ids]
