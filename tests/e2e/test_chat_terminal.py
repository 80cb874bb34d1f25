"""`phi4mm chat` as a person uses it: in a terminal of its own, and through a pipe."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

# Escape sequences, and blanks: a terminal moves its cursor where it could write a blank.
_UNSEEN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_=>])|[\s\x08]")
_TAB, _CTRL_C, _CTRL_D = "\t", "\x03", "\x04"


class Screen:
    """A chat in a pseudo-terminal."""

    def __init__(self, folder: Path, *args: str) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "NO_COLOR": "",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phi4mm", "chat", "-t", "1", *args],
            stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment,
            start_new_session=True,
            # so that Ctrl-C reaches it
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.raw = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, timeout: float = 60) -> str:
        """Wait until ``text`` is shown, and return what was shown up to it, without blanks."""
        text, end = _UNSEEN.sub("", text), time.monotonic() + timeout
        while True:
            shown = _UNSEEN.sub("", self.raw)
            if text in shown:
                before, _, self.raw = shown.partition(text)
                return before
            assert self._read(end - time.monotonic()), f"{text!r} did not come after {shown!r}"

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0, seconds))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:  # the other end is closed
            data = b""
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def folder(
    tmp_path: Path, sample_media: Path, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A home with a picture of an awkward name, where a random model answers."""
    monkeypatch.setenv("PHI4MM_MODEL", str(tiny_path))
    shutil.copy(sample_media / "picture.png", tmp_path / "it's a cat.png")
    shutil.copy(sample_media / "clip.flac", tmp_path / "memo.flac")
    Image.new("RGB", (1340, 900), "green").save(tmp_path / "large.png")
    (tmp_path / "broken.png").write_bytes((sample_media / "picture.png").read_bytes()[:200])
    return tmp_path


@pytest.fixture
def screen(folder: Path) -> Iterator[Screen]:
    screen = Screen(folder, "-n", "4")
    yield screen
    screen.close()


def test_a_conversation_at_the_terminal(screen: Screen, folder: Path) -> None:
    screen.expect("> ")
    screen.type("/im" + _TAB)
    screen.expect("/image")
    screen.type(" ~/it" + _TAB)
    screen.expect("it\\'s\\ a\\ cat.png")
    screen.type("\r")
    assert "▀" in screen.expect("[it's a cat.png · 640x400 · 2 + 1 crops · 705 tokens]")
    screen.expect("[1 attached] > ")

    screen.type("What is this?\r")
    screen.type("And now?\r")
    screen.type("/stats\r")
    screen.expect("> /stats")
    shown = screen.expect("vision adapter")
    cached, new = map(int, re.search(r"(\d+)cached,(\d+)new", shown).groups())  # type: ignore[union-attr]
    assert cached > 705
    assert new < 60

    screen.type("large.png\r")
    screen.expect("[1 attached] > ")
    screen.type("And this?\r")
    time.sleep(0.5)  # encoding it takes seconds
    screen.type(_CTRL_C)
    screen.expect("stopped")
    screen.expect("[1 attached] > ")

    screen.type("broken.png\r")
    screen.expect("error: broken.png: PNG picture is damaged")
    screen.type("/image absent.png\r")
    screen.expect("error: absent.png: no such file")
    screen.type("/save talk.json\r")
    screen.expect("saved 2 turns to talk.json")
    screen.type("/clear\r")
    screen.expect("cleared")
    screen.type("/load talk.json\r")
    screen.expect("loaded 2 turns from talk.json")

    screen.expect("> ")
    screen.type("half a line")
    screen.expect("half a line")
    screen.type(_CTRL_C)
    screen.expect("> ")  # between two prompts the terminal itself would take the next key
    screen.type(_CTRL_D)
    assert screen.process.wait(30) == 0
    history = (folder / "state" / "phi4mm" / "chat_history").read_text()
    assert "+What is this?" in history


def piped(
    folder: Path, lines: str, *args: object, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phi4mm", "chat", "-t", "1", "-n", "4", *map(str, args)],
        input=lines, capture_output=True, text=True, timeout=timeout, cwd=folder, check=False,
    )  # fmt: skip


def test_through_a_pipe(folder: Path) -> None:
    done = piped(folder, "it's a cat.png\nWhat?\nmemo.flac\nAnd?\n/stats\n/exit\nmore\n")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stdout.count("\n") >= 2
    assert "▀" not in done.stderr
    assert "[it's a cat.png · 640x400" in done.stderr
    assert "705 image + 38 audio" in done.stderr


def test_a_failed_line_shows_in_the_exit_code(folder: Path) -> None:
    done = piped(folder, "/image absent.png\nHello\n")
    assert done.returncode == 2
    assert "error: absent.png: no such file" in done.stderr
    assert done.stdout.strip()


def test_media_and_a_conversation_may_be_given_beforehand(folder: Path) -> None:
    done = piped(
        folder, "What?\n/save a.json\n", "--image", "it's a cat.png", "--audio", "memo.flac",
        "-sys", "Be brief.",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = piped(folder, "/system\nAgain?\n/stats\n", "--load", "a.json")
    assert done.returncode == 0, done.stderr
    assert "system: Be brief." in done.stderr
    assert "705 image + 38 audio" in done.stderr


@pytest.mark.parametrize("args", [["--load", "absent.json"], ["--image", "absent.png"]])
def test_what_is_given_beforehand_must_be_right(folder: Path, args: list[str]) -> None:
    done = piped(folder, "Hello\n", *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "phi4mm: absent" in done.stderr


def test_an_interrupt_ends_a_piped_chat(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "phi4mm", "chat", "-t", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Hello\n" * 50)
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
