"""The engine: takes a prompt, yields events.  Knows nothing of templates, files or front ends.

One sequence runs at a time, on the thread that iterates.  Closing the generator, or an interrupt
while it computes, stops the work; the next request starts clean.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np

from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.decoder import Decoder
from phi4mm.engine.encoding import MediaEncoder
from phi4mm.engine.event import Event, FinishReason
from phi4mm.engine.parameters import SamplingParams
from phi4mm.engine.sampler import Sampler
from phi4mm.engine.sequence import Sequence
from phi4mm.engine.slot import Ids, Rows, Slot
from phi4mm.modality import Adapter, AudioProjection
from phi4mm.native.abort import AbortFlag
from phi4mm.prompt.chunk import Prompt, TextChunk
from phi4mm.prompt.medium import Picture, Sound
from phi4mm.prompt.tokenizer import Detokenizer, Tokenizer

AdapterChoice = Adapter | Literal["auto"] | None


class Engine:
    """Runs sequences on the decoder.

    Args:
        decoder: model, adapters and contexts; the caller closes it.
        encoder: pictures and clips to embeddings.
        tokenizer: for the text of events and the stop tokens.
        plan: context sizes.
        abort_flag: the one that decoder and encoder look at while they compute.
    """

    def __init__(
        self,
        decoder: Decoder,
        encoder: MediaEncoder,
        tokenizer: Tokenizer,
        plan: ContextPlan,
        abort_flag: AbortFlag,
    ) -> None:
        self._decoder = decoder
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._plan = plan
        self._abort_flag = abort_flag

    def generate(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Event]:
        """Answer a prompt that fits (``ContextPlan.require_fit``).

        Raises:
            Cancelled: ``cancel`` was called.
            NativeError: the native library failed.
        """
        self._abort_flag.clear()
        sequence = Sequence(prompt, sampling)
        sampler, detokenizer = Sampler(sampling), Detokenizer(self._tokenizer)
        slot = self._slot_for(sequence)
        sequence.n_cached = slot.begin(sequence.keys, self._decoder.adapter(prompt.mode.adapter))
        logits = self._prefill(sequence, slot, sequence.n_cached)
        while True:
            token_id = sampler.sample(logits[0])
            sequence.append(token_id)
            finish_reason = self._finish_reason(sequence)
            text = "" if token_id in self._tokenizer.stop_ids else detokenizer.push(token_id)
            if finish_reason is not None:
                text += detokenizer.flush()
            yield Event(text, (token_id,), sequence.usage, sequence.timings, finish_reason)
            if finish_reason is not None:
                return
            slot, logits = self._advance(sequence, slot)

    def logits(self, prompt: Prompt, adapter: AdapterChoice = "auto") -> Rows:
        """Logits ``(n_tokens, n_vocab)`` after every position of a prompt that fits.

        Nothing of earlier requests is reused.

        Args:
            prompt: the prompt.
            adapter: "auto" for the one its media ask for, or another one to look at its effect.
        """
        self._abort_flag.clear()
        sequence = Sequence(prompt, SamplingParams())
        slot = self._slot_for(sequence)
        slot.clear()
        name = prompt.mode.adapter if adapter == "auto" else adapter
        slot.begin(sequence.keys, self._decoder.adapter(name))
        return slot.logits(self._inputs(sequence, 0), sequence.keys)

    def encode(self, medium: Picture | Sound, projection: AudioProjection | None = None) -> Rows:
        """Embeddings ``(n_tokens, n_embd)`` of a medium after its projector."""
        self._abort_flag.clear()
        return self._encoder.encode(medium, projection)

    def cancel(self) -> None:
        """Stop the running request from another thread: it raises ``Cancelled``."""
        self._abort_flag.set()

    def _slot_for(self, sequence: Sequence) -> Slot:
        """The slot in the context whose RoPE factors suit the sequence's length."""
        if not self._plan.is_long(sequence.n_tokens):
            return self._decoder.short
        assert self._decoder.long is not None, "the length was checked against the plan"
        return self._decoder.long

    def _prefill(self, sequence: Sequence, slot: Slot, start: int) -> Rows:
        """Compute the sequence from position ``start`` on; logits after its last token."""
        began, encoded = time.perf_counter(), sequence.encode_s
        logits = slot.prefill(self._inputs(sequence, start), sequence.keys)
        encoding = sequence.encode_s - encoded
        sequence.prefill_s += time.perf_counter() - began - encoding
        return logits

    def _inputs(self, sequence: Sequence, start: int) -> Iterator[Ids | Rows]:
        """The sequence as ids and embeddings, from position ``start`` on.

        A medium is encoded when its turn comes, and not at all if it is kept whole.
        """
        position = 0
        for chunk in sequence.prompt.chunks:
            n_skipped = max(0, start - position)
            position += chunk.n_tokens
            if n_skipped >= chunk.n_tokens:
                continue
            if isinstance(chunk, TextChunk):
                yield np.array(chunk.ids[n_skipped:], np.int32)
            else:
                yield self._embed(sequence, chunk)[n_skipped:]
        generated = sequence.generated[max(0, start - position) :]
        if generated:
            yield np.array(generated, np.int32)

    def _embed(self, sequence: Sequence, medium: Picture | Sound) -> Rows:
        began = time.perf_counter()
        embeddings = self._encoder.encode(medium, sequence.projection(medium))
        sequence.encode_s += time.perf_counter() - began
        return embeddings

    def _advance(self, sequence: Sequence, slot: Slot) -> tuple[Slot, Rows]:
        """Feed the last generated token; logits after it.

        A sequence that outgrows the original context is computed again from its start, since all
        its keys were rotated with the short factors (docs/model.md, "RoPE").
        """
        new_slot = self._slot_for(sequence)
        if new_slot is not slot:
            n_kept = new_slot.begin(
                sequence.keys, self._decoder.adapter(sequence.prompt.mode.adapter)
            )
            sequence.n_refilled += sequence.n_tokens - 1 - n_kept  # the last one is new
            return new_slot, self._prefill(sequence, new_slot, n_kept)
        began = time.perf_counter()
        token = np.array(sequence.generated[-1:], np.int32)
        logits = slot.prefill([token], sequence.keys)
        sequence.decode_s += time.perf_counter() - began
        return slot, logits

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        if sequence.generated[-1] in self._tokenizer.stop_ids:
            return "stop"
        if len(sequence.generated) == sequence.sampling.max_tokens:
            return "length"
        # the token just generated would need a position of its own
        return "length" if sequence.n_tokens > self._plan.n_ctx else None
