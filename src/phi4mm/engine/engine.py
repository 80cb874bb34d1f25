"""The engine: takes a prompt, yields events.  Knows nothing of templates, files or front ends.

One sequence runs at a time, on the thread that iterates.  Closing the generator, or an interrupt
while it computes, stops the work; the next request starts clean.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.decoder import Decoder, Rows, Slot
from phi4mm.engine.encoding import MediaEncoder
from phi4mm.engine.event import Event, FinishReason
from phi4mm.engine.parameters import SamplingParams
from phi4mm.engine.sampler import Sampler
from phi4mm.engine.sequence import Sequence
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
        self._encode(sequence)
        slot, logits = self._start(sequence)
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

    def logits(self, prompt: Prompt, adapter: AdapterChoice = "auto") -> npt.NDArray[np.float32]:
        """Logits ``(n_tokens, n_vocab)`` after every position of a prompt that fits.

        Args:
            prompt: the prompt.
            adapter: "auto" for the one its media ask for, or another one to look at its effect.
        """
        self._abort_flag.clear()
        sequence = Sequence(prompt, SamplingParams())
        self._encode(sequence)
        name = prompt.mode.adapter if adapter == "auto" else adapter
        slot = self._empty_slot(sequence, name)
        return slot.logits(sequence.inputs)

    def encode(
        self, medium: Picture | Sound, projection: AudioProjection | None = None
    ) -> npt.NDArray[np.float32]:
        """Embeddings ``(n_tokens, n_embd)`` of a medium after its projector."""
        self._abort_flag.clear()
        return self._encoder.encode(medium, projection)

    def cancel(self) -> None:
        """Stop the running request from another thread: it raises ``Cancelled``."""
        self._abort_flag.set()

    def _encode(self, sequence: Sequence) -> None:
        """Fill in the sequence's inputs: ids as they are, media through their encoder."""
        start, mode = time.perf_counter(), sequence.prompt.mode
        for chunk in sequence.prompt.chunks:
            if isinstance(chunk, TextChunk):
                sequence.inputs.append(np.array(chunk.ids, np.int32))
            else:
                projection = mode.audio_projection if isinstance(chunk, Sound) else None
                sequence.inputs.append(self._encoder.encode(chunk, projection))
        sequence.encode_s = time.perf_counter() - start

    def _empty_slot(self, sequence: Sequence, adapter: Adapter | None) -> Slot:
        """A cleared slot in the context whose RoPE factors suit the sequence's length."""
        slot = self._decoder.short
        if self._plan.is_long(sequence.n_tokens):
            assert self._decoder.long is not None, "the length was checked against the plan"
            slot = self._decoder.long
        slot.clear()
        slot.set_adapter(self._decoder.adapter(adapter))
        return slot

    def _start(self, sequence: Sequence) -> tuple[Slot, Rows]:
        """Compute the whole sequence in an empty slot; logits after its last token."""
        start = time.perf_counter()
        slot = self._empty_slot(sequence, sequence.prompt.mode.adapter)
        logits = slot.prefill(sequence.all_inputs)
        sequence.prefill_s += time.perf_counter() - start
        return slot, logits

    def _advance(self, sequence: Sequence, slot: Slot) -> tuple[Slot, Rows]:
        """Feed the last generated token; logits after it.

        A sequence that outgrows the original context is computed again from its start, since all
        its keys were rotated with the short factors (docs/model.md, "RoPE").
        """
        if slot is self._decoder.short and self._plan.is_long(sequence.n_tokens):
            sequence.n_refilled += slot.n_past
            return self._start(sequence)
        start = time.perf_counter()
        logits = slot.prefill([np.array(sequence.generated[-1:], np.int32)])
        sequence.decode_s += time.perf_counter() - start
        return slot, logits

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        if sequence.generated[-1] in self._tokenizer.stop_ids:
            return "stop"
        if len(sequence.generated) == sequence.sampling.max_tokens:
            return "length"
        # the token just generated would need a position of its own
        return "length" if sequence.n_tokens > self._plan.n_ctx else None
