"""`phi4mm demo` as a person runs it, on the built-in sample and on other bundles."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phi4mm.cli import demo
from phi4mm.cli.options import sample_bundle, sample_notice
from phi4mm.evals.answer_scores import SCORES
from phi4mm.evals.manifest import read_questions
from phi4mm.modelfile.bundle import Bundle

MEDIA = sample_bundle() / "media"


def run_demo(*args: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "phi4mm", "demo", "-t", "1", *map(str, args)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_every_task_is_shown_and_judged() -> None:
    done = run_demo()
    assert done.stderr == f"phi4mm: {sample_notice()}\n"
    assert "\x1b" not in done.stdout, "a model's words do not steer a terminal"
    tasks = done.stdout.split("--- ")[1:]
    assert [task.splitlines()[0].partition(":")[0] for task in tasks] == [
        "printed text [picture.png]",
        "speech [clip.flac]",
        "spoken question",
        "tool request",
    ]
    for task in tasks:
        lines = task.splitlines()
        assert any(line == "right" or line.startswith("wrong, right is: ") for line in lines)
        assert "prefill" in task
    assert "> Read the text in the picture." in tasks[0]
    assert "tools: " in tasks[3]


@pytest.mark.slow
def test_json_says_what_was_asked_and_whether_it_is_right() -> None:
    tasks = json.loads(run_demo("--json").stdout)["tasks"]
    items = read_questions(MEDIA / "demo.jsonl")
    for task, item in zip(tasks, items, strict=True):
        assert task["right_answers"] == list(item.answers)
        assert task["is_right"] == (SCORES[item.metric](task["answer"], item.answers) == 1)
        assert task["finish_reason"] in ("stop", "length")
        assert task["timings"]["first_token_s"] > 0
    counts = [(task["usage"]["n_image"] > 0, task["usage"]["n_audio"] > 0) for task in tasks]
    assert counts == [(True, False), (False, True), (True, True), (False, False)]


def test_a_bundle_without_encoders_is_asked_what_it_can_answer(
    tmp_path: Path, tiny_path: Path
) -> None:
    with Bundle.open(tiny_path) as bundle:
        shutil.copy(bundle.decoder.path, tmp_path)
    done = run_demo("-m", tmp_path)
    assert done.stderr == ""
    assert done.stdout.count("not asked: this model has no vision encoder") == 2
    assert done.stdout.count("not asked: this model has no audio encoder") == 1
    assert done.stdout.count("prefill") == 1
    tasks = json.loads(run_demo("-m", tmp_path, "--json").stdout)["tasks"]
    assert ["error" in task for task in tasks] == [True, True, True, False]


def test_pictures_are_shown_where_a_terminal_has_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    demo._preview(MEDIA / "shapes.png")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    demo._preview(MEDIA / "shapes.png")
    assert "▀" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    demo._preview(MEDIA / "shapes.png")
    assert capsys.readouterr().out == ""


def test_all_media_of_the_demo_ship() -> None:
    used = {
        Path(name).name
        for item in read_questions(MEDIA / "demo.jsonl")
        for name in (*item.images, *item.audios)
    }
    assert used == {path.name for path in MEDIA.iterdir()} - {"demo.jsonl"}


@pytest.mark.parametrize("command", [["demo"], ["eval", "sample", "tests/data/held_out"]])
def test_an_interrupt_is_one_line(command: list[str], tiny_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "phi4mm", *command, "-t", "1", "-m", str(tiny_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not _has_mapped(process.pid, "-Q8_0.gguf"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"phi4mm: stopped\n")


def _has_mapped(pid: int, name: str) -> bool:
    """Whether a process has a file's weights in its memory."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("the system does not tell what a process has mapped")
    return name in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
