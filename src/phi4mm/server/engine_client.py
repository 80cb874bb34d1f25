"""The engine as the server sees it: answers on their way, and a new child when one has died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Literal, Protocol

from phi4mm.engine.event import Event
from phi4mm.engine.parameters import EngineParams, SamplingParams
from phi4mm.engine.slot_pool import SlotView
from phi4mm.errors import Cancelled, InputError, Overloaded, Phi4MMError
from phi4mm.prompt.chunk import Prompt
from phi4mm.server.engine_process import EngineChild
from phi4mm.server.error import EngineUnavailable
from phi4mm.server.protocol import (
    Cancel,
    Failed,
    Logged,
    Progress,
    Ready,
    Refused,
    Report,
    Submit,
)
from phi4mm.server.settings import BundlePaths

_log = logging.getLogger(__name__)

State = Literal["loading", "ok", "closed"]
_LONGEST_PAUSE_S = 30.0


class Cancellable(Protocol):
    """Something that is going on for a request."""

    def cancel(self, reason: Phi4MMError | None = None) -> None:
        """Stop it, and free what it holds; again, or after its end, this does nothing."""


class Job:
    """Answers to prompts of one request, on their way.

    Args:
        ids: of the answers, in order.
        cancel: takes answers away from the engine.
        at_end: frees what the request holds; may be called again.
    """

    def __init__(
        self,
        ids: tuple[int, ...],
        cancel: Callable[[Iterable[int]], None],
        at_end: Callable[[], None],
    ) -> None:
        self.ids = ids
        self._cancel = cancel
        self._at_end = at_end
        self._unfinished = set(ids)
        self._queue: asyncio.Queue[tuple[int, Event] | Phi4MMError] = asyncio.Queue()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """(which answer, event), until all answers have ended.

        Raises:
            Cancelled: the job was cancelled.
            EngineUnavailable: the engine died.
        """
        while self._unfinished:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            id_, event = item
            if id_ not in self._unfinished:
                continue
            if event.finish_reason is not None:
                self._unfinished.remove(id_)
            yield id_ - self.ids[0], event

    def put(self, item: tuple[int, Event] | Phi4MMError) -> None:
        """Add what ``events`` gives or raises next."""
        self._queue.put_nowait(item)

    def drop(self, index: int) -> None:
        """End one of the answers: what came of it is enough."""
        id_ = self.ids[index]
        self._unfinished.discard(id_)
        self._cancel([id_])

    def cancel(self, reason: Phi4MMError | None = None) -> None:
        """Stop answering; ``events`` raises the reason.  Every job ends with this call."""
        self._cancel(self.ids)
        self._at_end()
        self.put(reason or Cancelled("the client has gone"))


def _do_nothing() -> None:
    pass


class EngineClient:
    """The engine as the server sees it.  All methods are for the event loop's thread.

    Args:
        paths: the bundle.
        params: of the engine.

    Attributes:
        state: "loading" until a child is ready, also after one has died.
        progress: the last one reported.
        n_restarts: how often a child was replaced.
        on_ready: called each time a child has loaded the model.
    """

    def __init__(self, paths: BundlePaths, params: EngineParams) -> None:
        self._paths = paths
        self._n_most = params.n_slots + params.max_waiting
        # This side counts, before a prompt is built.
        self._params = replace(params, max_waiting=self._n_most)
        self._n_ids = 0
        self._jobs: dict[int, Job] = {}
        self._n_places = 0
        self._child: EngineChild | None = None
        self._pause_s = 0.0
        self.state: State = "loading"
        self.progress = Progress((), (), 0)
        self.n_restarts = 0
        self.on_ready: Callable[[], None] = _do_nothing

    def start(self) -> None:
        """Start the first child; ``state`` tells when it is ready."""
        self._loop = asyncio.get_running_loop()
        self._start_child()

    @property
    def pid(self) -> int | None:
        """Process id of the child, if there is one."""
        return None if self._child is None else self._child.pid

    @property
    def slots(self) -> tuple[SlotView, ...]:
        """How the slots stand."""
        return self.progress.slots

    @property
    def n_in_flight(self) -> int:
        """Answers that are prepared, wait, or are generated."""
        return self._n_places

    @contextmanager
    def places(self, n_answers: int) -> Iterator[None]:
        """Keep places for answers, from the making of their prompts to their end.

        Raises:
            EngineUnavailable: no child is ready.
            InputError: there never are so many places.
            Overloaded: there are not so many now.
        """
        self._require_ready()
        if n_answers > self._n_most:
            raise InputError(
                f"the request wants {n_answers} answers: the server takes {self._n_most} at a time"
            )
        if self._n_places + n_answers > self._n_most:
            raise Overloaded(
                f"{self._n_places} answers are running or waiting, the server takes "
                f"{self._n_most}: try again later"
            )
        self._n_places += n_answers
        try:
            yield
        finally:
            self._n_places -= n_answers

    def submit(
        self,
        prompts: Sequence[Prompt],
        samplings: tuple[SamplingParams, ...],
        at_end: Callable[[], None],
    ) -> Job:
        """Have prompts answered.

        Args:
            prompts: of one request.
            samplings: each prompt is answered once for each of them.
            at_end: frees what the request holds, such as its places.

        Raises:
            EngineUnavailable: no child is ready.
        """
        child, n = self._require_ready(), len(samplings)
        first, self._n_ids = self._n_ids, self._n_ids + n * len(prompts)
        job = Job(tuple(range(first, self._n_ids)), self._cancel, at_end)
        self._jobs |= dict.fromkeys(job.ids, job)
        for i, prompt in enumerate(prompts):
            child.send(Submit(job.ids[i * n : (i + 1) * n], prompt, samplings))
        return job

    def _require_ready(self) -> EngineChild:
        if self.state != "ok" or self._child is None:
            raise EngineUnavailable("the model is loading: try again later")
        return self._child

    async def close(self) -> None:
        """Stop the child."""
        self.state = "closed"
        if self._child is not None:
            await asyncio.to_thread(self._child.stop)
            self._child = None

    def _cancel(self, answers: Iterable[int]) -> None:
        ids = tuple(id_ for id_ in answers if self._jobs.pop(id_, None) is not None)
        if ids and self._child is not None:
            self._child.send(Cancel(ids))

    def _start_child(self) -> None:
        if self.state == "closed":
            return
        self._child = EngineChild(self._paths, self._params)
        self._child.listen(partial(self._deliver, self._child))

    def _deliver(self, child: EngineChild, report: Report | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._receive, child, report)
        except RuntimeError:
            return  # the loop has ended, nobody listens

    def _receive(self, child: EngineChild, report: Report | None) -> None:
        if child is not self._child:
            return
        if report is None:
            self._bury(child)
        elif isinstance(report, Ready):
            self.state, self._pause_s = "ok", 0.0
            self.on_ready()
        elif isinstance(report, Logged):
            logging.getLogger(report.logger).log(report.level, "%s", report.message)
        elif isinstance(report, Failed):
            _log.error("the engine failed\n%s", report.traceback.rstrip())
        elif isinstance(report, Refused):
            if (job := self._jobs.pop(report.id, None)) is not None:
                job.cancel(report.error)
        else:
            self.progress = report
            for id_, event in report.events:
                self._dispatch(id_, event)

    def _dispatch(self, id_: int, event: Event) -> None:
        job = self._jobs.get(id_)
        if job is None:
            return  # cancelled meanwhile
        if event.finish_reason is not None:
            del self._jobs[id_]
        job.put((id_, event))

    def _bury(self, child: EngineChild) -> None:
        """The child has died: fail what it worked on, and start another one."""
        if self.state == "closed":
            return
        _log.error("the engine process %d %s; starting another one", child.pid, child.end)
        self.state, self._child = "loading", None
        self.progress = Progress((), (), 0)
        self.n_restarts += 1
        jobs, self._jobs = set(self._jobs.values()), {}
        for job in jobs:
            job.put(EngineUnavailable("the engine died while it worked on this: try again"))
        Thread(target=child.release, daemon=True).start()
        self._loop.call_later(self._pause_s, self._start_child)
        # one that dies while it loads will do so again
        self._pause_s = min(max(1.0, 2 * self._pause_s), _LONGEST_PAUSE_S)
