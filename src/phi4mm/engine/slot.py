"""A sequence's place in a context, which remembers what it computed so that it can be reused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from phi4mm.modality import AudioProjection
from phi4mm.native.batch import Batch
from phi4mm.native.llama import Adapter, Context

Ids = npt.NDArray[np.int32]  # (n,)
Rows = npt.NDArray[np.float32]  # (n, n_embd) embeddings or (n, n_vocab) logits
PositionKey = int | tuple[str, AudioProjection | None, int]
"""What stands at a position: a token id, or a row of a medium by content and projection."""

# Rows of logits that one step may return: a row of the real vocabulary is 800 kB.
MAX_LOGIT_ROWS = 32


class Slot:
    """One sequence of one context.

    What it holds depends on the adapter, the audio projection, the RoPE factors and everything
    before a position.  The factors are the context's own; the rest is compared before reuse.
    """

    def __init__(self, context: Context, seq_id: int, n_batch: int) -> None:
        self._context = context
        self._seq_id = seq_id
        self._n_batch = n_batch
        self._adapter: Adapter | None = None
        self._keys: list[PositionKey] = []

    def begin(self, keys: Sequence[PositionKey], adapter: Adapter | None) -> int:
        """Make ready for a sequence; keep what was computed for the same beginning.

        Args:
            keys: what stands at each position.
            adapter: to compute with.

        Returns:
            How many positions are kept; at least one is left to compute.
        """
        if adapter is not self._adapter:
            self.clear()
            self._context.set_adapters([(adapter, 1.0)] if adapter is not None else [])
            self._adapter = adapter
        n_kept = _n_equal(self._keys, keys[:-1])
        self._context.kv_remove(self._seq_id, n_kept)
        del self._keys[n_kept:]
        return n_kept

    def clear(self) -> None:
        """Forget everything computed."""
        self._context.kv_remove(self._seq_id)
        self._keys.clear()

    def prefill(self, inputs: Iterable[Ids | Rows], keys: Sequence[PositionKey]) -> Rows:
        """Append ids and embeddings in order; logits ``(1, n_vocab)`` after the last of them.

        Args:
            inputs: what to compute, from the first position that is not kept.
            keys: of the whole sequence.
        """
        for batch in _batches(inputs, self._n_batch):
            is_last = len(self._keys) + len(batch) == len(keys)
            self._decode(batch, keys, "last" if is_last else "none")
        return self._context.logits([len(batch) - 1])

    def logits(self, inputs: Iterable[Ids | Rows], keys: Sequence[PositionKey]) -> Rows:
        """Append inputs; logits ``(n_tokens, n_vocab)`` after every one of them."""
        rows = []
        for batch in _batches(inputs, min(self._n_batch, MAX_LOGIT_ROWS)):
            self._decode(batch, keys, "all")
            rows.append(self._context.logits(range(len(batch))))
        return np.concatenate(rows)

    def _decode(
        self,
        batch: Ids | Rows,
        keys: Sequence[PositionKey],
        logits: Literal["none", "last", "all"],
    ) -> None:
        start = len(self._keys)
        self._context.decode(
            Batch.of_sequence(batch, start=start, seq_id=self._seq_id, logits=logits)
        )
        self._keys += keys[start : start + len(batch)]


def _n_equal(first: Sequence[PositionKey], second: Sequence[PositionKey]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _batches(inputs: Iterable[Ids | Rows], size: int) -> Iterator[Ids | Rows]:
    """Cut inputs into steps: one kind each, at most ``size`` positions."""
    for span in inputs:
        for start in range(0, len(span), size):
            yield span[start : start + size]
