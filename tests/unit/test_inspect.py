"""`phi4mm inspect`: what it says of whole bundles, of parts, of strangers and of damage."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from gguf_builder import entry, f32, foreign_decoder_bytes, gguf
from measured import run

from phi4mm.cli.options import sample_bundle
from phi4mm.inspection import inspect_path
from phi4mm.modelfile import keys
from phi4mm.modelfile.reader import GGUFFile


def copy(folder: Path, *patterns: str) -> Path:
    """A folder with some of the sample's files."""
    for pattern in patterns:
        for path in sample_bundle().glob(pattern):
            shutil.copy(path, folder)
    return folder


def inspect_json(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> tuple[int, dict]:
    code = run("inspect", path, "--json", *flags)
    return code, json.loads(capsys.readouterr().out)


def test_a_whole_bundle_answers_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = inspect_json(capsys, sample_bundle())
    assert code == 0
    assert sorted(file["title"] for file in found["files"]) == [
        "decoder", "mmproj", "speech adapter", "vision adapter",
    ]  # fmt: skip
    assert set(found["answers"].values()) == {None}
    assert not found["warnings"]
    assert not found["faults"]
    assert len({file["bundle_id"] for file in found["files"]}) == 1
    constants = {name: c for file in found["files"] for name, c in file["constants"].items()}
    assert constants["vision"]["image_size"] == 448
    assert constants["audio"]["mel_max_hz"] == 7690


def test_types_account_for_every_byte_of_the_tensors() -> None:
    (file,) = inspect_path(next(sample_bundle().glob("sample-random-Q8_0.gguf"))).files
    assert file.types is not None
    assert set(file.types) == {"Q8_0", "F32"}
    uses = file.types.values()
    bits = 8 * sum(use.n_bytes for use in uses) / sum(use.n_weights for use in uses)
    assert file.bits_per_weight == bits
    assert 8.5 <= bits < 8.6


def test_sha256_is_that_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = inspect_json(capsys, sample_bundle(), "--sha256")
    for file in found["files"]:
        assert file["sha256"] == hashlib.sha256(Path(file["path"]).read_bytes()).hexdigest()


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy(tmp_path, "sample-random-Q8_0.gguf", "mmproj*")
    code, found = inspect_json(capsys, tmp_path)
    assert code == 0
    assert found["answers"]["text"] is None
    assert "no vision adapter" in found["answers"]["pictures"]
    assert "no speech adapter" in found["answers"]["sound"]


def test_a_part_of_another_model_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tmp_path, "sample-random-Q8_0.gguf", "mmproj*")
    mmproj = next(tmp_path.glob("mmproj*"))
    bundle_id = inspect_path(mmproj).files[0].bundle_id
    assert bundle_id is not None
    other = bundle_id[::-1]
    mmproj.write_bytes(mmproj.read_bytes().replace(bundle_id.encode(), other.encode()))
    code, found = inspect_json(capsys, tmp_path)
    assert code == 2
    assert any("of another model" in fault for fault in found["faults"])


def test_damage_in_one_file_leaves_the_others_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tmp_path, "*.gguf")
    mmproj = next(tmp_path.glob("mmproj*"))
    mmproj.write_bytes(mmproj.read_bytes()[:-100])
    code, found = inspect_json(capsys, tmp_path)
    assert code == 2
    faults = {Path(file["path"]).name: file["fault"] for file in found["files"]}
    assert "truncated" in faults.pop(mmproj.name)
    assert set(faults.values()) == {None}


def test_a_decoder_of_another_program_is_described_with_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(foreign_decoder_bytes(leave_out=[keys.Decoder.ROPE_ATTN_FACTOR]))
    assert run("inspect", path) == 0
    text = capsys.readouterr().out
    assert "made by another program" in text
    for lack in (
        keys.Own.BUNDLE_ID,
        keys.Decoder.IMAGE_TOKEN_ID,
        keys.Decoder.AUDIO_TOKEN_ID,
        keys.Decoder.ROPE_ATTN_FACTOR,
    ):
        assert f"lacks {lack}" in text
    assert "answers text: yes" in text
    assert "answers pictures: no" in text


def test_a_file_of_another_model_is_named(tmp_path: Path) -> None:
    content = gguf([entry("general.architecture", "str", "llama")], [f32("x", (4,))])
    (tmp_path / "llama.gguf").write_bytes(content)
    found = inspect_path(tmp_path)
    assert found.files[0].title == "another model ('llama')"
    assert found.faults


def test_files_that_differ_in_one_tensor_have_different_fingerprints(tmp_path: Path) -> None:
    path = copy(tmp_path, "sample-random-Q8_0.gguf") / "sample-random-Q8_0.gguf"
    with GGUFFile.open(path) as file:
        place = list(file.tensors.values())[-1].offset
    before = inspect_path(path).files[0].fingerprint
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert inspect_path(path).files[0].fingerprint != before


def test_nothing_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", tmp_path / "nothing") == 2
    assert "no such file" in capsys.readouterr().err
    assert run("inspect", tmp_path) == 2
    assert "no .gguf file" in capsys.readouterr().err
