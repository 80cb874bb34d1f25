"""What a server survives, and how it ends."""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from server_process import ServerProcess

from phi4mm.modelfile.bundle import Bundle

HELLO = [{"role": "user", "content": "Hello"}]
# the tiny model's stop tokens, so that an answer goes on to the end of the context
ENDLESS = {"logit_bias": {"485": -100, "480": -100}}


@pytest.fixture
def server(tiny_path):
    server = ServerProcess("-m", tiny_path, "-np", "2")
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_new_engine_takes_over(server, client):
    for _ in range(2):
        stream = client.chat.completions.create(
            model="phi4-mm", messages=HELLO, stream=True, **ENDLESS
        )
        next(iter(stream))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                client.chat.completions.create, model="phi4-mm", messages=HELLO, **ENDLESS
            )
            server.wait_until(lambda: server.n_busy() == 2)
            killed = time.monotonic()
            os.kill(server.engine_pid, signal.SIGKILL)
            with pytest.raises(openai.APIError, match="the engine died"):
                list(stream)
            with pytest.raises(openai.InternalServerError, match="the engine died"):
                waiting.result(30)
        assert server.request("/health")[0] == 503
        with pytest.raises(openai.InternalServerError, match="loading") as error:
            client.chat.completions.create(model="phi4-mm", messages=HELLO)
        assert error.value.status_code == 503
        server.wait_ready()
        assert time.monotonic() - killed < 20  # how long Python takes to start on a busy machine
        answer = client.chat.completions.create(model="phi4-mm", messages=HELLO, max_tokens=2)
        assert answer.usage.completion_tokens == 2
    assert "phi4mm_engine_restarts 2.0" in server.request("/metrics")[1]
    log = "".join(server.log)
    assert log.count("was ended by signal 9; starting another one") == 2
    assert log.count(f"ready: {server.url}\n") == 3


def test_slots_are_listed_before_anything_was_asked(server):
    slots = server.request("/slots")[1]
    assert [slot["is_processing"] for slot in slots] == [False] * 3  # two short, a long one


def test_what_the_engine_raises_is_one_record_of_the_log(tmp_path, sample_path):
    bundle = shutil.copytree(sample_path, tmp_path / "bundle")
    server = ServerProcess("-m", bundle, "--log-format", "json")
    try:
        server.wait_ready()
        with Bundle.open(bundle) as opened:
            opened.decoder.path.unlink()
        os.kill(server.engine_pid, signal.SIGKILL)
        server.wait_until(lambda: any("the engine failed" in line for line in server.log), 30)
        assert server.request("/health")[0] == 503
    finally:
        server.stop()
    records = [json.loads(line) for line in server.log]  # every line is one
    (ready,) = [r for r in records if r["message"].startswith("ready: ")]
    assert ready["message"] == f"ready: {server.url}"
    failure = next(r for r in records if r["message"].startswith("the engine failed"))
    assert failure["level"] == "error"
    assert "Traceback (most recent call last):" in failure["message"]
    assert "ModelFileError" in failure["message"]


def test_running_answers_are_finished_at_the_end(server, client):
    stream = client.chat.completions.create(
        model="phi4-mm", messages=HELLO, stream=True, max_tokens=600, **ENDLESS
    )
    chunks = iter(stream)
    next(chunks)
    server.process.send_signal(signal.SIGTERM)
    assert [c.choices[0].finish_reason for c in chunks][-1] == "length"
    assert server.process.wait(30) == 0
    assert "Traceback" not in "".join(server.log)


def test_an_answer_may_not_take_for_ever(tiny_path):
    server = ServerProcess("-m", tiny_path, "--timeout", "0.2")
    try:
        server.wait_ready()
        body = {"messages": HELLO, **ENDLESS}
        status, answer, headers = server.request("/v1/chat/completions", body)
        assert (status, answer["error"]["code"]) == (503, "timed_out")
        assert "limit of 0.2 s" in answer["error"]["message"]
        assert headers["retry-after"]
        status, stream, _ = server.request("/v1/chat/completions", body | {"stream": True})
        assert status == 200
        assert "timed_out" in stream.split("\n\n")[-2]
        server.wait_until(lambda: server.n_busy() == 0)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-m", "absent"], "absent"),
        (["-c", "1000000"], "-c/--ctx-size is 1000000"),
        (["-np", "0"], "-np/--parallel is 0"),
        (["--max-body", "0"], "--max-body is 0"),
        (["--media-path", "absent"], "absent"),
        (["--api-key-file", "absent"], "absent"),
    ],
)
def test_bad_settings_are_said_at_once(args, message, capsys):
    from phi4mm.cli.main import main

    assert main(["serve", *args]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_model_without_encoders_says_so_and_lives(tmp_path, sample_path, sample_media):
    with Bundle.open(sample_path) as bundle:
        decoder = shutil.copy(bundle.decoder.path, tmp_path)
    server = ServerProcess("-m", decoder)
    try:
        server.wait_ready()
        picture, clip = (
            base64.b64encode((sample_media / name).read_bytes()).decode()
            for name in ("picture.png", "clip.flac")
        )
        for part in (
            {"type": "image_url", "image_url": {"url": picture}},
            {"type": "input_audio", "input_audio": {"data": clip, "format": "flac"}},
        ):
            body = {"messages": [{"role": "user", "content": [part]}]}
            status, answer, _ = server.request("/v1/chat/completions", body)
            assert status == 400
            assert "mmproj" in answer["error"]["message"]
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
            pytest.raises(openai.BadRequestError, match="no audio encoder"),
        ):
            client.audio.transcriptions.create(model="phi4-mm", file=sample_media / "clip.flac")
        assert server.request("/v1/models")[1]["data"][0]["input_modalities"] == ["text"]
        status, answer, _ = server.request(
            "/v1/chat/completions", {"messages": HELLO, "max_tokens": 1}
        )
        assert status == 200
    finally:
        server.stop()


def test_more_tokens_than_there_is_room_for(tiny_path):
    server = ServerProcess("-m", tiny_path, "-c", "64")
    try:
        server.wait_ready()
        body = {"messages": HELLO, "max_tokens": 1_000_000, **ENDLESS}
        status, answer, _ = server.request("/v1/chat/completions", body)
        assert status == 200
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 65
    finally:
        server.stop()


def test_a_port_in_use_is_refused_before_anything_is_loaded(server):
    port = server.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, "-m", "phi4mm", "serve", "--port", port],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [(), ("--log-contents",)])
def test_the_log_holds_contents_only_where_that_is_asked_for(tiny_path, flags):
    server = ServerProcess("-m", tiny_path, "--log-format", "json", *flags)
    try:
        server.wait_ready()
        body = {"messages": [{"role": "user", "content": "a secret\n"}], "max_tokens": 2}
        body["user"] = "x" * 5000
        answer = server.request("/v1/chat/completions", body)[1]
    finally:
        server.stop()
    lines = [json.loads(line)["message"] for line in server.log]
    contents = [line for line in lines if "secret" in line or answer["id"] in line]
    if not flags:
        assert contents == []
        return
    asked, answered = contents
    assert asked.startswith('/v1/chat/completions asked: {"messages"')
    assert re.search(r"x \.\.\. \d+ bytes more$", asked)
    assert answered.startswith("/v1/chat/completions answered: {")
