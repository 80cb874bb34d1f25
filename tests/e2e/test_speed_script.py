"""``scripts/speed.py`` on the sample: every part gives its numbers, every curve its plot."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_gives_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    script, sample = ROOT / "scripts" / "speed.py", ROOT / "src" / "phi4mm" / "sample"
    command = [sys.executable, script, sample, "-o", tmp_path, "-t", "1", "--minutes", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    ratios = json.loads(done.stdout.splitlines()[-1])
    assert {"prefill to llama.cpp's", "decode to llama.cpp's", "help, s"} <= ratios.keys()
    assert {"decode with vision adapter to without", "decode with speech adapter to without"} <= (
        ratios.keys()
    )
    assert ratios["second to first, same picture"] < 1
    assert "picture 168x168 with ggml's products by ours" in ratios
    curves = json.loads((tmp_path / "speed.json").read_text())["curves"]["curves"]
    assert set(curves) == {"slots", "adapters", "crops", "clip", "context"}
    for name, curve in curves.items():
        assert all(y > 0 for points in curve["lines"].values() for _, y in points)
        lines = ElementTree.parse(tmp_path / f"{name}.svg").findall("{*}polyline")
        assert len(lines) == len(curve["lines"])
