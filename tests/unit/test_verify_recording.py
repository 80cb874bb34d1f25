"""`phi4mm verify --recorded`: what the reference said, on disk, in place of the reference."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured import run

from damaged_bundle import damaged
from parity.fixtures import BundleDir, CheckpointDir
from phi4mm.api import Phi4MM
from phi4mm.convert.checkpoint import open_checkpoint
from phi4mm.modelfile.bundle import Bundle
from phi4mm.verify import ours
from phi4mm.verify import recording as recording_module
from phi4mm.verify.case import CASES, Answer
from phi4mm.verify.recording import Recording, read_recording, write_recording
from phi4mm.verify.weights import compare_weights


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(scope="module")
def recorded(bundle_dir: BundleDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the F32 bundle itself says, which is what the reference says but for rounding."""
    path = tmp_path_factory.mktemp("recording") / "reference.npz"
    with Phi4MM(bundle_dir("tiny"), n_threads=1, kv_type="f32") as model:
        recording = Recording(str(model.bundle.bundle_id))
        for name, pieces in ours.encoder_stages(model, 1).items():
            recording.add_stage(name, [np.nan_to_num(piece) for piece in pieces])
        for case in CASES:
            answer = ours.answer(model, case)
            chosen = np.eye(answer.logits.shape[1], dtype=np.float32)[list(answer.tokens[1:])]
            rows = np.concatenate([answer.logits[-1:], chosen])
            recording.add_answer(case, rows, answer.tokens)
    write_recording(recording, path)
    return path


Verify = Callable[..., dict[str, Any]]


@pytest.fixture
def verify(checkpoint_dir: CheckpointDir, recorded: Path, capsys: pytest.CaptureFixture) -> Verify:
    def verify(bundle: Path) -> dict[str, Any]:
        capsys.readouterr()
        flags = ("--recorded", recorded, "--json", "-t", 1)
        assert run("verify", checkpoint_dir("tiny"), bundle, *flags) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return verify


def test_what_said_the_same_meets_the_bar(verify: Verify, bundle_dir: BundleDir) -> None:
    found = verify(bundle_dir("tiny"))
    assert found["meets_bar"] is True
    assert found["missing"] == []
    assert {stage["max_error"] for stage in found["stages"]} == {0}
    assert {stage["name"] for stage in found["stages"]} >= {
        "vis.layer0", "vis.projected", "aud.subsampled", "aud.block1", "aud.projected.vision",
    }  # fmt: skip
    assert [answer["name"] for answer in found["answers"]] == [case.name for case in CASES]
    for answer in found["answers"]:
        assert (answer["n_agreed"], answer["n_greedy"]) == (32, 32)
        assert answer["max_error"] < 1e-4
        assert answer["cosine"] == pytest.approx(1, abs=1e-9)


def test_rounded_weights_show(verify: Verify, bundle_dir: BundleDir) -> None:
    found = verify(bundle_dir("tiny", types="default"))
    assert found["meets_bar"] is False
    assert min(stage["relative"] for stage in found["stages"]) > 1e-4
    assert max(answer["max_error"] for answer in found["answers"]) > 1e-2


def test_of_a_long_stage_some_rows_are_kept(tmp_path: Path) -> None:
    rows = np.arange(2000, dtype=np.float32).reshape(1000, 2)
    recording = Recording("id")
    recording.add_stage("x", [rows[:600], rows[600:]])
    recording.add_stage("y", [rows[:3]])
    write_recording(recording, tmp_path / "r.npz")
    kept = read_recording(tmp_path / "r.npz", "id").stages
    assert kept["x"].step == 16
    np.testing.assert_array_equal(kept["x"].rows, rows[::16])
    np.testing.assert_array_equal(kept["y"].rows, rows[:3])
    wrong = rows.copy()
    wrong[160] += 1
    (error,) = Recording("id", {"x": kept["x"]}).stage_errors({"x": [wrong]})
    assert error.max_error == 1
    (same,) = Recording("id", {"x": kept["x"]}).stage_errors({"x": [rows]})
    assert same.max_error == 0


def test_nan_is_found_and_named(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    recorded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rows of NaN stand for patches without a part in the result: damage must not pass as such."""
    path = damaged(bundle_dir("tiny"), tmp_path / "damaged", "v.blk.1.ln1.weight")
    assert run("verify", checkpoint_dir("tiny"), path, "--recorded", recorded, "-t", 1) == 2
    assert "the bundle computes NaN or infinity" in capsys.readouterr().err
    report = compare_weights(open_checkpoint(checkpoint_dir("tiny")), Bundle.open(path))
    (mmproj,) = (part for part in report.parts if "mmproj" in part.part)
    assert (mmproj.worst, mmproj.worst_relative) == ("v.blk.1.ln1.weight", float("inf"))


def test_an_answer_is_known_up_to_where_the_reference_left_it() -> None:
    recording = Recording("id")
    logits = np.eye(5, dtype=np.float32)[[3, 1, 4, 0]]
    recording.add_answer(CASES[0], logits, (3, 1, 2, 2))
    assert recording.answers["text"].tokens == (3, 1, 4), "what comes after 2 says nothing"
    for tokens, n_agreed in (((3, 1, 4, 0), 3), ((3, 2, 4), 1), ((0,), 0)):
        error = recording.answer_error(CASES[0], Answer(logits[:1], tokens))
        assert (error.n_agreed, error.n_greedy, error.max_error) == (n_agreed, 3, 0)


def test_a_recording_of_another_checkpoint_or_other_prompts_is_refused(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    recorded: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = ("--recorded", recorded)
    assert run("verify", checkpoint_dir("heads"), bundle_dir("heads"), *flags) == 2
    assert "of the checkpoint of bundle" in capsys.readouterr().err
    monkeypatch.setattr(recording_module, "CASES", CASES[:2])
    assert run("verify", checkpoint_dir("tiny"), bundle_dir("tiny"), *flags) == 2
    assert "of other prompts: record again" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"[]", "another", "without rows"])
def test_what_is_no_recording_is_refused(
    recorded: Path, tmp_path: Path, content: bytes | str
) -> None:
    path = tmp_path / "r.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "another":
        np.savez(path, x=np.ones(3))
    else:
        with np.load(recorded) as arrays:
            np.savez(path, **{name: arrays[name][:0] for name in arrays.files if ":" in name})
    with pytest.raises(recording_module.ModelFileError, match="no recording of phi4mm verify"):
        read_recording(path, "id")


def test_a_missing_file_and_a_missing_reference_are_named(
    checkpoint_dir: CheckpointDir,
    bundle_dir: BundleDir,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("verify", checkpoint_dir("tiny"), bundle_dir("tiny"))
    assert run(*arguments, "--recorded", tmp_path / "absent.npz") == 2
    assert "absent.npz: cannot be read" in capsys.readouterr().err
    assert run(*arguments, "--record", tmp_path / "r.npz") == 2
    assert "pip install 'phi4mm[verify]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
