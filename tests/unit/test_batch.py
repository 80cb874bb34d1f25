"""Batches without a cluster: which files, which answers, what is said where Ray is missing."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from phi4mm import InputError, MediaError, SamplingParams
from phi4mm.cli.main import main
from phi4mm.deploy.batch import Item, Question, Worker, plan_items
from phi4mm.engine.parameters import EngineParams
from phi4mm.server.settings import BundlePaths

MEDIA = Path(__file__).parents[1] / "data" / "media"
PICTURE, CLIP = MEDIA / "picture.png", MEDIA / "clip.flac"


@pytest.fixture
def folder(tmp_path):
    """A picture and a clip, one of them below, and something that is neither."""
    folder = tmp_path / "in"
    (folder / "below").mkdir(parents=True)
    (folder / "a.png").write_bytes(PICTURE.read_bytes())
    (folder / "below" / "a.flac").write_bytes(CLIP.read_bytes())
    (folder / "notes.txt").write_text("neither")
    return folder


def test_files_of_folders_are_taken_by_their_bytes(folder, tmp_path):
    items = plan_items([folder], tmp_path / "out")
    assert [item.source for item in items] == [folder / "a.png", folder / "below" / "a.flac"]
    assert [item.output for item in items] == [
        tmp_path / "out" / "a.png.json", tmp_path / "out" / "below" / "a.flac.json"
    ]  # fmt: skip


def test_a_file_given_twice_is_done_once(folder, tmp_path):
    items = plan_items([folder, folder / "a.png"], tmp_path)
    assert len(items) == 2


def test_two_answers_in_one_file_are_refused(folder, tmp_path):
    other = tmp_path / "other" / "a.png"
    other.parent.mkdir()
    other.write_bytes(PICTURE.read_bytes())
    with pytest.raises(InputError, match=r"both be answered in .*a\.png\.json"):
        plan_items([folder, other], tmp_path / "out")


def test_nothing_to_do_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no pictures and no sound files"):
        plan_items([tmp_path], tmp_path / "out")


def worker(bundle_dir, prompt):
    question = Question(
        BundlePaths(bundle_dir("tiny", "ms", "default")),
        EngineParams(n_ctx=2048, n_threads=1),
        SamplingParams(max_tokens=3),
        prompt,
    )
    return Worker(question)


def test_answers_are_files(bundle_dir, tmp_path):
    asked = worker(bundle_dir, "What is this?")
    for source in (PICTURE, CLIP):
        output = tmp_path / "out" / f"{source.name}.json"
        outcome = asked({"source": str(source), "output": str(output)})
        assert outcome["error"] is None
        answer = json.loads(output.read_text())
        assert answer["file"] == str(source)
        assert answer["usage"]["n_generated"] == 3
        assert (answer["usage"]["n_image"] > 0) == (source is PICTURE)


def test_without_a_prompt_clips_are_transcribed(bundle_dir, tmp_path):
    plain = worker(bundle_dir, None)
    output = tmp_path / "clip.json"
    plain.answer(Item(CLIP, output))
    transcript = json.loads(output.read_text())
    assert (transcript["task"], transcript["duration"]) == ("transcribe", 3.012)
    with pytest.raises(InputError, match=r"picture\.png: is no recording.*-p"):
        plain.answer(Item(PICTURE, tmp_path / "picture.json"))


def test_a_broken_file_leaves_no_answer(bundle_dir, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(PICTURE.read_bytes()[:100])
    asked, item = worker(bundle_dir, "What?"), Item(broken, tmp_path / "broken.json")
    with pytest.raises(MediaError):
        asked.answer(item)
    outcome = asked({"source": str(broken), "output": str(item.output)})
    assert "broken.png" in outcome["error"]
    assert not item.output.exists()


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_a_missing_ray_is_said_with_what_brings_it(folder, tmp_path, capsys):
    assert main(["batch", str(folder), "-o", str(tmp_path / "out"), "-p", "What?"]) == 2
    assert "pip install 'phi4mm[ray]'" in capsys.readouterr().err.splitlines()[-1]


def test_what_has_an_answer_is_skipped(folder, tmp_path, capsys):
    out = tmp_path / "out"
    for item in plan_items([folder], out):
        item.output.parent.mkdir(parents=True, exist_ok=True)
        item.output.write_text("{}\n")
    assert main(["batch", str(folder), "-o", str(out), "-p", "What?"]) == 0
    assert "2 of 2 have an answer, skipped" in capsys.readouterr().err
