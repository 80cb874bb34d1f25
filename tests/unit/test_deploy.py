"""Requests on their way to replicas: where they go, and what happens when a replica is lost."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import ClientDisconnect

from phi4mm import InputError, Offload
from phi4mm.deploy.affinity import affinity_key
from phi4mm.deploy.cluster_view import joined
from phi4mm.deploy.exchange import Call, answers
from phi4mm.deploy.relay import Relay
from phi4mm.deploy.settings import ReplicaSettings, from_values, to_values
from phi4mm.engine.parameters import EngineParams
from phi4mm.server.error import EngineUnavailable
from phi4mm.server.settings import BundlePaths, ServerSettings

# ---- a call and its answer


async def echo(scope, receive, send):
    """An application that sends a request back, and then waits for its client to go."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    text = f"{scope['method']} {scope['path']} {body.decode()}"
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
    message = await receive()
    scope["gone"].append(message["type"])


class EchoCall(Call):
    """A call that notes what its application saw last."""

    __slots__ = ()
    gone: list[str]

    def scope(self):
        return {**super().scope(), "gone": GONE}


GONE: list[str] = []


def test_closing_the_answer_is_the_client_going_away():
    async def run():
        GONE.clear()
        async with aclosing(answers(echo, EchoCall("POST", "/x", body=b"hello"))) as messages:
            start, body = await anext(messages), await anext(messages)
        return start["status"], body["body"]

    assert asyncio.run(run()) == (200, b"POST /x hello")
    assert GONE == ["http.disconnect"]


def test_a_call_is_read_whole():
    parts = iter(
        [
            {"type": "http.request", "body": b"ab", "more_body": True},
            {"type": "http.request", "body": b"c", "more_body": False},
        ]
    )

    async def receive():
        return next(parts)

    scope = {
        "method": "POST", "path": "/v1", "query_string": b"q=1", "headers": [(b"x-a", b"1")]
    }  # fmt: skip
    call = asyncio.run(Call.read(scope, receive))
    assert (call.body, call.header("X-A"), call.header("absent")) == (b"abc", "1", "")
    assert call.scope()["query_string"] == b"q=1"


def test_a_client_that_goes_before_all_is_sent_asks_nothing():
    parts = iter(
        [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive():
        return next(parts)

    with pytest.raises(ClientDisconnect):
        asyncio.run(Call.read({"method": "POST", "path": "/"}, receive))


# ---- where it goes


def chat(*contents, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    for i, content in enumerate(contents):
        messages.append({"role": ("user", "assistant")[i % 2], "content": content})
    return post({"messages": messages, "temperature": len(contents)})


def post(body, content_type="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = ((b"content-type", content_type.encode()),)
    return Call("POST", "/v1/chat/completions", headers=headers, body=data)


def picture(url, words="What?"):
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": words}]


def test_a_conversation_keeps_its_key_as_it_goes_on():
    first = affinity_key(chat("Hello", system="Be brief."))
    assert first
    assert affinity_key(chat("Hello", "Hi!", "And you?", system="Be brief.")) == first
    assert affinity_key(chat("Bye", system="Be brief.")) != first
    assert affinity_key(chat("Hello")) != first


def test_questions_about_one_picture_share_a_key():
    key = affinity_key(chat(picture("data:image/png;base64,AAAA", "What is this?")))
    assert affinity_key(chat(picture("data:image/png;base64,AAAA", "Which colour?"))) == key
    assert affinity_key(chat("Hello", "Hi", picture("data:image/png;base64,AAAA"))) == key
    assert affinity_key(chat(picture("data:image/png;base64,BBBB"))) != key
    clip = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert affinity_key(chat([clip])) == affinity_key(chat([clip, *picture("x")]))


def form(boundary, clip):
    parts = [b'name="model"\r\n\r\nphi4-mm', b'name="file"; filename="a.wav"\r\n\r\n' + clip]
    body = b"".join(
        b"--" + boundary + b"\r\nContent-Disposition: form-data; " + part + b"\r\n"
        for part in parts
    )
    content_type = f"multipart/form-data; boundary={boundary.decode()}"
    return post(body + b"--" + boundary + b"--\r\n", content_type)


def test_a_clip_in_a_form_has_a_key_of_its_own():
    clip = bytes(range(256)) * 3
    assert affinity_key(form(b"one", clip)) == affinity_key(form(b"two", clip))
    assert affinity_key(form(b"one", clip)) != affinity_key(form(b"one", clip[:-1]))


def test_a_raw_prompt_keeps_its_key_as_it_grows():
    prompt = "<|user|>" + "word " * 200
    assert affinity_key(post({"prompt": prompt})) == affinity_key(post({"prompt": prompt + "x"}))


@pytest.mark.parametrize(
    "call",
    [
        Call("GET", "/health"),
        post(b"no json"),
        post(b"[" * 100_000),
        post([1]),
        post({"messages": "no list"}),
        post({"prompt": [1, 2]}),
    ],
)
def test_other_requests_may_go_anywhere(call):
    assert affinity_key(call) is None


@pytest.mark.parametrize("body", [{"messages": []}, {"messages": [1, {"content": [2]}]}])
def test_malformed_conversations_do_not_matter(body):
    assert affinity_key(post(body))


# ---- what happens when a replica is lost

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
WORD = {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}
LOST = EngineUnavailable("the replica died")


def start(status=200):
    return {"type": "http.response.start", "status": status, "headers": []}


def body(content, *, more=True):
    data = content if isinstance(content, bytes) else b"data: " + json.dumps(content).encode()
    return {"type": "http.response.body", "body": data, "more_body": more}


def relayed(*scripts, n_attempts=3):
    """(what the client got, keys that were asked with) when replicas do as the scripts say."""
    keys, sent = [], []
    left = iter(scripts)

    async def ask(call, key):
        keys.append(key)
        for message in next(left):
            if isinstance(message, Exception):
                raise message
            yield message

    async def receive():
        return {"type": "http.request", "body": b'{"messages": [{"role": "user"}]}'}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    asyncio.run(Relay(ask, n_attempts)(scope, receive, send))
    return sent, keys


def status_and_bodies(sent):
    assert [m["type"] for m in sent].count("http.response.start") == 1
    first, *others = sent
    return first["status"], [m["body"] for m in others]


def test_an_answer_passes_as_it_is():
    messages = [start(), body(ROLE), body(WORD), body(b"data: [DONE]\n\n"), body(b"", more=False)]
    sent, keys = relayed(messages)
    assert sent == messages
    assert len(keys) == 1


@pytest.mark.parametrize("begun", [[], [start()], [start(), body(ROLE), body(ROLE)]])
def test_another_replica_answers_where_nothing_was_said(begun):
    answer = [start(), body(ROLE), body(WORD), body(b"", more=False)]
    sent, keys = relayed([*begun, LOST], answer)
    assert sent == answer
    assert len(set(keys)) == 2


def test_signs_of_life_pass_and_are_no_answer():
    alive = body(b": still working\n\n")
    answer = [start(), body(ROLE), body(WORD), body(b"", more=False)]
    sent, _ = relayed([start(), body(ROLE), alive, LOST], answer)
    assert sent == [start(), alive, *answer[1:]]


def test_an_answer_that_was_begun_ends_with_an_error():
    sent, keys = relayed([start(), body(ROLE), body(WORD), LOST])
    status, bodies = status_and_bodies(sent)
    assert (status, len(keys)) == (200, 1)
    error = json.loads(bodies[-1].removeprefix(b"data: "))["error"]
    assert (error["code"], error["message"]) == ("engine_unavailable", "the replica died")
    assert not sent[-1]["more_body"]


UNAVAILABLE = {"error": {"message": "the engine died", "code": "engine_unavailable"}}


@pytest.mark.parametrize(
    "refusal",
    [
        [start(503), body(json.dumps(UNAVAILABLE).encode(), more=False)],
        [start(), body(ROLE), body(UNAVAILABLE)],
    ],
)
def test_another_replica_is_asked_where_an_engine_died(refusal):
    answer = [start(), body(b'{"choices": []}', more=False)]
    sent, keys = relayed(refusal, answer)
    assert sent == answer
    assert len(keys) == 2


def test_it_gives_up_with_the_reason():
    sent, keys = relayed([LOST], [LOST], [start(), LOST])
    status, (text,) = status_and_bodies(sent)
    assert (status, len(keys)) == (503, 3)
    assert json.loads(text)["error"]["message"] == "the replica died"
    assert (b"retry-after", b"5") in sent[0]["headers"]


def test_other_refusals_are_final():
    refusal = [start(429), body(b'{"error": {"code": "overloaded"}}', more=False)]
    sent, keys = relayed(refusal)
    assert sent == refusal
    assert len(keys) == 1


def test_a_late_refusal_is_an_event():
    alive = body(b": still working\n\n")
    refusal = [start(429), body(b'{"error": {"code": "overloaded"}}', more=False)]
    sent, _ = relayed([start(), alive, LOST], refusal)
    status, bodies = status_and_bodies(sent)
    assert status == 200
    assert json.loads(bodies[-1].removeprefix(b"data: ")) == {"error": {"code": "overloaded"}}


# ---- several replicas as one

METRICS = b"""\
# HELP phi4mm_tokens_total Tokens.
# TYPE phi4mm_tokens_total counter
phi4mm_tokens_total{kind="text"} %d.0
# HELP phi4mm_slots Slots.
# TYPE phi4mm_slots gauge
phi4mm_slots 2.0
"""


def test_metrics_of_replicas_stand_side_by_side():
    text, content_type = joined("/metrics", {"b": METRICS % 5, "a": METRICS % 3})
    assert content_type.startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(text.decode())}
    assert families["phi4mm_tokens"].type == "counter"
    values = {s.labels["replica"]: s.value for s in families["phi4mm_tokens"].samples}
    assert values == {"a": 3, "b": 5}
    assert len(families["phi4mm_slots"].samples) == 2
    assert text.count(b"# TYPE phi4mm_slots gauge") == 1


def test_slots_of_replicas_are_one_list():
    text, _ = joined("/slots", {"b": b'[{"id": 0}]', "a": b'[{"id": 0}, {"id": 1}]'})
    assert [(s["replica"], s["id"]) for s in json.loads(text)] == [("a", 0), ("a", 1), ("b", 0)]


# ---- settings

ENGINE = EngineParams(n_ctx=2048, n_slots=3, offload=Offload(99, ("CUDA0",), main_gpu=0))
SETTINGS = ReplicaSettings(ServerSettings(BundlePaths(Path("/srv/model")), ENGINE))


def test_settings_come_back_from_plain_values():
    values = json.loads(json.dumps(to_values(SETTINGS)))
    assert values["server"]["engine"]["offload"]["devices"] == ["CUDA0"]
    assert "limits" not in values["server"]
    assert from_values(values) == SETTINGS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "server: Field required"),
        ({"server": {"bundle": {"model": "/m"}, "engine": {"n_slot": 1}}}, "engine.n_slot: "),
        ({"server": {"bundle": {"model": "/m"}, "engine": {"n_slots": 0}}}, "n_slots is 0"),
        ({"server": {"bundle": {"model": "/m"}, "engine": {}}, "other": 1}, "other: "),
    ],
)
def test_wrong_values_are_named(values, message):
    with pytest.raises(InputError, match=message):
        from_values(values)


def test_keys_stay_out_of_the_values(tmp_path):
    server = ServerSettings(BundlePaths(Path("/m")), EngineParams(), api_keys=("secret",))
    with pytest.raises(InputError, match="keys do not go into this file"):
        to_values(ReplicaSettings(server))
    file = tmp_path / "keys"
    file.write_text("one\n\ntwo\n")
    settings = ReplicaSettings(ServerSettings(BundlePaths(Path("/m")), EngineParams()), file)
    assert settings.with_keys().api_keys == ("one", "two")
    file.write_text("\n")
    with pytest.raises(InputError, match="holds no key"):
        settings.with_keys()
    file.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        settings.with_keys()
