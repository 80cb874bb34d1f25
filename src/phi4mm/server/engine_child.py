"""The engine in a process of its own: commands come in, reports go out."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread

from phi4mm.engine.engine import Engine
from phi4mm.engine.event import Event
from phi4mm.engine.loading import loaded_engine
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError, ModelFileError, Overloaded
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.server.protocol import (
    Cancel,
    Command,
    Failed,
    Logged,
    Progress,
    Ready,
    Refused,
    Report,
    Stop,
    Submit,
)
from phi4mm.server.settings import BundlePaths


def run_child(pipe: Connection, paths: BundlePaths, params: EngineParams) -> None:
    """Load the bundle and answer until told to stop, or until the server is gone.

    Whatever the engine raises ends the process: the server logs it and starts a fresh one.
    """
    # Ctrl-C in a terminal reaches all its processes; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outbox = _Outbox(pipe)
    logging.getLogger().addHandler(_Forward(outbox))
    try:
        with paths.open() as bundle:
            tokenizer = Tokenizer(bundle.decoder.file.metadata)
            with loaded_engine(bundle, params, tokenizer) as engine:
                _Worker(engine, pipe, outbox).run()
    except Exception:
        outbox.send(Failed(traceback.format_exc()))
        sys.exit(1)


class _Outbox:
    """The way to the server; threads may share it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = Lock()

    def send(self, report: Report) -> None:
        """Send a report; when the server is gone nobody wants it."""
        with self._lock, suppress(OSError):
            self._pipe.send(report)


class _Forward(logging.Handler):
    """Hands log records to the server, whose log has one form."""

    def __init__(self, outbox: _Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Send one."""
        self._outbox.send(Logged(record.name, record.levelno, self.format(record)))


class _Worker:
    """Turns commands into requests of the engine, and steps while there are any.

    A thread of its own reads the pipe, so that the server never waits until a step has ended.
    """

    def __init__(self, engine: Engine, pipe: Connection, outbox: _Outbox) -> None:
        self._engine = engine
        self._pipe = pipe
        self._outbox = outbox
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._theirs: dict[int, int] = {}  # the engine's id -> the server's
        self._ours: dict[int, int] = {}
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self._commands.put(self._pipe.recv())
        except (EOFError, OSError):
            self._commands.put(Stop())

    def run(self) -> None:
        """Say how things stand and that requests may come, then work until a ``Stop``."""
        self._outbox.send(self._progress(()))
        self._outbox.send(Ready())
        while True:
            while not self._ours or not self._commands.empty():
                command = self._commands.get()
                if isinstance(command, Stop):
                    return
                self._obey(command)
            self._step()

    def _obey(self, command: Submit | Cancel) -> None:
        if isinstance(command, Submit):
            for id_, sampling in zip(command.ids, command.samplings, strict=True):
                try:
                    ours = self._engine.submit(command.prompt, sampling)
                except (InputError, Overloaded) as error:
                    self._outbox.send(Refused(id_, error))
                    continue
                self._theirs[ours], self._ours[id_] = id_, ours
            return
        for id_ in command.ids:
            if id_ in self._ours:
                self._engine.cancel(self._ours[id_])
                self._forget(id_)
        self._outbox.send(self._progress(()))

    def _step(self) -> None:
        try:
            events = tuple((self._theirs[ours], event) for ours, event in self._engine.step())
        except ModelFileError as error:  # a fresh process would compute no better
            for id_ in list(self._ours):
                self._outbox.send(Refused(id_, error))
                self._forget(id_)
            events = ()
        for id_, event in events:
            if event.finish_reason is not None:
                self._forget(id_)
        self._outbox.send(self._progress(events))

    def _progress(self, events: tuple[tuple[int, Event], ...]) -> Progress:
        engine = self._engine
        return Progress(events, engine.slots, engine.n_waiting, engine.encoder_lookups)

    def _forget(self, id_: int) -> None:
        del self._theirs[self._ours.pop(id_)]
