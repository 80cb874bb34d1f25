"""`phi4mm serve` as a real process on a port of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread
from typing import Any


class ServerProcess:
    """Starts a server; ``wait_ready`` before the first request."""

    flags: tuple[str, ...] = ("-t", "1")

    def __init__(self, *args: object, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "phi4mm", "serve", "--port", "0", *self.flags]
        self.process = subprocess.Popen(
            [*command, *map(str, args)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
        self.log: list[str] = []
        self.url = self._find_url()
        # goes on reading, so that the server never waits for its log to be read
        self._reader = Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _find_url(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"listening on (http://[^,\s]+)", line):
                return match[1]
        raise AssertionError("".join(self.log))

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def request(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """(status, JSON or text, headers); a body makes it a POST."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, content, given = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                status, content, given = error.code, error.read(), error.headers
        text = content.decode()
        is_json = given.get_content_type() == "application/json"
        return status, json.loads(text) if is_json else text, dict(given)

    def wait_ready(self, seconds: float = 60) -> None:
        self.wait_until(lambda: self.request("/health")[0] == 200, seconds)

    def wait_until(self, condition: Any, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "".join(self.log[-20:])
            time.sleep(0.05)

    def n_busy(self) -> int:
        return sum(slot["is_processing"] for slot in self.request("/slots")[1])

    @property
    def engine_pid(self) -> int:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        (engine,) = (
            int(child)
            for child in children
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        )
        return engine

    def stop(self) -> int:
        """Ask it to end if it runs; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code
