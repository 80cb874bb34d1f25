"""A quantised decoder loads in stock llama.cpp and answers as here."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from quantized import run
from stock_server import StockServer

from phi4mm import Phi4MM

if TYPE_CHECKING:
    from parity.fixtures import BundleDir

PROMPT = "<|user|>one two three<|end|><|assistant|>"


@pytest.mark.parametrize("type_", ["Q4_K_M", "IQ4_XS"])
def test_stock_answers_as_ours(bundle_dir: BundleDir, tmp_path: Path, type_: str) -> None:
    quantised, out = tmp_path / "quantised", tmp_path / "export"
    assert run("quantize", bundle_dir("tiny", types="default"), type_, "-o", quantised) == 0
    assert run("export", "llama.cpp", quantised, "-o", out) == 0
    script = (out / "llama-server.sh").read_text()
    command = script.removeprefix("#!/bin/sh\nexec ").replace("\\\n", "").replace('"$@"', "")
    body = {"prompt": PROMPT, "n_predict": 4, "temperature": 0, "return_tokens": True}
    with StockServer(shlex.split(command)) as server:
        tokens = server.post("/completion", body)["tokens"]
    assert len(tokens) >= 1
    with Phi4MM(quantised, n_ctx=256, n_threads=1) as model:
        logits = model.logits(PROMPT)[-1]
    # near a tie rounding decides: the cache is F16 on both sides, the batches are not the same
    assert logits[tokens[0]] > np.max(logits) - 1e-2
