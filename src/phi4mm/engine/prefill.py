"""Computing what a slot lacks of a sequence, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

import numpy as np

from phi4mm.engine.chunk_size import ChunkSize
from phi4mm.engine.encoding import MediaEncoder
from phi4mm.engine.sequence import Sequence
from phi4mm.engine.slot import Ids, Rows, Slot
from phi4mm.engine.slot_pool import SlotPool
from phi4mm.prompt.chunk import TextChunk
from phi4mm.prompt.medium import Picture, Sound


class Prefill:
    """Feeds prompts to slots.

    Args:
        encoder: pictures and clips to embeddings.
        chunk_size: how much to compute at once.
    """

    def __init__(self, encoder: MediaEncoder, chunk_size: ChunkSize) -> None:
        self._encoder = encoder
        self._chunk_size = chunk_size

    def steps(self, sequence: Sequence, pool: SlotPool, slot: Slot) -> Generator[None, None, Rows]:
        """Compute a sequence from the first position that its slot lacks.

        Pauses after each crop, audio chunk and prefill chunk.  A medium is encoded when its turn
        comes, and not at all if it is kept whole.

        Returns:
            Logits ``(1, n_vocab)`` after the last position.
        """
        position = 0
        for chunk in (*sequence.prompt.chunks, TextChunk(tuple(sequence.generated))):
            n_kept = max(0, slot.n_computed - position)
            position += chunk.n_tokens
            if n_kept >= chunk.n_tokens:
                continue
            if isinstance(chunk, TextChunk):
                inputs: Ids | Rows = np.array(chunk.ids[n_kept:], np.int32)
            else:
                inputs = (yield from self._embed(sequence, chunk))[n_kept:]
            while len(inputs):
                n_rows = self._chunk_size.n_tokens
                batch, inputs = inputs[:n_rows], inputs[n_rows:]
                is_last = slot.n_computed + len(batch) == sequence.n_tokens
                self._extend(sequence, pool, slot, batch, is_last=is_last)
                if is_last:
                    return pool.logits([len(batch) - 1])
                yield
        raise AssertionError("a slot keeps at most all but the last position")

    def _extend(
        self, sequence: Sequence, pool: SlotPool, slot: Slot, batch: Ids | Rows, *, is_last: bool
    ) -> None:
        began, start = time.perf_counter(), slot.n_computed
        keys = sequence.keys[start : start + len(batch)]
        pool.extend(slot, batch, keys, "last" if is_last else "none")
        seconds = time.perf_counter() - began
        sequence.prefill_s += seconds
        self._chunk_size.note(len(batch), seconds)

    def _embed(self, sequence: Sequence, medium: Picture | Sound) -> Generator[None, None, Rows]:
        with closing(self._encoder.steps(medium, sequence.projection(medium))) as steps:
            while True:
                began = time.perf_counter()
                try:
                    next(steps)
                except StopIteration as end:
                    embeddings: Rows = end.value
                    return embeddings
                finally:
                    sequence.encode_s += time.perf_counter() - began
                yield
