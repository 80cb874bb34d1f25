"""Whatever is sent, the server answers, and never with its own failure."""

import base64
import http.client
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_process import ServerProcess

# Raise it for a long run.
N_EXAMPLES = int(os.environ.get("PHI4MM_FUZZ_EXAMPLES", "100"))
fuzz = settings(
    max_examples=N_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@pytest.fixture(scope="module")
def send():
    """Sends a body; (status, answer)."""
    server = ServerProcess("-np", "2", "--max-body", "1", "--max-pixels", "1000000")
    server.wait_ready()
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)

    def ask(path, body, content_type):
        try:
            connection.request("POST", path, body, {"Content-Type": content_type})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            raise

    def post(path, body, content_type="application/json"):
        try:
            return ask(path, body, content_type)
        except ConnectionError:
            # The server closes a connection that was idle for seconds, as it may have been here
            # while bodies were made up. What brings the server down does so on a new one, too.
            return ask(path, body, content_type)

    yield post
    connection.close()
    assert "Traceback" not in "".join(server.log)
    server.stop()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
urls = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=200).map(lambda data: "data:;base64," + base64.b64encode(data).decode()),
    st.sampled_from(
        ["http://", "https://[", "file://", "data:", "data:,", "\x00", "//x", "file:///"]
    ),
)
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20) | values}),
    st.fixed_dictionaries(
        {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": urls}) | values}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("input_audio"),
            "input_audio": st.fixed_dictionaries({"data": urls, "format": st.just("wav")}) | values,
        }
    ),
    values,
)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]) | values,
            "content": st.text(max_size=20) | st.lists(parts, max_size=3) | values,
        },
        optional={"tool_calls": values, "tool_call_id": values},
    ),
    max_size=3,
)
OTHER_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "logit_bias", "logprobs",
    "top_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "stream",
    "stream_options", "tools", "tool_choice", "response_format", "model",
)  # fmt: skip
chats = st.fixed_dictionaries(
    {"messages": messages | values, "max_tokens": st.sampled_from([1, 2])},
    optional=dict.fromkeys(OTHER_FIELDS, values),
)


@fuzz
@given(body=chats)
def test_chats(send, body):
    status, answer = send("/v1/chat/completions", json.dumps(body))
    assert status in (200, 400, 404), answer


@fuzz
@given(body=st.binary(max_size=300), path=st.sampled_from(["chat/completions", "completions"]))
def test_bytes_for_json(send, body, path):
    assert send(f"/v1/{path}", body)[0] == 400


@fuzz
@given(prompt=st.text(max_size=60) | values, logprobs=values)
def test_completions(send, prompt, logprobs):
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "logprobs": logprobs})
    assert send("/v1/completions", body)[0] in (200, 400)


@fuzz
@given(content=st.text(max_size=100))
def test_text_survives_the_tokenizer(send, content):
    status, answer = send("/tokenize", json.dumps({"content": content, "parse_special": False}))
    assert status == 200
    status, answer = send("/detokenize", json.dumps(json.loads(answer)))
    assert json.loads(answer)["content"] == content


@fuzz
@given(
    data=st.binary(max_size=300),
    name=st.text(max_size=10),
    output=st.text(max_size=5) | st.just("json"),
    header=st.sampled_from(["", "RIFF", "fLaC", "OggS"]),
)
def test_clips(send, data, name, output, header):
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % field
        for field in [(b"response_format", output.encode()), (name.encode(), b"x")]
    )
    body += b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body += header.encode() + data + b"\r\n--x--\r\n"
    status, answer = send("/v1/audio/transcriptions", body, "multipart/form-data; boundary=x")
    assert status == (404 if name == "model" else 400), answer  # no model is called x


@fuzz
@given(data=st.binary(max_size=300), boundary=st.text('abc-"; =', max_size=5))
def test_bytes_for_forms(send, data, boundary):
    kind = f"multipart/form-data; boundary={boundary}"
    assert send("/v1/audio/transcriptions", data, kind)[0] == 400
