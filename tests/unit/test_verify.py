"""`phi4mm verify` as far as it goes without torch: every weight against the checkpoint."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from measured import run

from parity.fixtures import BundleDir, CheckpointDir
from phi4mm.api import Phi4MM
from phi4mm.convert.checkpoint import open_checkpoint
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.reader import GGUFFile
from phi4mm.progress import Progress
from phi4mm.verify import weights as weights_module
from phi4mm.verify.report import verify as verify_bundle


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is left out even where it could be had."""
    monkeypatch.setitem(sys.modules, "torch", None)


def verify(capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    capsys.readouterr()
    assert run("verify", *args, "--json", "-t", 1) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("layout", ["ms", "hf"])
def test_every_tensor_is_accounted_for_and_exact_in_f32(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    capsys: pytest.CaptureFixture[str],
    layout: str,
) -> None:
    found = verify(capsys, checkpoint_dir("tiny", layout), bundle_dir("tiny", layout))
    weights = found["weights"]
    assert weights["n_used"] == 182
    assert sum(weights["n_dropped"].values()) == 29
    assert [part["part"] for part in weights["parts"]] == [
        "decoder", "mmproj", "vision adapter", "speech adapter",
    ]  # fmt: skip
    assert {part["relative"] for part in weights["parts"]} == {0}
    assert found["answers"] == []
    assert found["meets_bar"] is None
    assert "pip install 'phi4mm[verify]'" in found["missing"][0]


def test_quantised_weights_have_the_error_of_their_type(
    checkpoint_dir: CheckpointDir, bundle_dir: BundleDir, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verify(capsys, checkpoint_dir("tiny"), bundle_dir("tiny", types="default"))
    errors = {part["part"]: part["relative"] for part in found["weights"]["parts"]}
    assert 1e-4 < errors["decoder"] < 5e-4  # F16
    assert 1e-3 < errors["mmproj"] < 1e-2  # Q8_0


def test_one_wrong_weight_is_found(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Bundle.open(bundle_dir("tiny")) as bundle:
        source = bundle.decoder.path
    name = "blk.1.ffn_down.weight"
    with GGUFFile.open(source) as file:
        place = file.tensors[name].offset
    data = bytearray(source.read_bytes())
    data[place + 400 : place + 404] = b"\0\0\x80\x40"  # 4.0
    spoiled = tmp_path / source.name
    spoiled.write_bytes(data)
    (decoder,) = verify(capsys, checkpoint_dir("tiny"), spoiled)["weights"]["parts"]
    assert decoder["worst"] == name
    assert decoder["worst_relative"] > 1e-3


def test_a_bundle_of_another_checkpoint_is_refused(
    checkpoint_dir: CheckpointDir, bundle_dir: BundleDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", checkpoint_dir("heads"), bundle_dir("tiny")) == 2
    assert "was not made from" in capsys.readouterr().err


def test_a_merged_adapter_is_compared_merged(
    checkpoint_dir: CheckpointDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = checkpoint_dir("tiny")
    flags = ("--type", "f32", "--mmproj-type", "f32", "--merge", "vision")
    assert run("convert", checkpoint, "-o", tmp_path, *flags) == 0
    found = verify(capsys, checkpoint, tmp_path)
    assert [part["relative"] for part in found["weights"]["parts"]] == [0, 0]


def test_the_report_is_also_markdown(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "parity.md"
    assert run("verify", checkpoint_dir("tiny"), bundle_dir("tiny"), "--markdown", path) == 0
    text = path.read_text(encoding="utf-8")
    assert text.strip() == capsys.readouterr().out.strip()
    assert "Tensors: 182 used, 29 left out, of 211." in text
    assert "| decoder | F32 | 16 | 0.000e+00 |" in text


def test_how_far_it_is_is_told(checkpoint_dir: CheckpointDir, bundle_dir: BundleDir) -> None:
    told: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def stage(title: str, unit: str | None) -> Iterator[Progress]:
        told[title] = []
        yield lambda done, total: told[title].append((done, total))

    with Phi4MM(bundle_dir("tiny"), n_threads=1) as model:
        verify_bundle(open_checkpoint(checkpoint_dir("tiny")), model, 1, stage)
        parts = [model.bundle.decoder, model.bundle.mmproj, *model.bundle.adapters.values()]
        infos = [info for part in parts if part for info in part.file.tensors.values()]
    assert list(told) == ["comparing weights", "loading the reference"]
    weights = told["comparing weights"]
    assert weights[-1] == (sum(info.n_bytes for info in infos),) * 2
    assert len(weights) >= len(infos)


def test_an_interrupt_leaves_no_report(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(weights_module, "_ratio", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process goes on
    flags = ("-o", tmp_path / "r.json", "--markdown", tmp_path / "r.md")
    assert run("verify", checkpoint_dir("tiny"), bundle_dir("tiny"), *flags) == 130
    assert list(tmp_path.iterdir()) == []
    assert "stopped" in capsys.readouterr().err
