"""What a server survives, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from server_process import ServerProcess

HELLO = [{"role": "user", "content": "Hello"}]
# the sample's stop tokens, so that an answer goes on to the end of the context
ENDLESS = {"logit_bias": {"485": -100, "480": -100}}


@pytest.fixture
def server():
    server = ServerProcess("-np", "2")
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


def test_an_answer_may_not_take_for_ever():
    server = ServerProcess("--timeout", "0.2")
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
        (["-c", "1000000"], "n_ctx is 1000000"),
        (["-np", "0"], "n_slots is 0"),
        (["--max-body", "0"], "--max-body is 0"),
        (["--media-path", "absent"], "absent"),
        (["--api-key-file", "absent"], "absent"),
    ],
)
def test_bad_settings_are_said_at_once(args, message, capsys):
    from phi4mm.cli.main import main

    assert main(["serve", *args]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_port_in_use_is_refused_before_anything_is_loaded(server):
    port = server.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, "-m", "phi4mm", "serve", "--port", port],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
