"""`phi4mm verify` with transformers' model: needs torch and transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from parity.fixtures import BundleDir, CheckpointDir
from phi4mm.cli.main import main

pytestmark = [pytest.mark.torch, pytest.mark.slow]
pytest.importorskip("torch")
from oracle import torchvision_shim  # noqa: E402, F401  (before transformers)

pytest.importorskip("transformers")


def verify(capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    capsys.readouterr()
    assert main(["verify", *map(str, args), "--json", "-t", "1"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("layout", ["ms", "hf"])
def test_every_stage_agrees_with_the_reference(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    capsys: pytest.CaptureFixture[str],
    layout: str,
) -> None:
    found = verify(capsys, checkpoint_dir("tiny", layout), bundle_dir("tiny", layout))
    assert not found["missing"]
    assert found["meets_bar"]
    assert {stage["name"] for stage in found["stages"]} >= {
        "vis.layer0", "vis.projected", "aud.subsampled", "aud.block1", "aud.projected.vision",
    }  # fmt: skip
    assert max(stage["max_error"] for stage in found["stages"]) < 1e-4
    assert [answer["name"] for answer in found["answers"]] == [
        "text", "picture", "sound", "picture and sound",
    ]  # fmt: skip
    assert max(answer["max_error"] for answer in found["answers"]) < 5e-4


def test_rounded_weights_show(
    checkpoint_dir: CheckpointDir, bundle_dir: BundleDir, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verify(capsys, checkpoint_dir("tiny"), bundle_dir("tiny", types="default"))
    assert min(stage["relative"] for stage in found["stages"]) > 1e-4
    assert max(answer["max_error"] for answer in found["answers"]) > 1e-2


def test_a_recording_stands_in_for_the_reference(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint, bundle, path = checkpoint_dir("tiny"), bundle_dir("tiny"), tmp_path / "r.npz"
    live = verify(capsys, checkpoint, bundle, "--record", path)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = verify(capsys, checkpoint, bundle, "--recorded", path)
    assert found["meets_bar"]
    for ours, theirs in zip(found["stages"], live["stages"], strict=True):
        assert 0 < ours["max_error"] <= theirs["max_error"] + 1e-6
    for ours, theirs in zip(found["answers"], live["answers"], strict=True):
        assert ours["cosine"] == pytest.approx(theirs["cosine"], abs=1e-9)
        assert (ours["n_agreed"], ours["n_greedy"]) == (32, 32)
