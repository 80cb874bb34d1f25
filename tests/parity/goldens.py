"""What the reference answered, and how far an answer is from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from oracle.cases import stride

FOLDER = Path(__file__).parents[1] / "goldens"
NAMES = ("tiny", "heads")
# Bounds of parity with F32 weights and F32 cache.
MAX_LOGIT_ERROR = 5e-4
MAX_FEATURE_ERROR = 1e-4
# Two logits closer than this may change places.
CLEAR_LEAD = 1e-3


@dataclass(frozen=True)
class Golden:
    """One prompt and the reference's answer to it.

    Attributes:
        tensors: by kind, as ``oracle/golden.py`` lists them.
    """

    prompt: str
    images: tuple[str, ...]
    audios: tuple[str, ...]
    adapter: str | None
    n_tokens: int
    tensors: dict[str, np.ndarray]

    @property
    def last(self) -> np.ndarray:
        """Logits after the last token, (n_vocab,)."""
        return self.tensors["last"]

    def logit_error(self, logits: np.ndarray) -> float:
        """Largest absolute difference over the rows that were kept."""
        kept = every(logits)
        return max(difference(kept, self.tensors["rows"]), difference(logits[-1], self.last))

    def n_wrong_choices(self, logits: np.ndarray) -> int:
        """Positions where another token is the most likely one, although the lead was clear."""
        wrong = logits.argmax(-1) != self.tensors["argmax"]
        return int((wrong & (self.tensors["lead"] > CLEAR_LEAD)).sum())

    def taps(self) -> Iterator[tuple[str, np.ndarray]]:
        """Intermediate tensors of the only medium, by name."""
        for kind, x in self.tensors.items():
            if kind.startswith("tap."):
                yield kind.removeprefix("tap.0."), x


@dataclass(frozen=True)
class Greedy:
    """A user's message and the reference's greedy answer, across the original context.

    Attributes:
        tokens: the answer, one after each step.
        steps: logits before each of its tokens, (n_steps, n_vocab).
    """

    user: str
    n_prompt: int
    tokens: list[int]
    steps: np.ndarray


@cache
def load(name: str) -> tuple[dict[str, Golden], Greedy]:
    """The goldens of one model: the cases by name, and the greedy answer."""
    records = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tensors: dict[str, dict[str, np.ndarray]] = {}
    for key, value in load_file(FOLDER / f"{name}.safetensors").items():
        case, kind = key.split("/")
        tensors.setdefault(case, {})[kind] = value
    cases = {
        case: Golden(
            prompt=record["prompt"],
            images=tuple(record["images"]),
            audios=tuple(record["audios"]),
            adapter=record["adapter"],
            n_tokens=record["n_tokens"],
            tensors=tensors[case],
        )
        for case, record in records["cases"].items()
    }
    greedy = tensors["greedy"]
    return cases, Greedy(
        user=records["greedy"]["user"],
        n_prompt=len(greedy["ids"]),
        tokens=greedy["tokens"].tolist(),
        steps=greedy["steps"],
    )


def cases(name: str) -> dict[str, Golden]:
    return load(name)[0]


def every(rows: np.ndarray) -> np.ndarray:
    """The rows of an answer that the goldens keep."""
    return rows[:: stride(len(rows))]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest absolute difference of two arrays of one shape; NaN is infinitely far from all."""
    assert a.shape == b.shape, f"{a.shape} is not {b.shape}"
    return float(np.nan_to_num(np.abs(a - b), nan=np.inf).max())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
