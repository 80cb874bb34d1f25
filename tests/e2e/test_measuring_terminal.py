"""`phi4mm bench` and `verify` in a terminal: a bar while they work, and Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phi4mm.cli.options import sample_bundle


class Screen:
    """A command in a pseudo-terminal."""

    def __init__(self, *args: object) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phi4mm", *map(str, args)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def wait_for(self, text: str, timeout: float = 400) -> None:
        """Read until ``text`` is shown."""
        end = time.monotonic() + timeout
        while text not in self.shown:
            assert time.monotonic() < end, self.shown[-500:]
            assert self._read(), self.shown[-500:]

    def interrupt(self) -> tuple[int, str]:
        """Stop the whole group, as Ctrl-C does; exit code and standard output."""
        os.killpg(self.process.pid, signal.SIGINT)
        while self._read():
            pass
        os.close(self._master)
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode()

    def _read(self) -> bool:
        """Take in what is shown next; whether there may be more."""
        if not select.select([self._master], [], [], 300)[0]:
            return False
        try:
            data = os.read(self._master, 4096)
        except OSError:  # the other end is closed
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


@pytest.mark.slow
def test_a_bench_shows_its_runs_and_stops_cleanly(tmp_path: Path) -> None:
    record = tmp_path / "bench.json"
    flags = ("-p", 64, "-n", 4, "-r", 1, "-t", 1, "-o", record)
    screen = Screen("bench", "-m", sample_bundle(), *flags)
    screen.wait_for("measuring")
    screen.wait_for("/27")  # the fresh process, and 13 measures with a warm-up
    screen.wait_for("pp64")
    code, out = screen.interrupt()
    assert code == 130
    assert "phi4mm: stopped" in screen.shown
    assert "Traceback" not in screen.shown
    assert not any(line.startswith("{") for line in out.splitlines()), "no half result"
    assert not list(tmp_path.iterdir())
