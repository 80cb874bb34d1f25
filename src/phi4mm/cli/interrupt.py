"""Stops a call into the native library when a signal arrives.

Python handles a signal between its own instructions, and a call into the library can last a minute.
The signal's number is written to a socket at once, though (``signal.set_wakeup_fd``), where a
thread waits for it.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cancel_on_signal(cancel: Callable[[], None]) -> Iterator[None]:
    """While this lasts, a signal that Python handles also calls ``cancel``, from another thread.

    Call it on the main thread.

    Args:
        cancel: makes the native call return; the signal's own handler runs after that.
    """
    waker, listener = socket.socketpair()
    waker.setblocking(False)
    thread = threading.Thread(target=_listen, args=(listener, cancel), daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        waker.close()
        thread.join()
        listener.close()


def _listen(listener: socket.socket, cancel: Callable[[], None]) -> None:
    """Call ``cancel`` for each signal, until the other end is closed."""
    while listener.recv(1):
        cancel()
