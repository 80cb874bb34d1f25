"""A recording of any length on its way to text.

It is decoded, cut and judged on a thread of its own, which asks the engine about one piece at a
time through the event loop.  Memory does not grow with the recording.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from phi4mm.engine.event import Event, Usage
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import Cancelled, MediaTooLarge, Phi4MMError
from phi4mm.media.audio import AudioStream, Samples
from phi4mm.prompt.chunk import Prompt
from phi4mm.prompt.message import Message, user_message
from phi4mm.server.engine_client import Job
from phi4mm.server.service import Service
from phi4mm.server.transcription_form import TranscriptionForm
from phi4mm.transcribe.piece import PieceParams
from phi4mm.transcribe.segment import Segment
from phi4mm.transcribe.task import Task
from phi4mm.transcribe.transcriber import Transcriber

Result = TypeVar("Result")

_NAME = "file"
_NOTHING = Usage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The file is sound that can be transcribed."""


class Recording:
    """One recording, from the first piece to the last.  For the event loop's thread.

    Attributes:
        usage: tokens of the pieces so far.
        seconds: of sound decoded so far.
    """

    def __init__(self, service: Service, form: TranscriptionForm) -> None:
        """Take a place in the engine.

        Raises:
            Overloaded: there is none.
            EngineUnavailable: the engine is loading.
        """
        self._service, self._form = service, form
        self._loop = asyncio.get_running_loop()
        self._found: asyncio.Queue[Segment | Exception | _Opened | None] = asyncio.Queue()
        self._piece: Job | None = None
        self._reason: Phi4MMError | None = None
        self._resources = ExitStack()
        self._resources.enter_context(service.engine.places(1))
        prompt = f"{form.task.prompt} {form.hint}" if form.hint else form.task.prompt
        self._task = Task(form.task.name, prompt)
        self.usage = _NOTHING
        self.seconds = 0.0

    async def begin(self) -> None:
        """Open the file and start the work; returns once it is known that it can be done.

        Raises:
            MediaError: the file is no sound, or longer than the limit.
            PromptTooLong: a piece would not fit the context.
        """
        Thread(target=self._work, name="recording", daemon=True).start()
        first = await self._found.get()
        if isinstance(first, Exception):
            raise first

    async def segments(self) -> AsyncIterator[Segment]:
        """The segments in order, as they come.

        Raises:
            MediaError: the recording is damaged, or longer than the limit.
            EngineUnavailable: the engine died.
            Cancelled: ``cancel`` was called.
        """
        while (item := await self._found.get()) is not None:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Segment):
                yield item

    def cancel(self, reason: Phi4MMError | None = None) -> None:
        """Stop, and free the place; ``segments`` raises the reason.  Every recording ends so."""
        if self._reason is None:
            self._reason = reason or Cancelled("the client has gone")
        if self._piece is not None:
            self._piece.cancel(self._reason)
        self._resources.close()
        self._found.put_nowait(self._reason)

    def _work(self) -> None:
        """What the thread does."""
        try:
            with self._form.file as file, self._service.read_audio(file, _NAME) as audio:
                self._check(audio)
                blocks = self._heard(audio)
                first = next(blocks)  # what has none, or is damaged there, is refused
                self._tell(_Opened())
                heard = replace(audio, blocks=chain([first], blocks))
                with closing(Transcriber(self._answer, self._task).segments(heard)) as segments:
                    for segment in segments:
                        self._tell(segment)
            self._tell(None)
        except Exception as error:  # handed over to who waits for segments
            self._tell(error)

    def _check(self, audio: AudioStream) -> None:
        """Refuse what cannot be done before anything is computed."""
        longest = PieceParams().max_heard_s
        if audio.duration_s is not None:
            self._require_length(audio.duration_s)
            longest = min(longest, max(audio.duration_s, 1.0))
        silence = np.zeros(round(longest * audio.rate), np.float32)
        question = user_message(self._task.prompt, audios=[(silence, audio.rate)])
        self._service.fitting(self._service.prompts.chat([question]))

    def _require_length(self, seconds: float) -> None:
        limit = self._service.settings.limits.audio_seconds
        if seconds > limit:
            raise MediaTooLarge(f"{_NAME}: longer than the limit of {limit:g} s", "seconds")

    def _heard(self, audio: AudioStream) -> Iterator[Samples]:
        n_samples = 0
        for block in audio.blocks:
            if self._reason is not None:
                raise self._reason
            n_samples += len(block)
            self.seconds = n_samples / audio.rate
            self._require_length(self.seconds)
            yield block

    def _answer(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> Generator[Event, None, None]:
        """What the engine says of one piece."""
        prompt = self._service.fitting(self._service.prompts.chat(messages).asked_once())
        settings = replace(sampling, temperature=self._form.temperature)
        job = self._wait_for(self._submit(prompt, settings))
        events, usage = self._service.events(job), _NOTHING
        try:
            while (item := self._wait_for(_next(events))) is not None:
                _, event = item
                usage = event.usage
                yield event
        finally:
            self.usage = _sum(self.usage, usage)
            self._loop.call_soon_threadsafe(job.cancel)

    async def _submit(self, prompt: Prompt, sampling: SamplingParams) -> Job:
        if self._reason is not None:
            raise self._reason
        self._piece = self._service.engine.submit([prompt], (sampling,), lambda: None)
        return self._piece

    def _wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Have the event loop do something."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _tell(self, item: Segment | Exception | _Opened | None) -> None:
        self._loop.call_soon_threadsafe(self._found.put_nowait, item)


async def _next(events: AsyncIterator[tuple[int, Event]]) -> tuple[int, Event] | None:
    return await anext(events, None)


def _sum(first: Usage, second: Usage) -> Usage:
    return Usage(
        n_text=first.n_text + second.n_text,
        n_image=0,
        n_audio=first.n_audio + second.n_audio,
        n_cached=first.n_cached + second.n_cached,
        n_generated=first.n_generated + second.n_generated,
    )
