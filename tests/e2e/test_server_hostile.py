"""What a careless or hostile client may send: it harms neither the server nor the others."""

import base64
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image
from server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tiny_path):
    server = ServerProcess("-m", tiny_path, "-np", "2", "-c", "4096")
    server.wait_ready()
    yield server
    assert server.stop() == 0
    assert "Traceback" not in "".join(server.log)


def chat(server, content="Hello", **settings):
    """(status, answer) of a question."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **settings}
    return server.request("/v1/chat/completions", body)[:2]


def with_schema(server, schema, n=16):
    """(status, answer) of a question whose answer must fit."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return chat(server, response_format=form, max_tokens=n)


# ---- settings


@pytest.mark.parametrize("settings", [{"top_k": -1}, {"max_tokens": -1, "stop": ["e", "a", " "]}])
def test_minus_one_is_no_limit(server, settings):
    status, answer = chat(server, **settings)
    assert status == 200, answer


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"max_tokens": 2**40},
            "max_tokens is 1099511627776: it must be a whole number, from 1 to",
        ),
        ({"max_tokens": -2}, "max_tokens is -2: it must be a whole number, at least 1"),
        ({"max_completion_tokens": -2}, "max_completion_tokens is -2"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ["x"] * 65}, "stop has 65 strings: give at most 64"),
        ({"stop": ["x", "y" * 1001]}, "stop has 1001 characters: give at most 1000"),
        ({"temperature": 1e400}, "temperature"),
        ({"top_k": 2**70}, "top_k"),
        ({"logit_bias": {"-1": 1}}, "'-1' is no token id"),
        ({"logit_bias": {"١": 1}}, "no token id"),
        ({"messages": [{"role": "user", "content": "x"}] * 70_000}, "at most 65536"),
    ],
)
def test_settings_out_of_range_are_named(server, settings, words):
    status, answer = chat(server, **settings)
    assert status == 400
    assert words in answer["error"]["message"]


# ---- schemas


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "array", "items": False, "minItems": 1},
        {"enum": []},
    ],
)
def test_what_nothing_fits_is_refused(server, schema):
    status, answer = with_schema(server, schema)
    assert status == 400, answer
    assert "JSON schema" in answer["error"]["message"]
    assert "<state>" not in answer["error"]["message"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x.json", "file:///etc/passwd"])
def test_schemas_are_not_fetched(server, url):
    assert with_schema(server, {"$ref": url})[0] == 400


def test_a_schema_that_proves_too_complex_is_no_complete_answer(server):
    """The matcher gives up after the brace: what came so far must not pass for an answer."""
    keys = [f"key{i}" for i in range(2500)]
    schema = {"anyOf": [{"type": "object", "properties": {k: {}}, "required": [k]} for k in keys]}
    status, answer = with_schema(server, schema)
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert chat(server)[0] == 200


def test_a_schema_may_not_be_endless(server):
    status, answer = with_schema(server, {"enum": [f"value {i}" for i in range(20_000)]})
    assert status == 400
    assert "the limit is 200000" in answer["error"]["message"]


# ---- sizes


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("text", ["hello world ", "a", " ", "字"])
def test_endless_text_is_refused_at_once_and_nobody_waits(server, path, text):
    text *= 3_000_000 // len(text)
    body = {"prompt": text, "messages": [{"role": "user", "content": text}]}
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(server.request, f"/v1/{path}", body)
        longest = 0.0
        while not refused.done():
            began = time.monotonic()
            assert server.request("/health")[0] == 200
            longest = max(longest, time.monotonic() - began)
    status, answer, _ = refused.result()
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert "has at least" in answer["error"]["message"]
    assert "holds 4096" in answer["error"]["message"]
    assert longest < 5


def test_endless_text_is_not_tokenised(server):
    for parse_special in (True, False):
        body = {"content": "a" * 3_000_000, "parse_special": parse_special}
        status, answer, _ = server.request("/tokenize", body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_endless_lists_are_refused(server):
    ids = [5] * ((1 << 20) + 1)
    for path, body in (("/detokenize", {"tokens": ids}), ("/v1/completions", {"prompt": ids})):
        status, answer, _ = server.request(path, body)
        assert status == 400
        assert "at most 1048576" in answer["error"]["message"]


def test_a_fault_in_each_of_many_items_keeps_nobody_waiting(server):
    """All faults of such a list take a minute to tell, and the memory of a machine."""
    many = [1] * 1_000_000
    bodies = (
        {"messages": [{"role": "user", "content": many}]},
        {"messages": [{"role": "assistant", "tool_calls": many}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}] * 50}] * 8000},
        {"messages": [{"role": "user", "content": "x"}], "tools": many},
        {"messages": [{"role": "user", "content": "x"}], "stop": many},
        {
            "messages": [{"role": "user", "content": "x"}],
            "logit_bias": dict.fromkeys(map(str, range(300_000)), "x"),
        },
    )
    for body in bodies:
        began = time.monotonic()
        status, answer, _ = server.request("/v1/chat/completions", body)
        assert status == 400
        assert len(answer["error"]["message"]) < 200
        assert time.monotonic() - began < 15


# ---- connections


def connect(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  \r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000,
    ],
)
def test_what_is_no_http_harms_nobody(server, data):
    with connect(server) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1000)
    assert answer[:9] in (b"", b"HTTP/1.1 ")
    assert answer[9:10] in (b"", b"2", b"4")  # parsers differ in what they let pass
    assert server.request("/health")[0] == 200


def test_clients_that_say_nothing_keep_nobody_out(server):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    silent = [connect(server) for _ in range(60)]
    try:
        for number, connection in enumerate(silent):
            connection.sendall(head[: len(head) * (number % 3) // 2])
        assert chat(server)[0] == 200
    finally:
        for connection in silent:
            connection.close()
    server.wait_until(lambda: server.n_busy() == 0)
    assert "phi4mm_answers_in_flight 0.0" in server.request("/metrics")[1]


def test_who_goes_away_is_noted_and_frees_the_slot(server):
    messages, endless = [{"role": "user", "content": "x"}], {"485": -100, "480": -100}
    body = json.dumps({"messages": messages, "logit_bias": endless}).encode()
    with connect(server) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: gone-1\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        server.wait_until(lambda: server.n_busy() == 1)
    server.wait_until(lambda: server.n_busy() == 0)
    server.wait_until(
        lambda: 'path="/v1/chat/completions",status="499"' in server.request("/metrics")[1]
    )
    assert any("POST /v1/chat/completions 499" in line for line in server.log)


# ---- neighbours


def url_of(size, colour):
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "png")
    return "data:;base64," + base64.b64encode(stream.getvalue()).decode()


def test_pictures_of_many_ratios_side_by_side(server):
    sizes = [(300, 900), (900, 300), (448, 448), (10, 300), (640, 480)]
    questions = [
        [{"type": "image_url", "image_url": {"url": url_of(size, colour)}}]
        for size, colour in zip(sizes, ("red", "green", "blue", "white", "teal"), strict=True)
    ]
    alone = [chat(server, question) for question in questions]
    assert [status for status, _ in alone] == [200] * 5
    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(lambda question: chat(server, question), questions))
    for (_, ours), (_, theirs) in zip(together, alone, strict=True):
        assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
        assert ours["choices"] == theirs["choices"]


def test_numbers_that_an_operator_and_a_client_want(server):
    answer = chat(server)[1]
    assert answer["timings"].keys() >= {"encode_s", "prefill_s", "decode_s", "first_token_s"}
    metrics = server.request("/metrics")[1]
    for name in (
        'requests_total{path="/v1/chat/completions",status="200"}',
        'tokens_total{kind="generated"}', 'tokens_total{kind="cached"}',
        "first_token_seconds_count", "token_seconds_count",
        "encoder_seconds_total", "slots", "slots_busy", "kv_positions", "requests_waiting",
        "answers_in_flight", "encoder_cache_hits", "encoder_cache_misses", "engine_restarts",
        "engine_ready",
    ):  # fmt: skip
        assert f"\nphi4mm_{name} " in metrics
