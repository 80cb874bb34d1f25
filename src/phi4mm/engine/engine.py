"""The engine: takes prompts, yields events.  Knows nothing of templates, files or front ends.

Several sequences run at the same time, on the one thread that calls ``step``.  A step computes the
next token of every sequence that generates, and one piece of one prompt: an encoder's crop or audio
chunk, or a prefill chunk.  ``generate`` does all of that for a single caller.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from itertools import count
from typing import Literal

import numpy as np

from phi4mm.encoders.steps import finish
from phi4mm.engine.answer import Answer
from phi4mm.engine.chunk_size import ChunkSize
from phi4mm.engine.context_plan import ContextPlan
from phi4mm.engine.decoder import Decoder, require_numbers
from phi4mm.engine.encoding import MediaEncoder
from phi4mm.engine.event import Event
from phi4mm.engine.grammar import SchemaCompiler
from phi4mm.engine.parameters import EngineParams, SamplingParams
from phi4mm.engine.prefill import Prefill
from phi4mm.engine.scheduler import Filling, Request, Scheduler
from phi4mm.engine.sequence import Sequence
from phi4mm.engine.slot import Ids, Rows
from phi4mm.engine.slot_pool import SlotPool, SlotView
from phi4mm.errors import Cancelled, InputError
from phi4mm.modality import Adapter, AudioProjection
from phi4mm.native.abort import AbortFlag
from phi4mm.native.llama import Adapter as LoadedAdapter
from phi4mm.prompt.chunk import Prompt, TextChunk
from phi4mm.prompt.medium import Picture, Sound
from phi4mm.prompt.tokenizer import Tokenizer

AdapterChoice = Adapter | Literal["auto"] | None


class Engine:
    """Runs sequences on the decoder.

    Args:
        decoder: model, adapters and contexts; the caller closes it.
        encoder: pictures and clips to embeddings.
        tokenizer: for the text of events and the stop tokens.
        plan: context sizes.
        params: slots and queue.
        abort_flag: the one that decoder and encoder look at while they compute.
    """

    def __init__(
        self,
        decoder: Decoder,
        encoder: MediaEncoder,
        tokenizer: Tokenizer,
        plan: ContextPlan,
        params: EngineParams,
        abort_flag: AbortFlag,
    ) -> None:
        self._decoder = decoder
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._plan = plan
        self._abort_flag = abort_flag
        self._scheduler = Scheduler(self._fill, params.max_waiting)
        chunk_size = ChunkSize(decoder.short.n_batch, is_shared=params.n_slots > 1)
        self._prefill = Prefill(encoder, chunk_size)
        self._schemas = SchemaCompiler(tokenizer)
        self._ids = count()
        self._mailboxes: dict[int, deque[Event]] = {}

    @property
    def n_running(self) -> int:
        """Requests that have a slot."""
        return self._scheduler.n_running

    @property
    def n_waiting(self) -> int:
        """Requests that wait for one."""
        return self._scheduler.n_waiting

    @property
    def slots(self) -> tuple[SlotView, ...]:
        """How the slots stand, those of the long context last."""
        long = self._decoder.long
        return self._decoder.short.views + (() if long is None else long.views)

    @property
    def encoder_lookups(self) -> tuple[int, int]:
        """How often a medium was in the encoder cache, and how often it was not."""
        return self._encoder.n_hits, self._encoder.n_misses

    def submit(
        self, prompt: Prompt, sampling: SamplingParams, adapter: AdapterChoice = "auto"
    ) -> int:
        """Take in a prompt that fits (``ContextPlan.require_fit``); ``step`` gives its events.

        Args:
            prompt: the prompt.
            sampling: how its answer is drawn.
            adapter: "auto" for the one its media ask for, or another one to look at its effect.

        Returns:
            The request's id.

        Raises:
            InputError: a setting does not suit the vocabulary, or nothing fits the schema.
            Overloaded: too many requests wait already.
        """
        sequence, schema = Sequence(prompt, sampling), sampling.json_schema
        mask = None if schema is None else self._schemas.compile(schema)
        request = Request(
            next(self._ids),
            sequence,
            Answer(sequence, self._tokenizer, self._plan.n_ctx, mask),
            self._adapter(prompt, adapter),
            self._pool_for(sequence),
        )
        self._scheduler.add(request)
        return request.id

    def step(self) -> list[tuple[int, Event]]:
        """Compute a little for everyone; the events that came of it, with their requests' ids.

        Raises:
            Cancelled: ``interrupt`` was called; all requests are dropped.
            NativeError: the native library failed; all requests are dropped.
            ModelFileError: the decoder does not compute numbers; all requests are dropped.
        """
        try:
            self._scheduler.admit()
            done = [pair for group in self._scheduler.generating() for pair in self._decode(group)]
            done += self._go_on_filling()
            return [(request.id, self._next_event(request, logits)) for request, logits in done]
        except BaseException:
            self._scheduler.clear()
            raise

    def cancel(self, request_id: int) -> None:
        """Drop a request and free its slot; one that has ended is no matter."""
        self._scheduler.remove(request_id)

    def interrupt(self) -> None:
        """From another thread: the step that runs raises ``Cancelled``."""
        self._abort_flag.set()

    def generate(self, prompt: Prompt, sampling: SamplingParams) -> Generator[Event, None, None]:
        """Answer a prompt that fits; for callers that do not use ``submit`` and ``step``.

        An ``interrupt`` from this call on stops it, even before its first step.  So does closing
        the iterator, or an interrupt while it computes.

        Raises:
            Cancelled: ``interrupt`` was called.
            NativeError: the native library failed.
            ModelFileError: the decoder does not compute numbers.
        """
        self._abort_flag.clear()
        return self._events(prompt, sampling)

    def _events(self, prompt: Prompt, sampling: SamplingParams) -> Generator[Event, None, None]:
        request_id = self.submit(prompt, sampling)
        events = self._mailboxes[request_id] = deque()
        try:
            while True:
                while not events:
                    self._step_into_mailboxes(request_id)
                event = events.popleft()
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            del self._mailboxes[request_id]
            self.cancel(request_id)

    def _step_into_mailboxes(self, request_id: int) -> None:
        if request_id not in self._scheduler:
            raise Cancelled("the answer was stopped together with another one")
        for id_, event in self.step():
            self._mailboxes[id_].append(event)

    def logits(self, prompt: Prompt, adapter: AdapterChoice = "auto") -> Rows:
        """Logits ``(n_tokens, n_vocab)`` after every position of a prompt that fits.

        Nothing of earlier requests is reused.

        Args:
            prompt: the prompt.
            adapter: "auto" for the one its media ask for, or another one to look at its effect.

        Raises:
            InputError: every slot is busy with an answer.
        """
        self._abort_flag.clear()
        sequence = Sequence(prompt, SamplingParams())
        pool = self._pool_for(sequence)
        slot = pool.acquire((), None)
        if slot is None:
            raise InputError("an answer is still going on: finish or close it first")
        try:
            slot.clear()
            slot.begin(sequence.keys, self._adapter(prompt, adapter))
            inputs = self._all_inputs(sequence)
            return np.concatenate([pool.extend_all(slot, part, sequence.keys) for part in inputs])
        finally:
            slot.is_busy = False

    def encode(self, medium: Picture | Sound, projection: AudioProjection | None = None) -> Rows:
        """Embeddings ``(n_tokens, n_embd)`` of a medium after its projector."""
        self._abort_flag.clear()
        return finish(self._encoder.steps(medium, projection))

    def _adapter(self, prompt: Prompt, choice: AdapterChoice) -> LoadedAdapter | None:
        return self._decoder.adapter(prompt.mode.adapter if choice == "auto" else choice)

    def _all_inputs(self, sequence: Sequence) -> Iterator[Ids | Rows]:
        for chunk in sequence.prompt.chunks:
            if isinstance(chunk, TextChunk):
                yield np.array(chunk.ids, np.int32)
            else:
                yield finish(self._encoder.steps(chunk, sequence.projection(chunk)))

    def _pool_for(self, sequence: Sequence) -> SlotPool:
        """The pool of the context whose RoPE factors suit the sequence's length."""
        if not self._plan.is_long(sequence.n_tokens):
            return self._decoder.short
        assert self._decoder.long is not None, "the length was checked against the plan"
        return self._decoder.long

    def _next_event(self, request: Request, logits: Rows) -> Event:
        """Draw a token; then the request ends, goes on, or moves to the other context.

        A sequence that outgrows the original context is computed again from its start, since all
        its keys were rotated with the short factors (docs/model.md, "RoPE").
        """
        require_numbers(self._decoder.path, logits.max())  # NaN if any of them is
        event = request.answer.next_event(logits)
        if event.finish_reason is not None:
            self._scheduler.remove(request.id)
        elif (pool := self._pool_for(request.sequence)) is not request.pool:
            self._scheduler.move(request, pool)
        return event

    def _decode(self, group: list[Request]) -> Iterator[tuple[Request, Rows]]:
        """Feed each the token it drew last; logits ``(n_vocab,)`` after it."""
        began = time.perf_counter()
        slots = [request.slot for request in group if request.slot is not None]
        tokens = [request.sequence.generated[-1] for request in group]
        logits = group[0].pool.extend_each(slots, tokens)
        seconds = time.perf_counter() - began
        for request in group:
            request.sequence.decode_s += seconds
        return zip(group, logits, strict=True)

    def _go_on_filling(self) -> list[tuple[Request, Rows]]:
        """Go on with one prompt; logits ``(n_vocab,)`` after its last token, once it is done."""
        request = self._scheduler.next_to_fill()
        if request is None:
            return []
        assert request.filling is not None
        try:
            next(request.filling)
        except StopIteration as end:
            self._scheduler.filled(request)
            return [(request, end.value[0])]
        return []

    def _fill(self, request: Request) -> Filling:
        assert request.slot is not None
        return self._prefill.steps(request.sequence, request.pool, request.slot)
