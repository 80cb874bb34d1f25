"""The engine's process from outside: started, spoken to through a pipe, stopped."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from phi4mm.engine.parameters import EngineParams
from phi4mm.server.engine_child import run_child
from phi4mm.server.protocol import Command, Report, Stop
from phi4mm.server.settings import BundlePaths

_STOP_S = 5.0
_END_S = 0.2  # between the last word of a process and its end


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

    @property
    def end(self) -> str:
        """How a process that has died came to it, in words."""
        self._process.join(_END_S)
        code = self._process.exitcode
        if code is None:
            return "closed its pipe"
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

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
