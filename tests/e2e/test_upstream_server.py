"""`phi4mm serve --engine vllm` as a process, before our own server and before a vLLM that is acted.

Our own server takes the same names of adapters, so it stands in for the engine; what only vLLM does
is acted by a small server.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import APIStatusError, OpenAI
from server_process import ServerProcess

QUESTION = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLS = 'functools[{"name": "weather", "arguments": {"places": ["Bern", "Chur"]}}]'


class Translator(ServerProcess):
    flags = ("--engine", "vllm")


@contextmanager
def translator(url: str, *flags: object, env: dict[str, str] | None = None) -> Iterator[Translator]:
    process = Translator("--upstream", url, *flags, env=env)
    try:
        yield process
    finally:
        process.stop()


def client(server: ServerProcess, key: str = "none") -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)


def ask(server: ServerProcess, key: str = "none", model: str = "phi4-mm", **body: Any) -> Any:
    """An answer; of a stream, the list of its pieces."""
    with client(server, key) as openai:
        answer = openai.chat.completions.create(model=model, **body)
        return list(answer) if body.get("stream") else answer


# ---- our own server behind it


@pytest.fixture(scope="module")
def engine():
    server = ServerProcess()
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def front(engine):
    with translator(engine.url) as server:
        server.wait_ready()
        yield server


def test_a_text_is_answered_as_by_the_engine_itself(engine, front):
    answers = [ask(server, messages=QUESTION, max_tokens=8) for server in (engine, front)]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert answers[0].usage.completion_tokens == answers[1].usage.completion_tokens > 1
    assert answers[1].model == "phi4-mm"


def test_a_stream_is_answered_as_by_the_engine_itself(engine, front):
    texts, n_tokens = [], []
    for server in (engine, front):
        chunks = ask(
            server, messages=QUESTION, max_tokens=8, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        n_tokens.append(chunks[-1].usage.completion_tokens)
        texts.append("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
    assert texts[0] == texts[1]
    assert n_tokens[0] == n_tokens[1] > 1


def test_pictures_and_clips_reach_the_engine(front, sample_media):
    def data(name):
        return base64.b64encode((sample_media / name).read_bytes()).decode()

    image = {"type": "image_url", "image_url": {"url": f"data:;base64,{data('picture.png')}"}}
    clip = {"type": "input_audio", "input_audio": {"data": data("clip.flac"), "format": "flac"}}
    words = {"type": "text", "text": "?"}
    for parts, kinds in (([image, words], "image"), ([clip], "audio"), ([clip, image], "both")):
        answer = ask(front, messages=[{"role": "user", "content": parts}], max_tokens=2)
        details = answer.usage.prompt_tokens_details.model_dump()
        assert (details["image_tokens"] > 0) == (kinds in ("image", "both"))
        assert (details["audio_tokens"] > 0) == (kinds in ("audio", "both"))


def test_a_call_that_must_be_made_is_one(front):
    answer = ask(
        front, messages=QUESTION, max_tokens=200, tool_choice="required",
        tools=[{"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"unit": {"enum": ["celsius"]}}, "required": ["unit"],
            "additionalProperties": False}}}],
    )  # fmt: skip
    (call, *_) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"unit": "celsius"}


def test_refusals_come_from_whoever_refuses(front):
    with pytest.raises(APIStatusError) as refused:
        ask(front, messages=QUESTION, max_tokens=2, temperature=-1)
    assert refused.value.status_code == 400
    assert "temperature" in refused.value.message
    with pytest.raises(APIStatusError) as refused:
        ask(front, messages=[{"role": "user", "content": "<|end|>"}])
    assert refused.value.status_code == 400
    with pytest.raises(APIStatusError) as refused:
        ask(front, model="gpt-9", messages=QUESTION)
    assert refused.value.status_code == 404


# ---- an acted vLLM


class ActedEngine:
    """Says what it is told to, in pieces of three characters, and keeps what it was asked.

    Attributes:
        text: the answer.
        asked: bodies of the requests.
        keys: their Authorization headers.
        is_endless: whether an answer never ends.
        n_gone: requests whose client went away.
    """

    def __init__(self) -> None:
        self.text = CALLS
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.is_endless = False
        self.n_gone = 0
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                engine.asked.append(body)
                engine.keys.append(self.headers["Authorization"])
                engine.answer(self, body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if "tools" in body:  # as vLLM does without --enable-auto-tool-choice
            refused = {"error": {"message": "auto tool choice is not enabled", "code": 400}}
            self._send(handler, 400, json.dumps(refused))
        elif body.get("stream"):
            self._stream(handler)
        else:
            message = {"role": "assistant", "content": self.text, "tool_calls": []}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._send(handler, 200, json.dumps({"id": "x", "model": "m", "choices": [choice]}))

    def _send(self, handler: BaseHTTPRequestHandler, status: int, text: str) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.wfile.write(text.encode())

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        pieces = [self.text[i : i + 3] for i in range(0, len(self.text), 3)]
        try:
            for piece in pieces:
                self._event(handler, {"content": piece}, None)
            while self.is_endless:
                self._event(handler, {"content": "."}, None)
                time.sleep(0.01)
            self._event(handler, {}, "stop")
            handler.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.n_gone += 1

    def _event(self, handler: BaseHTTPRequestHandler, delta: Any, reason: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        event = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
        handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        handler.wfile.flush()


@pytest.fixture(scope="module")
def acted():
    engine = ActedEngine()
    yield engine
    engine.server.shutdown()
    engine.server.server_close()


@pytest.fixture(scope="module")
def before_acted(acted):
    env = {"PHI4MM_UPSTREAM_API_KEY": "inner"}
    flags = ("--upstream-model", "base", "--api-key", "outer")
    with translator(acted.url, *flags, env=env) as server:
        yield server


def test_calls_are_streamed_from_an_engine_that_cannot_read_them(acted, before_acted):
    arguments, names, reasons = "", [], []
    for chunk in ask(before_acted, "outer", messages=QUESTION, tools=TOOLS, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
        reasons.append(chunk.choices[0].finish_reason)
    assert names == ["weather"]
    assert json.loads(arguments) == {"places": ["Bern", "Chur"]}
    assert [reason for reason in reasons if reason] == ["tool_calls"]
    asked = acted.asked[-1]
    assert asked["model"] == "base"
    assert asked["messages"][0]["content"].startswith('<|tool|>[{"name": "weather"')


def test_keys_are_kept_apart(acted, before_acted):
    n_asked = len(acted.asked)
    with pytest.raises(APIStatusError) as refused:
        ask(before_acted, "inner", messages=QUESTION)
    assert refused.value.status_code == 401
    assert len(acted.asked) == n_asked
    ask(before_acted, "outer", messages=QUESTION)
    assert acted.keys[-1] == "Bearer inner"


def test_a_client_that_goes_away_ends_the_answer(acted, before_acted):
    acted.is_endless = True
    with client(before_acted, "outer") as openai:
        stream = openai.chat.completions.create(model="phi4-mm", messages=QUESTION, stream=True)
        next(iter(stream))
        stream.close()
        before_acted.wait_until(lambda: acted.n_gone == 1)
    acted.is_endless = False


def test_no_engine_is_said():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with translator(f"http://127.0.0.1:{unused.getsockname()[1]}/v1/") as server:
            assert server.request("/health")[0] == 503
            status, body, _ = server.request("/v1/chat/completions", {"messages": QUESTION})
            assert status == 502
            assert body["error"]["code"] == "upstream_unavailable"
            assert "127.0.0.1" not in body["error"]["message"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--engine", "vllm"], "needs --upstream URL"),
        (["--engine", "vllm", "--upstream", "host:8000"], "give a URL"),
        (["--engine", "vllm", "--upstream", "http://h", "-m", "x"], "--model has no meaning"),
        (["--upstream", "http://h"], "--upstream has no meaning without --engine vllm"),
    ],
)
def test_flags_without_a_meaning_are_refused(flags, message, capsys):
    from phi4mm.cli.main import main

    assert main(["serve", "--port", "0", *flags]) == 2
    assert message in capsys.readouterr().err
