"""Stock llama.cpp's own server, from the wheel that carries libllama, started as an export says.

A process of its own: the server takes over libllama's log, of which a process has only one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest


class StockServer:
    """llama-server with the flags of an exported command; a context manager."""

    def __init__(self, command: Sequence[str]) -> None:
        pytest.importorskip("xllamacpp")
        self._process = subprocess.Popen(
            [sys.executable, __file__, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> StockServer:
        assert self._process.stdout is not None
        lines = (line.strip() for line in self._process.stdout)
        self._address = next(line for line in lines if line.startswith("http"))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that a path answers."""
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def serve(command: Sequence[str]) -> None:
    """Start the server, say where it listens, and stay until the standard input ends."""
    import xllamacpp as stock

    flags = dict(pairwise(command))
    params = stock.CommonParams()
    params.model.path = flags["-m"]
    params.n_ctx = int(flags["-c"])
    params.n_parallel = int(flags["-np"])
    params.use_jinja = "--jinja" in command
    params.chat_template = Path(flags["--chat-template-file"]).read_text()
    adapters = [entry.rsplit(":", 1) for entry in flags["--lora-scaled"].split(",")]
    params.lora_adapters = [
        stock.CommonAdapterLoraInfo(path, float(scale)) for path, scale in adapters
    ]
    if "--mmproj" in flags:
        params.mmproj.path = flags["--mmproj"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port, params.warmup, params.verbosity = 0, False, 0
    server = stock.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1:])
