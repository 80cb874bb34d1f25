"""`phi4mm run` as a person uses it: a real process, real files, the built-in sample."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

PICTURE = "picture.png"
CLIP = "clip.flac"


def phi4mm(*args, stdin="", timeout=60, env=None):
    """Run the command; standard input is not a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "phi4mm", *map(str, args)],
        input=stdin, capture_output=True, text=True, timeout=timeout, env=env, check=False,
    )  # fmt: skip


def answer(*args, **kwargs):
    """The JSON object of a run that must succeed."""
    done = phi4mm("run", "-t", 1, "--json", "-n", 4, *args, **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_text_goes_to_stdout_and_the_notice_to_stderr():
    done = phi4mm("run", "-t", 1, "-p", "Hello", "-n", 4)
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    assert "built-in sample" in done.stderr
    assert "built-in sample" not in done.stdout


def test_json_counts_every_kind_of_token(sample_media):
    result = answer(
        "-p", "What?", "--image", sample_media / PICTURE, "--audio", sample_media / CLIP
    )
    usage = result["usage"]
    assert usage["n_image"] > 0
    assert usage["n_audio"] > 0
    assert usage["n_text"] > 0
    assert usage["n_prompt"] == usage["n_text"] + usage["n_image"] + usage["n_audio"]
    assert usage["n_generated"] <= 4
    assert result["finish_reason"] in ("stop", "length")
    assert result["timings"]["first_token_s"] > 0


def test_every_picture_counts(sample_media):
    one = answer("-p", "?", "--image", sample_media / PICTURE)["usage"]["n_image"]
    two = answer("-p", "?", "--image", sample_media / PICTURE, "--image", sample_media / PICTURE)
    assert two["usage"]["n_image"] == 2 * one


def test_a_picture_alone_is_answered(sample_media):
    assert answer("--image", sample_media / PICTURE)["usage"]["n_image"] > 0


def test_pages_of_a_document_are_pictures(tmp_path):
    pages = [Image.new("RGB", (448, 448), color) for color in ("red", "green", "blue")]
    pages[0].save(tmp_path / "scan.tiff", save_all=True, append_images=pages[1:])
    one = answer("-p", "?", "--image", tmp_path / "scan.tiff", "--pages", "2")["usage"]["n_image"]
    two = answer("-p", "?", "--image", tmp_path / "scan.tiff", "--pages", "1,3")
    assert two["usage"]["n_image"] == 2 * one


def test_a_page_that_is_not_there_is_refused(tmp_path):
    Image.new("RGB", (448, 448)).save(tmp_path / "scan.tiff")
    done = phi4mm("run", "-p", "?", "--image", tmp_path / "scan.tiff", "--pages", "2")
    assert done.returncode == 2
    assert "has no page 2; it has 1" in done.stderr


def test_pages_are_not_dropped_in_silence(tmp_path):
    pages = [Image.new("RGB", (448, 448), color) for color in ("red", "green")]
    pages[0].save(tmp_path / "scan.tiff", save_all=True, append_images=pages[1:])
    pages[0].save(tmp_path / "moving.gif", save_all=True, append_images=pages[1:])
    done = phi4mm("run", "-p", "?", "--image", tmp_path / "scan.tiff")
    assert done.returncode == 2
    assert "has 2 pages; choose some with --pages" in done.stderr
    done = phi4mm("run", "-t", 1, "-p", "?", "-n", 1, "--image", tmp_path / "moving.gif")
    assert done.returncode == 0
    assert "the first of 2 frames is used" in done.stderr


def test_a_picture_may_come_through_a_pipe_and_is_read_once(sample_media, tiny_path):
    done = phi4mm_bytes(
        "run", "-m", tiny_path, "-t", "1", "-n", "1", "-p", "?", "--image", "/dev/stdin", "--json",
        input=(sample_media / PICTURE).read_bytes(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["n_image"] == 705


def test_minus_one_is_no_limit():
    done = phi4mm("run", "-t", 1, "-p", "Hello", "-n", -1, "-c", 32, "--json")
    assert done.returncode == 0


def test_prompt_from_standard_input():
    assert answer(stdin="Hello")["usage"] == answer("-p", "Hello")["usage"]


def test_a_seed_repeats_the_answer():
    first, second = (answer("-p", "Hello", "--temp", 1, "-s", 3)["text"] for _ in range(2))
    assert first == second


def test_the_model_may_come_from_the_environment(sample_path, monkeypatch):
    monkeypatch.setenv("PHI4MM_MODEL", str(sample_path))
    done = phi4mm("run", "-t", 1, "-p", "Hello", "-n", 2)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "nothing to answer"),
        (["-p", "x", "--image", "absent.png"], "absent.png"),
        (["-p", "x", "--audio", "absent.wav"], "absent.wav"),
        (["-p", "x", "-m", "absent"], "absent"),
        (["-p", "x", "--temp", "-1"], "--temp is -1.0: it must be a number, at least 0"),
        (["-p", "x", "-n", "0"], "-n/--n-predict is 0: it must be"),
        (["-p", "x", "-c", "0"], "-c/--ctx-size is 0: it must be"),
        (["-p", "x", "-c", "1000000"], "-c/--ctx-size is 1000000: this model was trained for"),
        (["-p", "word " * 5000], "the prompt has"),
        (["-p", "x", "-m", "a", "--model", "b"], "-m/--model: given twice: give it once"),
        (["-p", "x", "-c", "many"], "-c/--ctx-size: invalid int value: 'many' (see phi4mm run"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag (see phi4mm run --help)"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, message):
    started = time.monotonic()
    done = phi4mm("run", "-t", 1, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith("phi4mm: ")
    assert message in error
    assert time.monotonic() - started < 3


def test_the_reader_may_go_away():
    process = subprocess.Popen(
        [sys.executable, "-m", "phi4mm", "run", "-t", "1", "-p", "Hello", "-n", "200"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    process.stdout.close()
    assert process.wait(60) in (0, 141)
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


def test_ctrl_c_stops_the_answer():
    process = subprocess.Popen(
        [sys.executable, "-m", "phi4mm", "run", "-t", "1", "-p", "Hello"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in (0, 130)  # it may have finished by itself just before
    assert b"Traceback" not in stderr


def phi4mm_bytes(*args, **kwargs):
    """Run the command without decoding what it says."""
    command = [sys.executable, "-m", "phi4mm", *args]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **kwargs)


def test_a_prompt_that_is_not_utf_8_is_refused():
    done = phi4mm_bytes("run", "-p", b"a\xff\xfeb", stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert b"not valid Unicode at character 1" in done.stderr.splitlines()[-1]


def test_a_narrow_encoding_shows_what_it_can():
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = phi4mm_bytes("run", "-t", "1", "-p", "hi", "-n", "8", env=env)
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "phi4mm", "run", "-t", "1", "-p", "hi", "-n", "2"],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert b"No space left" in done.stderr.splitlines()[-1]
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_closed_streams_are_survived(closed):
    command = (
        f"{sys.executable} -m phi4mm run -t 1 -p hi -n 2 {closed}{'<' if closed == '0' else '>'}&-"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def test_an_impatient_ctrl_c_is_quiet():
    process = subprocess.Popen(
        [sys.executable, "-m", "phi4mm", "run", "-t", "1", "-p", "Hello"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    process.stdout.read(1)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in (0, 130)
    assert b"Traceback" not in stderr
    assert b"ERROR" not in stderr


def test_names_are_shown_on_one_line():
    done = phi4mm("run", "-p", "x", "-m", "a\nb\x1b[31m")
    assert done.returncode == 2
    assert done.stderr == "phi4mm: a\\nb\\x1b[31m: no such file\n"


def test_help_is_quick():
    started = time.monotonic()
    done = phi4mm("--help")
    assert done.returncode == 0
    assert "run" in done.stdout
    assert time.monotonic() - started < 1
