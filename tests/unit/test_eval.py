"""`phi4mm eval`: scores of known answers, manifests, and runs that were stopped."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import run

from phi4mm.cli.options import sample_bundle
from phi4mm.errors import InputError
from phi4mm.evals.answer_scores import anls, edit_distance, exact_match, relaxed_accuracy
from phi4mm.evals.manifest import ClipItem, key_of, read_clips, read_pictures
from phi4mm.evals.word_errors import WordErrors

MEDIA = sample_bundle() / "media"


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("kitten", "sitting", 3), ("abc", "", 3), ("", "abc", 3), ("flaw", "lawn", 2)],
)
def test_edit_distance(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == distance


@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_edit_distance_is_a_distance(a: str, b: str, c: str) -> None:
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Red.", ["red"], 1),
        ("  a  RED   ball ", ["a red ball"], 1),
        ("red", ["blue", "red"], 1),
        ("redder", ["red"], 0),
        ("", ["red"], 0),
    ],
)
def test_exact_match(prediction: str, answers: list[str], score: float) -> None:
    assert exact_match(prediction, answers) == score


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Hello World", ["hello world"], 1),
        ("hello worlt", ["hello world"], 1 - 1 / 11),
        ("abcd", ["abxy"], 0),  # half right is not enough
        ("abcd", ["wxyz", "abcx"], 0.75),  # the best of the answers
        ("", ["x"], 0),
    ],
)
def test_anls(prediction: str, answers: list[str], score: float) -> None:
    assert anls(prediction, answers) == pytest.approx(score)


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("104.9", ["100"], 1),
        ("105.1", ["100"], 0),
        ("-95", ["-100"], 1),
        ("95", ["-100"], 0),
        ("5%", ["0.05"], 1),
        ("5", ["5%"], 0),
        ("0", ["0.0"], 1),
        ("0.01", ["0"], 0),
        ("Yes", ["yes"], 1),
        ("yes 5", ["5"], 0),
    ],
)
def test_relaxed_accuracy(prediction: str, answers: list[str], score: float) -> None:
    assert relaxed_accuracy(prediction, answers) == score


def test_long_transcripts_weigh_more() -> None:
    total = WordErrors.total([WordErrors(n_words=1, n_deleted=1), WordErrors(n_words=9)])
    assert total.rate == 0.1
    assert WordErrors.total([]).rate == 0
    assert WordErrors(n_inserted=3).rate == 1


def test_words_are_normalised_and_aligned() -> None:
    pytest.importorskip("jiwer")
    pytest.importorskip("whisper_normalizer")
    from phi4mm.evals.word_errors import WordScorer

    scorer = WordScorer("whisper")
    spelt = scorer.count("Mr. Smith has 22 colours!", "mister smith has twenty-two colors", "en")
    assert spelt == WordErrors(n_words=5)
    found = scorer.count("the cat sat down", "a cat sat right down here", "de")
    assert found == WordErrors(n_words=4, n_substituted=1, n_inserted=2)
    assert scorer.count("[noise]", "hello there", "en") == WordErrors(n_inserted=2)
    strict = WordScorer("none")
    assert strict.count("A b.", "a b", "en").n_substituted == 2


def manifest(folder: Path, *lines: object) -> Path:
    path = folder / "items.jsonl"
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "items.jsonl:1: not JSON"),
        ("[]", "must be an object"),
        ({"image": "a.png", "question": "?"}, "'answers' is None, must be a list of strings"),
        ({"image": "a.png", "question": "?", "answers": [1]}, "must be a list of strings"),
        ({"image": "a.png", "question": "", "answers": ["x"]}, "'question' is ''"),
        ({"image": "a.png", "question": "?", "answers": ["x"], "metric": "best"}, "exact, anls"),
        ({"image": "a.png", "question": "?", "answers": ["x"], "anser": 1}, "unknown fields anser"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        read_pictures(manifest(tmp_path, line))


def test_ids_must_differ(tmp_path: Path) -> None:
    item = {"id": "a", "audio": str(MEDIA / "clip.flac"), "text": "x"}
    with pytest.raises(InputError, match="'a' is there twice"):
        read_clips(manifest(tmp_path, item, item))
    with pytest.raises(InputError, match="nothing to evaluate"):
        read_clips(manifest(tmp_path))


def test_a_folder_holds_clips_with_their_texts(tmp_path: Path) -> None:
    data = (MEDIA / "clip.flac").read_bytes()
    book = tmp_path / "19" / "198"
    book.mkdir(parents=True)
    for name in ("19-198-0000.flac", "19-198-0001.flac"):
        (book / name).write_bytes(data)
    lines = "19-198-0000 NORTHANGER ABBEY\n19-198-0001 THIS LITTLE WORK\n"
    (book / "19-198.trans.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "own.flac").write_bytes(data)
    (tmp_path / "own.txt").write_text("my words\n", encoding="utf-8")
    assert {item.id: item.text for item in read_clips(tmp_path)} == {
        "19-198-0000": "NORTHANGER ABBEY",
        "19-198-0001": "THIS LITTLE WORK",
        "own": "my words",
    }
    (tmp_path / "own.wav").write_bytes(data)
    with pytest.raises(InputError, match="2 clips have this name"):
        read_clips(tmp_path)
    (tmp_path / "own.wav").unlink()
    (tmp_path / "own.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"own\.txt: not UTF-8"):
        read_clips(tmp_path)


def test_a_changed_item_is_another_item() -> None:
    assert key_of(ClipItem("a", "x", "y")) != key_of(ClipItem("a", "x", "z"))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    picture = str(MEDIA / "picture.png")
    return manifest(
        tmp_path,
        {"image": picture, "question": "What?", "answers": ["red"], "metric": "anls"},
        {"image": picture, "question": "How many?", "answers": ["2"], "metric": "relaxed"},
    )


def ask(capsys: pytest.CaptureFixture[str], items: Path, *flags: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run("eval", "pictures", items, "-m", sample_bundle(), "-n", 2, "-t", 1, *flags)
    return (code, *capsys.readouterr())


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = tmp_path / "answers.jsonl"
    code, out, _ = ask(capsys, questions, "--answers", answers, "--json")
    assert code == 0
    assert set(json.loads(out)["scores"]) == {"anls", "relaxed"}
    head, first, second = answers.read_text(encoding="utf-8").splitlines()

    # killed while it wrote the second answer; the first is kept as it is, made up here
    kept = json.dumps(json.loads(first) | {"text": "red"})
    answers.write_text(f"{head}\n{kept}\n{second[:20]}", encoding="utf-8")
    code, out, _ = ask(capsys, questions, "--answers", answers, "--json")
    assert json.loads(out)["scores"]["anls"]["value"] == 1
    again = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    assert [line["text"] for line in again[1:]] == ["red", json.loads(second)["text"]]

    code, _, err = ask(capsys, questions, "--answers", answers, "-ctk", "f32")
    assert code == 2
    assert "different cache" in err
    answers.write_text("[1]\n", encoding="utf-8")
    code, _, err = ask(capsys, questions, "--answers", answers)
    assert code == 2
    assert "not a file of answers" in err


def test_bad_items_are_named_at_the_end_and_stop_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    items = manifest(
        tmp_path,
        {"id": "x", "image": "bad.png", "question": "?", "answers": ["y"]},
        {"id": "absent", "image": "absent.png", "question": "?", "answers": ["y"]},
        {"id": "good", "image": str(MEDIA / "picture.png"), "question": "?", "answers": ["y"]},
    )
    record = tmp_path / "record.json"
    code, out, err = ask(capsys, items, "--json", "-o", record)
    found = json.loads(out)
    assert code == 2
    assert found["n_items"] == 1
    assert "exact" in found["scores"]
    assert "bad.png" in found["failed"]["x"]
    assert "absent.png: no such file" in found["failed"]["absent"]
    assert "2 of 3 items could not be asked and are in no score, the first is x:" in err
    assert json.loads(record.read_text(encoding="utf-8"))["result"] == found


def test_a_mended_item_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = manifest(tmp_path, {"image": "late.png", "question": "?", "answers": ["y"]})
    answers = tmp_path / "answers.jsonl"
    code, out, _ = ask(capsys, items, "--answers", answers, "--json")
    assert code == 2
    assert json.loads(out)["scores"] == {}
    shutil.copy(MEDIA / "picture.png", tmp_path / "late.png")
    code, out, _ = ask(capsys, items, "--answers", answers, "--json")
    assert code == 0
    assert json.loads(out)["n_items"] == 1


def test_a_text_without_its_clip_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jiwer")
    (tmp_path / "alone.txt").write_text("words", encoding="utf-8")
    assert run("eval", "wer", tmp_path, "-m", sample_bundle(), "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert "alone.*: no such file" in found["failed"]["alone"]
    assert found["wer"] == {}, "no rate of nothing"


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    items = manifest(tmp_path, {"audio": str(MEDIA / "clip.flac"), "text": "x"})
    assert run("eval", "wer", items, "-m", sample_bundle()) == 2
    assert "pip install 'phi4mm[eval]'" in capsys.readouterr().err
