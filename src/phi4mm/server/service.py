"""What all endpoints share: the model's files, the engine, and one way to run a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from threading import Semaphore
from typing import BinaryIO, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from phi4mm.engine.context_plan import plan_contexts
from phi4mm.engine.event import Event
from phi4mm.engine.grammar import SchemaCompiler
from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import InputError
from phi4mm.media.audio import AudioStream, read_audio
from phi4mm.prompt.chunk import Prompt, PromptBuilder
from phi4mm.prompt.medium import MediaLimits, mel_params
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.server.engine_client import Cancellable, EngineClient, Job
from phi4mm.server.error import ApiError, TimedOut
from phi4mm.server.media_url import Kind, load_media
from phi4mm.server.metrics import Metrics
from phi4mm.server.settings import ServerSettings
from phi4mm.server.wire import Body

Made = TypeVar("Made")

# Names that clients of other servers give to choose an adapter.  Here content chooses it.
_ALIASES = ("vision", "speech")
# Most threads wait for media from elsewhere; only a few decode and tokenise at the same time.
_THREADS, _AT_WORK = 64, 4


class Service:
    """One served model.

    Attributes:
        settings: as the server was started.
        tokenizer: of the model.
        prompts: makes prompts; for the thread pool, while ``at_work`` is held.
        at_work: held by threads that compute, not by those that wait for a host.
        engine: the engine child.
        metrics: counters.
    """

    def __init__(self, settings: ServerSettings) -> None:
        """Open the bundle and check the settings against it; the engine is not started yet.

        Raises:
            ModelFileError: a file cannot be used.
            InputError: a setting is out of range for this model.
        """
        self.settings = settings
        self.bundle = settings.bundle.open()
        self.plan = plan_contexts(settings.engine, self.bundle.decoder.hparams)
        self.tokenizer = Tokenizer(self.bundle.decoder.file.metadata)
        self._schemas = SchemaCompiler(self.tokenizer)
        limits = settings.limits
        self.prompts = PromptBuilder(
            self.bundle,
            self.tokenizer,
            MediaLimits(limits.image_pixels, limits.audio_seconds),
            self.plan.n_ctx,
        )
        self.engine = EngineClient(settings.bundle, settings.engine)
        self.metrics = Metrics()
        self.at_work = Semaphore(_AT_WORK)
        self._pool = ThreadPoolExecutor(_THREADS, "plan")

    async def close(self) -> None:
        """Stop the engine and close the files."""
        await self.engine.close()
        self._pool.shutdown(cancel_futures=True)
        self.bundle.close()

    @property
    def model_names(self) -> tuple[str, ...]:
        """What requests may call the model."""
        return (self.settings.served_name, *_ALIASES)

    def require_model(self, name: str | None) -> None:
        """Refuse a model that is not here.

        Raises:
            ApiError: 404.
        """
        if name is not None and name not in self.model_names:
            message = f"the model {name!r} does not exist: use {self.settings.served_name!r}"
            raise ApiError(404, message, code="model_not_found", param="model")

    def load_media(self, url: str, kind: Kind) -> bytes:
        """The bytes behind a media URL; for the thread pool."""
        return load_media(url, kind, self.settings.media)

    def read_audio(self, stream: BinaryIO, name: str) -> AbstractContextManager[AudioStream]:
        """Sound of any length from an open file, decoded as it is read; for a thread.

        Raises:
            InputError: this bundle has no audio encoder.
        """
        if self.bundle.audio is None:
            raise InputError("this model has no audio encoder: the server needs its mmproj file")
        return read_audio(stream, name, mel_params(self.bundle.audio))

    async def plan_with(self, make: Callable[[], Made]) -> Made:
        """Run what takes a while, such as decoding media, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, make)

    async def submit(
        self, makers: Sequence[Callable[[], Prompt]], sampling: SamplingParams, n: int
    ) -> Job:
        """Make the prompts of a request, and have each of them answered ``n`` times.

        Raises:
            InputError: a prompt cannot be made, does not fit, or ``n`` is beyond the limit.
            Overloaded: too many requests are waiting.
            EngineUnavailable: the engine is loading.
        """
        if n > self.settings.limits.n_choices:
            raise InputError(f"n is {n}: the limit is {self.settings.limits.n_choices}")
        self._require_vocabulary(sampling)
        places = ExitStack()
        places.enter_context(self.engine.places(n * len(makers)))
        try:
            prompts = await self.plan_with(partial(self._make_all, makers, sampling))
            return self.engine.submit(prompts, _samplings(sampling, n), places.close)
        except BaseException:
            places.close()
            raise

    def _make_all(
        self, makers: Sequence[Callable[[], Prompt]], sampling: SamplingParams
    ) -> list[Prompt]:
        if sampling.json_schema is not None:
            with self.at_work:
                self._schemas.compile(sampling.json_schema)
        return [self.fitting(make()) for make in makers]

    def fitting(self, prompt: Prompt) -> Prompt:
        """The prompt.

        Raises:
            PromptTooLong: it does not fit the context.
        """
        self.plan.require_fit(prompt.n_tokens)
        return prompt

    def _require_vocabulary(self, sampling: SamplingParams) -> None:
        beyond = [id_ for id_, _ in sampling.logit_bias if id_ >= self.tokenizer.n_vocab]
        if beyond:
            last = self.tokenizer.n_vocab - 1
            raise InputError(f"logit_bias names token {beyond[0]}: the last one is {last}")

    async def events(self, job: Job) -> AsyncIterator[tuple[int, Event]]:
        """(which answer, event) of a job, counted in the metrics."""
        async for index, event in job.events():
            if event.finish_reason is not None:
                self.metrics.count_answer(event)
            yield index, event

    @contextmanager
    def limited(self, job: Cancellable) -> Iterator[None]:
        """Cancel a job that takes longer than a request may, and whatever is left at the end."""
        seconds = self.settings.limits.request_s
        reason = TimedOut(f"the answer took longer than the limit of {seconds:g} s")
        timer = asyncio.get_running_loop().call_later(seconds, job.cancel, reason)
        try:
            yield
        finally:
            timer.cancel()
            job.cancel()


def _samplings(sampling: SamplingParams, n: int) -> tuple[SamplingParams, ...]:
    """Settings of each answer: seeds that differ, so that the answers do."""
    if sampling.seed is None:
        return (sampling,) * n
    return tuple(replace(sampling, seed=(sampling.seed + i) % 2**64) for i in range(n))


async def read_body(request: Request, model: type[Body]) -> Body:
    """The body, checked.

    Raises:
        ValidationError: it does not fit.
    """
    return model.model_validate_json(await request.body())


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive, job: Cancellable) -> AsyncIterator[None]:
    """Cancel a job when its client goes away."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
