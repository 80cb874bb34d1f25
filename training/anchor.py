"""A throw-away classifier in the decoder's own embedding space.

It pulls a projector's output towards the embeddings of what is written or said there, so that
the frozen decoder finds features of a form it already knows; empty places are pulled towards the
placeholder token, which means nothing to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .model import SampleModel
from .tokenizer import Tokenizer


def class_rows(
    model: SampleModel, tokenizer: Tokenizer, filler: str, texts: Sequence[str]
) -> Tensor:
    """Embeddings of the filler and of each text: the mean with and without a space before it."""

    def row(text: str) -> Tensor:
        spellings = [text] if not text.isalpha() else [text, f" {text}"]
        return torch.stack([model.table[tokenizer.encode(s)[0]] for s in spellings]).mean(0)

    rows = [model.table[tokenizer.specials[filler]], *(row(text) for text in texts)]
    return torch.stack(rows).detach()


class Anchor(nn.Module):
    """Scores of soft tokens against fixed rows; later slots are read through maps of their own.

    A soft token can hold several characters of a number. The first is read as it is, each later
    one through a linear map.
    """

    def __init__(self, rows: Tensor, n_later: int = 0) -> None:
        super().__init__()
        self.register_buffer("rows", rows)
        self.scale = nn.Parameter(torch.tensor(12.0))
        self.empty = nn.Parameter(torch.zeros(1))
        width = rows.shape[1]
        self.later = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(n_later))

    def forward(self, soft: Tensor) -> Tensor:
        """[..., width] -> [..., 1 + later slots, classes]."""
        seen = torch.stack([soft, *(read(soft) for read in self.later)], -2)
        scores = self.scale * (seen @ self.rows.T)
        return torch.cat([scores[..., :1] + self.empty, scores[..., 1:]], -1)
