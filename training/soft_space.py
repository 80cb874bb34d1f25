"""What a soft token says, in the decoder's own embedding space.

A soft token that stands for a word or a digit is to lie where the decoder has its embedding; one
that says two things at once is the sum of theirs; one that says nothing lies where a special token
does that no text holds (not at zero: the decoder's norms blow up whatever noise is left there).
Both sides of the link are trained against this agreement, apart from each other: the adapter on
ideal soft tokens, without an encoder; the encoder and its projector towards them, without the
decoder.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import SampleModel
from .tokenizer import AUDIO, Tokenizer

BLANK = AUDIO
EMPTY_WEIGHT = 0.2
_STRAIGHT = 3.0  # standard deviations to the right of zero
_RIDGE = 1e-4


def _row(model: SampleModel, tokenizer: Tokenizer, text: str) -> Tensor:
    """The mean of a text's embeddings with and without a space before it."""
    spellings = [tokenizer.encode(s) for s in ([text, f" {text}"] if text.isalpha() else [text])]
    ids = [ids[0] for ids in spellings if len(ids) == 1]
    assert ids, f"{text!r} is not a single token"
    return torch.stack([model.table[i] for i in ids]).mean(0)


class SoftSpace(nn.Module):
    """Classes of texts (0: nothing) and the places they have in the embedding space.

    beside: those of the texts that are said beside another one, in a second slot; the others are
    said in the first.
    """

    rows: Tensor  # [1 + texts, width], the first zero
    blank: Tensor  # [width]
    foreign: Tensor  # [slots, 1 + texts] bool: texts of the other slot

    def __init__(
        self,
        model: SampleModel,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        beside: Collection[str] = (),
    ) -> None:
        super().__init__()
        rows = [torch.zeros(model.table.shape[1]), *(_row(model, tokenizer, t) for t in texts)]
        self.register_buffer("rows", torch.stack(rows).detach())
        self.register_buffer("blank", model.table[tokenizer.specials[BLANK]].detach().clone())
        second = torch.tensor([text in beside for text in texts])
        foreign = torch.stack([second, ~second] if beside else [second])
        self.register_buffer("foreign", F.pad(foreign, (1, 0)))
        self.scale = nn.Parameter(torch.tensor(12.0))
        self.nothing = nn.Parameter(torch.zeros(len(foreign)))

    def ideal(self, classes: Tensor) -> Tensor:
        """Soft tokens that say exactly this. [..., slots] -> [..., width]."""
        said = self.rows[classes].sum(-2)
        return torch.where((classes > 0).any(-1, keepdim=True), said, self.blank)

    def expected(self, shares: Tensor) -> Tensor:
        """The mean soft token where one slot says each class with this share. [..., classes]."""
        return shares @ self.rows + shares[..., :1] * self.blank

    def scores(self, soft: Tensor) -> Tensor:
        """Logits of what soft tokens say, the likelier the nearer. [..., width] -> [..., slots,
        classes]."""
        places = torch.cat([self.blank[None], self.rows[1:]])
        near = self.scale * (soft @ places.T - places.square().sum(-1) / 2)
        said = near[..., None, 1:].masked_fill(self.foreign[:, 1:], -torch.inf)
        nothing = F.pad(near[..., :1], (0, len(self.foreign) - 1)) + self.nothing
        return torch.cat([nothing[..., None], said], -1)

    def distance(self, soft: Tensor, ideal: Tensor) -> Tensor:
        """Distance per soft token in units of an embedding's length: squared where small, plain
        where large (an untrained projector is far away). [...]."""
        squared = (soft - ideal).square().sum(-1) / self.rows[1:].square().sum(-1).mean()
        return 2 * ((1 + squared).sqrt() - 1)

    def loss(self, soft: Tensor, classes: Tensor) -> tuple[Tensor, float]:
        """How far soft tokens are from saying this, and the share of the tokens read off right."""
        scores, target = self.scores(soft).flatten(0, -2), classes.flatten()
        weight = torch.ones(scores.shape[-1])
        weight[0] = EMPTY_WEIGHT
        present = target > 0
        right = ((scores.argmax(-1) == target) & present).sum() / present.sum().clamp(min=1)
        spoken = torch.where(classes[..., 0] > 0, 1.0, EMPTY_WEIGHT)
        distance = (self.distance(soft, self.ideal(classes)) * spoken).sum() / spoken.sum()
        return F.cross_entropy(scores, target, weight) + distance, right.item()


@torch.no_grad()
def fit_projector(
    projector: nn.Sequential, features: Tensor, ideal: Tensor, weight: Tensor
) -> None:
    """Start a projector as the linear map that comes nearest to what its outputs should say.

    The first layer shifts the features to where the GELU is all but straight, the second is the
    weighted least-squares solution. A random start is far away, and on its way here it spoils the
    encoder behind it. features, ideal: [n, width]; weight: [n].
    """
    first, second = projector[0], projector[2]
    spread = features.std(0)
    first.weight.copy_(torch.diag(1 / spread))
    first.bias.copy_(_STRAIGHT - features.mean(0) / spread)
    hidden = F.gelu(first(features))
    rows = torch.cat([hidden, torch.ones(len(hidden), 1)], 1) * weight.sqrt()[:, None]
    ridge = _RIDGE * weight.sum() * torch.eye(rows.shape[1])
    solved = torch.linalg.solve(rows.T @ rows + ridge, rows.T @ (ideal * weight.sqrt()[:, None]))
    second.weight.copy_(solved[:-1].T)
    second.bias.copy_(solved[-1])
