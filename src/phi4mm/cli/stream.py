"""Events read on the main thread while the engine computes on another, so that Ctrl-C works.

Python delivers an interrupt between its own instructions; a call into the native library can last
half a minute.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator

from phi4mm.engine.event import Event


def interruptible(
    events: Iterator[Event], cancel: Callable[[], None]
) -> Generator[Event, None, None]:
    """The same events, computed on a thread of their own.

    Args:
        events: computes one event at each step.
        cancel: makes the running step raise ``Cancelled``; called when the reader stops early.
    """
    results: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

    def compute() -> None:
        try:
            for event in events:
                results.put(event)
            results.put(None)
        except BaseException as error:  # handed to the reader, who raises it
            results.put(error)

    worker = threading.Thread(target=compute, name="engine", daemon=True)
    worker.start()
    try:
        while (result := results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        if worker.is_alive():
            cancel()
        worker.join()
