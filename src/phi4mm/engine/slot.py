"""A sequence's place in a context, which remembers what it computed so that it can be reused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phi4mm.modality import AudioProjection
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

    Attributes:
        seq_id: of the sequence in its context.
        adapter: what the positions were computed with.
        is_busy: whether a request owns it.
        last_used: a count that grows with every request of the context.
    """

    def __init__(self, context: Context, seq_id: int) -> None:
        self._context = context
        self.seq_id = seq_id
        self.adapter: Adapter | None = None
        self.is_busy = False
        self.last_used = 0
        self._keys: list[PositionKey] = []

    @property
    def n_computed(self) -> int:
        """Positions computed so far."""
        return len(self._keys)

    def n_shared(self, keys: Sequence[PositionKey], adapter: Adapter | None) -> int:
        """Positions that a sequence could keep of what is here; not its last one."""
        return _n_equal(self._keys, keys[:-1]) if adapter is self.adapter else 0

    def begin(self, keys: Sequence[PositionKey], adapter: Adapter | None) -> int:
        """Make ready for a sequence; keep what was computed for the same beginning.

        Args:
            keys: what stands at each position.
            adapter: to compute with.

        Returns:
            How many positions are kept; at least one is left to compute.
        """
        n_kept = self.n_shared(keys, adapter)
        self.adapter = adapter
        self._context.kv_remove(self.seq_id, n_kept)
        del self._keys[n_kept:]
        return n_kept

    def copy_from(self, other: Slot) -> None:
        """Hold what another slot of the same context holds."""
        self.clear()
        self._context.kv_copy(other.seq_id, self.seq_id)
        self.adapter = other.adapter
        self._keys = other._keys.copy()

    def clear(self) -> None:
        """Forget everything computed."""
        self._context.kv_remove(self.seq_id)
        self._keys.clear()

    def note(self, keys: Sequence[PositionKey]) -> None:
        """Take note that these positions were computed after the others."""
        self._keys += keys


def _n_equal(first: Sequence[PositionKey], second: Sequence[PositionKey]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))
