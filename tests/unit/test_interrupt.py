"""A signal while the native library computes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tiny_decoder import context_params, weights, write_decoder

from phi4mm.cli.interrupt import cancel_on_signal
from phi4mm.errors import Cancelled
from phi4mm.native.abort import AbortFlag
from phi4mm.native.batch import Batch
from phi4mm.native.library import load
from phi4mm.native.llama import Context, Model


def decode_without_end(context: Context) -> None:
    while True:
        context.decode(Batch.of_sequence(np.zeros(2048, np.int32), logits="none"))
        context.kv_remove(0)


def interrupt_soon() -> threading.Timer:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_a_signal_stops_a_decode_and_is_then_raised(tmp_path: Path) -> None:
    flag, cancelled = AbortFlag(load()), []

    def cancel() -> None:
        cancelled.append(threading.current_thread())
        flag.set()

    params = context_params(n_ctx_seq=2048, n_batch=2048, n_ubatch=512)
    path = write_decoder(tmp_path / "decoder.gguf", weights(seed=1))
    with Model(path) as model, Context(model, params, flag) as context:
        timer = interrupt_soon()
        with pytest.raises((KeyboardInterrupt, Cancelled)), cancel_on_signal(cancel):
            decode_without_end(context)
        timer.join()
        assert cancelled[0] is not threading.main_thread()
        context.kv_remove(0)
        with pytest.raises(Cancelled):  # the flag did stop it
            context.decode(Batch.of_sequence(np.zeros(8, np.int32)))


def test_nothing_is_left_of_it() -> None:
    before = threading.active_count()
    with cancel_on_signal(lambda: None):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert signal.set_wakeup_fd(-1) == -1
    timer = interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(10)
    timer.join()
