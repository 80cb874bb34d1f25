"""`phi4mm transcribe` as a person uses it: files, folders, pipes, formats, bad files, resuming."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile


def transcribe(
    *args: object, stdin: bytes = b"", timeout: float = 60
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "phi4mm", "transcribe", "-t", "1", *map(str, args)],
        input=stdin, capture_output=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture
def clip(sample_media: Path) -> Path:
    return sample_media / "clip.flac"


@pytest.fixture
def talk(tmp_path: Path, clip: Path) -> Path:
    """The sample's clip three times, with pauses of two seconds."""
    samples, rate = soundfile.read(clip, dtype="float32")
    audible = np.flatnonzero(np.abs(samples) > 0.02)
    samples = samples[audible[0] : audible[-1]]
    pause = np.zeros(2 * rate, np.float32)
    path = tmp_path / "talk.wav"
    soundfile.write(path, np.concatenate([samples, pause] * 3), rate)
    return path


def test_text_goes_to_stdout_and_numbers_to_stderr(talk: Path) -> None:
    done = transcribe(talk)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.decode().splitlines() if "RTF" in line]
    assert re.search(r"talk\.wav: 1\d\.\d s in [\d.]+ s \(RTF [\d.]+\), \d segments", line)
    assert b"ERROR" not in done.stderr


def test_json_has_the_segments_in_order(talk: Path) -> None:
    found = json.loads(transcribe(talk, "--format", "json").stdout)
    length = soundfile.info(talk).duration
    assert found["duration"] == pytest.approx(length, abs=0.01)
    times = [(s["start"], s["end"]) for s in found["segments"]]
    assert len(times) >= 3
    assert times == sorted(times)
    for start, end in times:
        assert 0 <= start < end <= length
        for edge in (start, end):
            into_clip = edge % (length / 3)
            assert min(into_clip, max(0, length / 3 - 2 - into_clip)) < 0.3


@pytest.mark.parametrize(
    ("format_", "begins"), [("srt", "1\n00:00:0"), ("vtt", "WEBVTT\n\n00:00:0")]
)
def test_subtitles_from_standard_input(talk: Path, format_: str, begins: str) -> None:
    done = transcribe("-", "--format", format_, stdin=talk.read_bytes())
    assert done.returncode == 0
    assert done.stdout.decode().startswith(begins)


def test_many_files_one_of_them_bad_and_once_more(talk: Path, clip: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    shutil.copy(clip, folder / "deep" / "c.flac")
    shutil.copy(clip, folder / "a.flac")
    (folder / "bad.mp3").write_bytes(b"nonsense" * 99)
    done = transcribe(folder, "-o", out, "--format", "json")
    assert done.returncode == 2
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*.*")) == [
        "a.json", "deep/c.json",
    ]  # fmt: skip
    *_, total, bad = done.stderr.decode().splitlines()
    assert total == "phi4mm: 1 of 3 recordings failed:"
    assert "bad.mp3: is not audio" in bad

    (folder / "bad.mp3").unlink()
    written = (out / "a.json").stat().st_mtime_ns
    again = transcribe(folder, "-o", out, "--format", "json")
    assert again.returncode == 0
    assert again.stderr.count(b"skipped (--force does it again)") == 2
    assert (out / "a.json").stat().st_mtime_ns == written
    transcribe(folder, "-o", out, "--format", "json", "--force")
    assert (out / "a.json").stat().st_mtime_ns != written


def test_silence_and_noise_give_an_empty_transcript(tmp_path: Path) -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal(160_000)
    for name, samples in (("silence", np.zeros(160_000)), ("noise", noise), ("blip", [0.0] * 30)):
        soundfile.write(tmp_path / f"{name}.wav", np.asarray(samples), 16000)
        done = transcribe(tmp_path / f"{name}.wav", "--format", "json")
        assert done.returncode == 0
        assert json.loads(done.stdout)["segments"] == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["absent.wav"], "absent.wav: no such file"),
        (["a.wav", "--language", "de"], "--task translate"),
        (["a.wav", "--task", "translate", "--language", "tlh"], "'tlh'"),
        (["a.wav", "--max-piece", "99"], "--max-piece is 99.0: it must be from 2 to 38 s"),
        (["a.wav", "b.wav", "--format", "srt"], "give -o DIR"),
        (["a.wav", "x/a.wav", "-o", "out"], "would both be written"),
        (["a.wav", "-o", "/dev/null/out"], "out/a.txt: cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[str], message: str) -> None:
    started = time.monotonic()
    done = transcribe(*args)
    assert done.returncode == 2
    assert message in done.stderr.decode().splitlines()[-1]
    assert time.monotonic() - started < 10


def test_memory_is_flat_over_twenty_minutes(tiny_path: Path) -> None:
    """The peak of resident memory, after 2 minutes of a recording and at the end of 20."""
    script = """
import resource, sys, numpy as np
from phi4mm import Phi4MM
from phi4mm.media.audio import AudioStream
from phi4mm.transcribe.transcriber import Transcriber
rate, random = 16000, np.random.default_rng(0)
t = np.arange(rate * 20) / rate
voice = np.sin(2 * np.pi * 200 * t) * np.abs(np.sin(9 * t)) * (t < 8)
def blocks():
    for n in range(60):
        yield (0.2 * voice + 1e-3 * random.standard_normal(len(t))).astype(np.float32)
def short(messages, sampling):
    events = model.generate(messages)
    yield next(events)
    events.close()
with Phi4MM(sys.argv[1], n_ctx=1024, n_threads=1, encoder_cache_bytes=0) as model:
    peaks = []
    for segment in Transcriber(short).segments(AudioStream("a", rate, None, blocks())):
        if segment.end_s > 120:
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(segment.end_s, peaks[0], peaks[-1])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tiny_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    end, early, late = map(float, done.stdout.split())
    assert end > 1180
    assert late < 1.1 * early
