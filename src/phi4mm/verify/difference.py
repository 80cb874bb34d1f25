"""How far what was computed is from what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phi4mm.errors import ModelFileError
from phi4mm.verify.case import Array


@dataclass(frozen=True, slots=True)
class StageError:
    """A stage of the encoders.

    Attributes:
        name: the stage.
        max_error: largest absolute difference.
        scale: root mean square of the reference.
        relative: root mean square of the differences, over the scale.
    """

    name: str
    max_error: float
    scale: float
    relative: float


@dataclass(frozen=True, slots=True)
class AnswerError:
    """A prompt.

    Attributes:
        name: the case.
        n_tokens: of the prompt.
        max_error: largest absolute difference of logits: after every token, or after the last one
            where the reference was recorded.
        cosine: of the logits after the last token.
        n_agreed: greedy tokens that the bundle and the reference both choose.
        n_greedy: greedy tokens compared.
    """

    name: str
    n_tokens: int
    max_error: float
    cosine: float
    n_agreed: int
    n_greedy: int


def rows_of(pieces: Sequence[Array]) -> Array:
    """A stage that was computed in pieces, (n_rows, width)."""
    return np.concatenate([piece.reshape(-1, piece.shape[-1]) for piece in pieces])


def stage_error(name: str, found: Array, right: Array) -> StageError:
    """Compare rows; patches without a part in the result are rows of NaN on our side.

    The last attention chunk of sound is filled up on one side: what is beyond the other is left
    out.

    Raises:
        ModelFileError: what was computed is not numbers.
    """
    n = min(len(found), len(right))
    computed = ~np.isnan(found[:n]).all(axis=1)
    if not (computed.any() and np.isfinite(found[:n][computed]).all()):
        raise ModelFileError(f"stage {name}: the bundle computes NaN or infinity: convert it again")
    difference = (found[:n] - right[:n])[computed].astype(np.float64)
    scale = float(np.sqrt((right[:n][computed].astype(np.float64) ** 2).mean()))
    rms = float(np.sqrt((difference**2).mean()))
    return StageError(name, float(np.abs(difference).max()), scale, rms / scale)


def cosine(a: Array, b: Array) -> float:
    """Cosine of the angle between two vectors."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))
