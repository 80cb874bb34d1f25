"""`phi4mm inspect`: what it says of whole bundles, of parts, of strangers and of damage."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_builder import entry, f32, foreign_decoder_bytes, gguf
from measured import run, sample_decoder
from third_party import write_third_party

from phi4mm.cli.options import sample_bundle
from phi4mm.inspection import inspect_path
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle
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
    with Bundle.open(sample_bundle()) as bundle:
        assert bundle.vision is not None
        assert constants["vision"]["image_size"] == bundle.vision.image_size
    assert constants["audio"]["mel_max_hz"] == 7690


def test_a_decoder_file_counts_its_neighbours_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every verb does that is given the file."""
    path = copy(tmp_path, "*.gguf") / sample_decoder().name
    code, found = inspect_json(capsys, path)
    assert code == 0
    assert [Path(file["path"]) for file in found["files"]] == [path]
    assert set(found["answers"].values()) == {None}
    others = {str(p) for p in tmp_path.iterdir()} - {str(path)}
    assert set(found["beside"]) == others
    assert run("inspect", path) == 0
    assert "used with it, from its folder: mmproj" in capsys.readouterr().out

    assert inspect_json(capsys, tmp_path)[1]["beside"] == [], "of a folder all are described"
    mmproj = next(tmp_path.glob("mmproj*"))
    assert inspect_json(capsys, mmproj)[1]["beside"] == []


def test_two_neighbours_for_one_part_are_no_fault_of_the_decoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy(tmp_path, "*.gguf") / sample_decoder().name
    shutil.copy(next(tmp_path.glob("mmproj*")), tmp_path / "mmproj-again.gguf")
    code, found = inspect_json(capsys, path)
    assert code == 0
    assert found["answers"] == {}
    assert "several files for one part" in found["warnings"][0]
    code, found = inspect_json(capsys, tmp_path)
    assert code == 2
    assert "several files for one part" in found["faults"][0]


def test_types_account_for_every_byte_of_the_tensors() -> None:
    (file,) = inspect_path(sample_decoder()).files
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
    copy(tmp_path, sample_decoder().name, "mmproj*")
    code, found = inspect_json(capsys, tmp_path)
    assert code == 0
    assert found["answers"]["text"] is None
    assert "no vision adapter" in found["answers"]["pictures"]
    assert "no speech adapter" in found["answers"]["sound"]


def test_a_part_of_another_model_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tmp_path, sample_decoder().name, "mmproj*")
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
    path = copy(tmp_path, sample_decoder().name) / sample_decoder().name
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


# ---- files of several models


def test_files_of_several_models_are_sorted(
    tmp_path: Path, bundle_dir: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tmp_path, "mmproj*", "*vision-lora*")
    for path in bundle_dir("heads").glob("*speech-lora*"):
        shutil.copy(path, tmp_path)
    code, found = inspect_json(capsys, tmp_path)
    assert code == 2
    assert sorted(map(len, found["families"].values())) == [1, 2]
    assert "files of 2 models, and no decoder" in found["faults"][0]
    run("inspect", tmp_path)
    text = capsys.readouterr().out
    for bundle_id, paths in found["families"].items():
        assert f"of one model ({bundle_id}): {Path(paths[0]).name}" in text


def test_several_quantisations_of_one_model_are_one_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tmp_path, "*.gguf")
    shutil.copy(tmp_path / sample_decoder().name, tmp_path / "second.gguf")
    code, found = inspect_json(capsys, tmp_path)
    assert code == 2
    assert len(found["families"]) == 1
    assert "several files for one part" in found["faults"][0]


# ---- a decoder as llama.cpp's converter writes it


def test_a_third_party_decoder_is_accepted_with_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_third_party(sample_bundle(), tmp_path / "Phi-4-multimodal-instruct-Q8_0.gguf")
    code, found = inspect_json(capsys, path)
    assert code == 0
    assert not found["faults"]
    assert found["answers"]["text"] is None
    assert "no vision encoder" in found["answers"]["pictures"]
    (file,) = found["files"]
    assert not file["is_own"]
    assert file["constants"]["decoder"]["rope_attn_factor"] > 1
    lacks = {lack.partition(":")[0] for lack in file["lacks"]}
    assert lacks == {
        keys.Own.BUNDLE_ID,
        keys.Tokenizer.EOT_ID,
        keys.Decoder.IMAGE_TOKEN_ID,
        keys.Decoder.AUDIO_TOKEN_ID,
    }


def test_a_third_party_decoder_takes_our_encoders_and_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(tmp_path, "mmproj*", "*lora*")
    write_third_party(sample_bundle(), tmp_path / "published.gguf")
    code, found = inspect_json(capsys, tmp_path)
    assert code == 0
    assert set(found["answers"].values()) == {None}
    assert set(map(len, found["families"].values())) == {1, 3}
    assert all("cannot be checked" in warning for warning in found["warnings"])


def test_a_third_party_decoder_answers_as_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_third_party(sample_bundle(), tmp_path / "published.gguf")
    question = ("-t", 1, "-p", "Hello", "-n", 4)
    assert run("run", "-m", path, *question) == 0
    theirs = capsys.readouterr().out
    assert run("run", "-m", sample_bundle(), *question) == 0
    assert capsys.readouterr().out == theirs
