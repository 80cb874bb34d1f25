"""The server's side of the engine child: starts it, talks to it, replaces it when it dies."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Literal

from phi4mm.engine.event import Event
from phi4mm.engine.parameters import EngineParams, SamplingParams
from phi4mm.engine.slot_pool import SlotView
from phi4mm.errors import Cancelled, Overloaded, Phi4MMError
from phi4mm.prompt.chunk import Prompt
from phi4mm.server.engine_child import run_child
from phi4mm.server.error import EngineUnavailable
from phi4mm.server.protocol import Cancel, Command, Progress, Ready, Refused, Report, Stop, Submit
from phi4mm.server.settings import BundlePaths

_log = logging.getLogger(__name__)

State = Literal["loading", "ok", "closed"]
_LONGEST_PAUSE_S = 30.0
_STOP_S = 5.0


class EngineChild:
    """One child process, and two threads that move messages.

    Args:
        paths: the bundle.
        params: of its engine.
    """

    def __init__(self, paths: BundlePaths, params: EngineParams) -> None:
        # "spawn": a forked copy would share threads' locks and the native library's state
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=run_child, args=(theirs, paths, params), name="phi4mm-engine", daemon=True
        )
        self._process.start()
        theirs.close()
        self._outbox: SimpleQueue[Command | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def listen(self, deliver: Callable[[Report | None], None]) -> None:
        """Begin to move messages.

        Args:
            deliver: takes what the child reports, and None once it has died; called from a thread.
        """
        self._threads = [
            Thread(target=_read, args=(self._pipe, deliver), daemon=True),
            Thread(target=_write, args=(self._pipe, self._outbox), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, command: Command) -> None:
        """Say something; does not wait."""
        self._outbox.put(command)

    def stop(self) -> None:
        """End the process, by force if it does not; waits until it has ended."""
        self._outbox.put(Stop())
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
        self.release()

    def release(self) -> None:
        """Free what belongs to a process that has ended."""
        self._outbox.put(None)
        self._process.join()
        for thread in self._threads:
            thread.join()
        self._pipe.close()
        self._process.close()


def _read(pipe: Connection, deliver: Callable[[Report | None], None]) -> None:
    try:
        while True:
            deliver(pipe.recv())
    except (EOFError, OSError):
        deliver(None)


def _write(pipe: Connection, outbox: SimpleQueue[Command | None]) -> None:
    while (command := outbox.get()) is not None:
        try:
            pipe.send(command)
        except OSError:
            return  # it has died; the reader tells


class Job:
    """Answers to one prompt, on their way."""

    def __init__(self, ids: tuple[int, ...], cancel: Callable[[Job], None]) -> None:
        self.ids = ids
        self._cancel = cancel
        self._queue: asyncio.Queue[tuple[int, Event] | Phi4MMError] = asyncio.Queue()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """(which answer, event), until all answers have ended.

        Raises:
            Cancelled: the job was cancelled.
            EngineUnavailable: the engine died.
        """
        n_left = len(self.ids)
        while n_left:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            id_, event = item
            n_left -= event.finish_reason is not None
            yield id_ - self.ids[0], event

    def put(self, item: tuple[int, Event] | Phi4MMError) -> None:
        """Add what ``events`` gives or raises next."""
        self._queue.put_nowait(item)

    def cancel(self, reason: Phi4MMError | None = None) -> None:
        """Stop answering; ``events`` raises the reason.  After the end it does nothing."""
        self._cancel(self)
        self.put(reason or Cancelled("the client has gone"))


class EngineClient:
    """The engine as the server sees it.  All methods are for the event loop's thread.

    Args:
        paths: the bundle.
        params: of the engine.

    Attributes:
        state: "loading" until a child is ready, also after one has died.
        progress: the last one reported.
        n_restarts: how often a child was replaced.
    """

    def __init__(self, paths: BundlePaths, params: EngineParams) -> None:
        self._paths = paths
        self._n_most = params.n_slots + params.max_waiting
        # This side counts, before a prompt is built.
        self._params = replace(params, max_waiting=self._n_most)
        self._ids = count()
        self._jobs: dict[int, Job] = {}
        self._n_planned = 0
        self._child: EngineChild | None = None
        self._pause_s = 0.0
        self.state: State = "loading"
        self.progress = Progress((), (), 0)
        self.n_restarts = 0

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
        return len(self._jobs) + self._n_planned

    @contextmanager
    def planning(self, n_answers: int) -> Iterator[None]:
        """Keep places for answers while their prompt is made.

        Raises:
            EngineUnavailable: no child is ready.
            Overloaded: there are no places left.
        """
        if self.state != "ok":
            raise EngineUnavailable("the model is loading: try again later")
        if self.n_in_flight + n_answers > self._n_most:
            raise Overloaded(
                f"{self.n_in_flight} answers are running or waiting, the server takes "
                f"{self._n_most}: try again later"
            )
        self._n_planned += n_answers
        try:
            yield
        finally:
            self._n_planned -= n_answers

    def submit(self, prompt: Prompt, samplings: tuple[SamplingParams, ...]) -> Job:
        """Have a prompt answered once for each of the settings.

        Raises:
            EngineUnavailable: no child is ready.
        """
        if self.state != "ok" or self._child is None:
            raise EngineUnavailable("the model is loading: try again later")
        job = Job(tuple(next(self._ids) for _ in samplings), self._cancel)
        self._jobs |= dict.fromkeys(job.ids, job)
        self._child.send(Submit(job.ids, prompt, samplings))
        return job

    async def close(self) -> None:
        """Stop the child."""
        self.state = "closed"
        if self._child is not None:
            await asyncio.to_thread(self._child.stop)
            self._child = None

    def _cancel(self, job: Job) -> None:
        ids = tuple(id_ for id_ in job.ids if self._jobs.pop(id_, None) is not None)
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
        _log.error("the engine process %d died; starting another one", child.pid)
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
