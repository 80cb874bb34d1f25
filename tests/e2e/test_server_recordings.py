"""Recordings of any length over HTTP, on a random model: its words mean nothing."""

from __future__ import annotations

import io
import socket
import warnings
from pathlib import Path

import numpy as np
import openai
import pytest
import soundfile
from server_process import ServerProcess

N_CLIPS, PAUSE_S = 4, 1.5


@pytest.fixture(scope="module")
def server(tiny_path):
    server = ServerProcess("-m", tiny_path, "-np", "2", "--max-audio", "900")
    server.wait_ready()
    yield server
    assert server.stop() == 0
    assert "Traceback" not in "".join(server.log)


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def spoken(sample_media):
    """(samples, rate) of the sample's clip, from the first sound to the last."""
    samples, rate = soundfile.read(sample_media / "clip.flac", dtype="float32")
    audible = np.flatnonzero(np.abs(samples) > 0.02)
    return samples[audible[0] : audible[-1]], rate


@pytest.fixture(scope="module")
def talk(spoken, tmp_path_factory):
    """(file, seconds of one clip with its pause)."""
    samples, rate = spoken
    path = tmp_path_factory.mktemp("talk") / "talk.flac"
    pause = np.zeros(round(PAUSE_S * rate), np.float32)
    soundfile.write(path, np.concatenate([samples, pause] * N_CLIPS), rate)
    return path, len(samples) / rate + PAUSE_S


def transcribe(client, path: Path, **settings):
    return client.audio.transcriptions.create(model="phi4-mm", file=path, **settings)


def require_times(segments, period: float) -> None:
    """Each segment is one of the clips, in order."""
    assert len(segments) == N_CLIPS
    for i, segment in enumerate(segments):
        assert segment.start == pytest.approx(i * period, abs=0.3)
        assert segment.end == pytest.approx((i + 1) * period - PAUSE_S, abs=0.3)


def test_segments_of_a_recording_longer_than_a_piece(client, talk):
    path, period = talk
    answer = transcribe(client, path, response_format="verbose_json", language="en")
    require_times(answer.segments, period)
    assert [segment.id for segment in answer.segments] == list(range(N_CLIPS))
    assert answer.duration == pytest.approx(N_CLIPS * period, abs=0.1)
    assert answer.language == "english"
    assert answer.text == " ".join(s.text for s in answer.segments if s.text)
    plain = transcribe(client, path)
    assert plain.text == answer.text
    # only the speech is heard, with at most 0.6 s around each piece
    n_seconds = 0.08 * plain.usage.input_token_details.audio_tokens
    assert 0 < n_seconds - N_CLIPS * (period - PAUSE_S) < N_CLIPS * 0.8
    assert plain.usage.total_tokens == plain.usage.input_tokens + plain.usage.output_tokens


def test_it_agrees_with_the_command_line(client, talk, capsys, tiny_path):
    from phi4mm.cli.main import main

    path, _ = talk
    flags = ["-t", "1", "-m", str(tiny_path), "--format", "srt"]
    assert main(["transcribe", *flags, str(path)]) == 0
    assert transcribe(client, path, response_format="srt") == capsys.readouterr().out


def test_subtitles_and_text(client, talk):
    path, _ = talk
    vtt = transcribe(client, path, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    assert vtt.count(" --> ") > 1
    text = transcribe(client, path, response_format="text")
    assert text == transcribe(client, path).text + "\n"


@pytest.mark.parametrize("output", ["json", "verbose_json"])
def test_a_stream_holds_the_same(client, talk, output):
    path, period = talk
    events = list(transcribe(client, path, response_format=output, stream=True))
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert done.text == transcribe(client, path).text
    assert done.usage.output_tokens > 0
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    assert "".join(event.delta for event in deltas) == done.text
    segments = [event for event in events if event.type == "transcript.text.segment"]
    if output == "json":
        assert segments == []
    else:
        require_times(segments, period)
        assert [s.id for s in segments] == [delta.segment_id for delta in deltas]


@pytest.mark.parametrize("kind", ["MP3", "OGG", "AIFF"])
def test_other_kinds_of_files(client, spoken, tmp_path, kind):
    path = tmp_path / "clip.wav"  # its contents count
    soundfile.write(path, *spoken, format=kind)
    answer = transcribe(client, path, response_format="verbose_json")
    assert len(answer.segments) == 1
    assert answer.duration == pytest.approx(len(spoken[0]) / spoken[1], abs=0.15)


def test_a_short_word_has_a_segment(client, spoken, tmp_path):
    samples, rate = spoken
    soundfile.write(tmp_path / "word.wav", samples[: rate * 3 // 10], rate)
    answer = transcribe(client, tmp_path / "word.wav", response_format="verbose_json")
    assert len(answer.segments) == 1


def test_translations_are_into_english(client, talk):
    path, _ = talk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the client advises against it
        answer = client.audio.translations.create(
            model="phi4-mm", file=path, response_format="verbose_json"
        )
    assert (answer.task, answer.language) == ("translate", "english")
    assert len(answer.segments) == N_CLIPS


def test_silence_and_noise_have_no_words(client, tmp_path):
    noise = 0.05 * np.random.default_rng(0).standard_normal(160_000)
    for name, samples in (("silence", np.zeros(160_000)), ("blip", np.zeros(30)), ("noise", noise)):
        soundfile.write(tmp_path / f"{name}.wav", samples, 16000)
        answer = transcribe(client, tmp_path / f"{name}.wav", response_format="verbose_json")
        assert (answer.text, answer.segments) == ("", [])


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"language": "tlh"}, "'tlh': the model's speech knows en (English)", "language"),
        ({"languages": ["de", "xx"]}, "'xx'", "languages"),
        ({"prompt": "word " * 400}, "give at most 224", "prompt"),
        ({"timestamp_granularities": ["word"]}, "no times of words", "timestamp_granularities"),
        ({"timestamp_granularities": ["segment"]}, "verbose_json", "timestamp_granularities"),
        ({"include": ["logprobs"]}, "log probabilities", "include"),
        ({"known_speaker_names": ["Ann"]}, "speakers", "known_speaker_names"),
        ({"keywords": ["Ann"]}, "in prompt", "keywords"),
        ({"chunking_strategy": '{"type": "server_vad"}'}, "give auto", "chunking_strategy"),
        ({"response_format": "diarized_json"}, "use one of json, text", "response_format"),
        ({"stream": "true", "response_format": "srt"}, "json or verbose_json", "response_format"),
        ({"stream": "perhaps"}, "use true or false", "stream"),
        ({"temperature": "-1"}, "temperature is -1", "temperature"),
        ({"temperature": "warm"}, "'warm'", "temperature"),
    ],
)
def test_what_cannot_be_done_is_refused(client, talk, fields, words, param):
    with pytest.raises(openai.BadRequestError) as refusal:
        transcribe(client, talk[0], extra_body=fields)
    assert words in refusal.value.message
    assert refusal.value.param == param


def test_what_changes_nothing_is_taken(client, talk):
    path, _ = talk
    plain = transcribe(client, path)
    same = transcribe(
        client, path, language="German", temperature=0, extra_body={"chunking_strategy": "auto"}
    )
    assert same.text == plain.text


def test_a_prompt_goes_along(client, talk):
    path, _ = talk
    plain, hinted = transcribe(client, path), transcribe(client, path, prompt="Names: Ann, Bob.")
    before = plain.usage.input_token_details.text_tokens
    assert hinted.usage.input_token_details.text_tokens > before + N_CLIPS


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_recording_that_is_too_long_is_refused_at_once(client, tmp_path, is_stream):
    soundfile.write(tmp_path / "long.flac", np.zeros(901 * 8000, np.float32), 8000)
    with pytest.raises(openai.BadRequestError, match=r"limit of 900 s \(--max-audio\)"):
        transcribe(client, tmp_path / "long.flac", stream=is_stream)


# a WAV header without data
NO_SAMPLES = io.BytesIO()
soundfile.write(NO_SAMPLES, np.zeros(0), 16000, format="WAV")
NO_SAMPLES = NO_SAMPLES.getvalue()


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_is_no_sound_is_refused_with_a_status(client, is_stream):
    for data, words in (
        (b"", "0 bytes"),
        (b"not a sound", "libsndfile"),
        (NO_SAMPLES, "file: has no samples"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            client.audio.transcriptions.create(
                model="phi4-mm", file=("a.wav", data), stream=is_stream
            )


def n_in_flight(server) -> float:
    lines = server.request("/metrics")[1].splitlines()
    return next(float(x.split()[1]) for x in lines if x.startswith("phi4mm_answers_in_flight "))


def test_leaving_stops_the_work(server, spoken):
    samples, rate = spoken
    data = io.BytesIO()
    pause = np.zeros(2 * rate, np.float32)
    soundfile.write(data, np.concatenate([samples, pause] * 60), rate, format="FLAC")
    body = (
        b'--x\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + data.getvalue()
        + b"\r\n--x--\r\n"
    )
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        received = b""
        while b"transcript.text.delta" not in received:
            received += connection.recv(4096)
        assert n_in_flight(server) == 1
    server.wait_until(lambda: server.n_busy() == 0 and n_in_flight(server) == 0)


def test_memory_does_not_grow_with_the_recording(server, client, spoken, tmp_path):
    samples, rate = spoken
    peaks = []
    for minutes in (2, 12):  # the second has 46 MB of samples, and as much again at every copy
        quiet = np.zeros(minutes * 60 * rate, np.float32)
        quiet[-len(samples) - rate : -rate] = samples
        soundfile.write(tmp_path / "quiet.flac", quiet, rate)
        answer = transcribe(client, tmp_path / "quiet.flac", response_format="verbose_json")
        assert answer.duration == pytest.approx(minutes * 60, abs=0.1)
        assert len(answer.segments) == 1
        peaks.append(rss_mib(server.process.pid))
    assert peaks[1] - peaks[0] < 25  # what the allocator keeps differs by some MB


def rss_mib(pid: int) -> float:
    """The most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
