"""One context of the decoder, and the slots it computes for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phi4mm.engine.slot import MAX_LOGIT_ROWS, Ids, PositionKey, Rows, Slot
from phi4mm.native.batch import Batch
from phi4mm.native.llama import Adapter, Context

# A shorter common beginning than this is not worth choosing or copying a slot for: every
# conversation begins with a token for the role, many with the same few words.
_MIN_SHARED = 16


@dataclass(frozen=True, slots=True)
class SlotView:
    """How a slot stands.

    Attributes:
        n_ctx: positions it has.
        n_computed: positions computed.
        is_busy: whether a request owns it.
    """

    n_ctx: int
    n_computed: int
    is_busy: bool


class SlotPool:
    """Gives out the slots of a context and computes for them.

    Attributes:
        slots: all of them.
        n_batch: most rows of one step.
        adapter: what the last step was computed with.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.slots = [Slot(context, seq_id) for seq_id in range(context.params.n_seq_max)]
        self.n_batch = context.params.n_batch
        self._n_acquired = 0
        self.adapter: Adapter | None = None

    @property
    def views(self) -> tuple[SlotView, ...]:
        """How each slot stands."""
        n_ctx = self._context.params.n_ctx_seq
        return tuple(SlotView(n_ctx, slot.n_computed, slot.is_busy) for slot in self.slots)

    def acquire(self, keys: Sequence[PositionKey], adapter: Adapter | None) -> Slot | None:
        """A free slot for a sequence, with as much of it computed as any slot has; None if busy.

        Of slots that are equally useful, the one that was free the longest is taken.  What a busy
        slot has is copied.
        """
        free = [slot for slot in self.slots if not slot.is_busy]
        if not free:
            return None

        def use(slot: Slot) -> tuple[int, int]:
            n_shared = slot.n_shared(keys, adapter)
            return (n_shared if n_shared >= _MIN_SHARED else 0, -slot.last_used)

        best = max(self.slots, key=use)
        slot = max(free, key=use)
        if use(best)[0] > use(slot)[0] + _MIN_SHARED:
            slot = min(free, key=lambda slot: slot.last_used)
            slot.copy_from(best)
        self._n_acquired += 1
        slot.is_busy, slot.last_used = True, self._n_acquired
        return slot

    def extend(
        self,
        slot: Slot,
        inputs: Ids | Rows,
        keys: Sequence[PositionKey],
        logits: Literal["none", "last", "all"],
    ) -> None:
        """Compute inputs that follow what a slot has; ``keys`` are those of the inputs."""
        assert len(inputs) == len(keys)
        self._use(slot.adapter)
        self._context.decode(
            Batch.of_sequence(inputs, start=slot.n_computed, seq_id=slot.seq_id, logits=logits)
        )
        slot.note(keys)

    def extend_all(self, slot: Slot, inputs: Ids | Rows, keys: Sequence[PositionKey]) -> Rows:
        """Compute inputs that follow what a slot has; logits ``(n, n_vocab)`` after each of them.

        Here ``keys`` are those of the whole sequence.
        """
        size, rows = min(self.n_batch, MAX_LOGIT_ROWS), []
        for first in range(0, len(inputs), size):
            batch, start = inputs[first : first + size], slot.n_computed
            self.extend(slot, batch, keys[start : start + len(batch)], "all")
            rows.append(self.logits(range(len(batch))))
        return np.concatenate(rows)

    def extend_each(self, slots: Sequence[Slot], token_ids: Sequence[int]) -> Rows:
        """Compute one token for each slot in one step; logits ``(n_slots, n_vocab)`` after them.

        All slots must have the same adapter.
        """
        self._use(slots[0].adapter)
        self._context.decode(
            Batch(
                inputs=np.array(token_ids, np.int32),
                positions=np.array([slot.n_computed for slot in slots], np.int32),
                seq_ids=np.array([slot.seq_id for slot in slots], np.int32),
                wants_logits=np.ones(len(slots), np.bool_),
            )
        )
        for slot, token_id in zip(slots, token_ids, strict=True):
            slot.note([token_id])
        return self._context.logits(range(len(slots)))

    def logits(self, rows: Sequence[int]) -> Rows:
        """Logits ``(n, n_vocab)`` of rows of the last step."""
        return self._context.logits(rows)

    def _use(self, adapter: Adapter | None) -> None:
        if adapter is not self.adapter:
            self._context.set_adapters([] if adapter is None else [(adapter, 1.0)])
            self.adapter = adapter
