"""The server as OpenAI's own client sees it, on a random model: words mean nothing there."""

import base64
import hashlib
import http.client
import io
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import openai
import pytest
from PIL import Image, ImageChops
from server_process import ServerProcess

END_ID = "485"  # <|end|> in the tiny model's vocabulary


@pytest.fixture(scope="module")
def server(tiny_path):
    server = ServerProcess("-m", tiny_path, "-np", "4")
    server.wait_ready()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def picture(sample_media):
    return base64.b64encode((sample_media / "picture.png").read_bytes()).decode()


@pytest.fixture(scope="module")
def clip(sample_media):
    return base64.b64encode((sample_media / "clip.flac").read_bytes()).decode()


def ask(client, content, **settings):
    """A chat completion of one question."""
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(
        model="phi4-mm", messages=messages, **{"max_tokens": 4} | settings
    )


def text(words):
    return {"type": "text", "text": words}


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def sound(data):
    return {"type": "input_audio", "input_audio": {"data": data, "format": "flac"}}


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "phi4-mm"
    assert model.input_modalities == ["text", "image", "audio"]
    for name in ("phi4-mm", "vision", "speech"):
        assert client.models.retrieve(name).id == "phi4-mm"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_a_chat_answer(client):
    answer = ask(client, "Hello")
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 4
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4
    assert answer.usage.prompt_tokens_details.text_tokens == answer.usage.prompt_tokens


def test_a_stream_holds_the_same_answer(client):
    whole = ask(client, "Hello there", max_tokens=12)
    chunks = list(
        ask(client, "Hello there", max_tokens=12, stream=True,
            stream_options={"include_usage": True})
    )  # fmt: skip
    *parts, ending = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in parts)
    assert joined == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in parts if c.choices[0].finish_reason] == ["length"]
    assert ending.choices == []
    assert ending.usage.completion_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize(
    "form",
    [
        "data:image/png;base64,{}", "data:image/jpeg;base64,{}", "data:;base64,{}",
        "data:image/png;charset=utf-8;base64,{}", "DATA:image/png;BASE64,{}", "{}",
    ],
)  # fmt: skip
def test_pictures_come_in_many_wrappings(client, picture, form):
    answer = ask(client, [text("What?"), image(form.format(picture))], max_tokens=1)
    assert answer.usage.prompt_tokens_details.image_tokens > 100


def test_line_breaks_in_base64(client, picture):
    broken = "\n".join(picture[i : i + 76] for i in range(0, len(picture), 76))
    answer = ask(client, [image(f"data:image/png;base64,{broken}")], max_tokens=1)
    assert answer.usage.prompt_tokens_details.image_tokens > 100


def test_both_kinds_of_clips_and_their_counts(client, clip):
    first = ask(client, [sound(clip), text("What?")], max_tokens=1)
    url = {"type": "audio_url", "audio_url": {"url": f"data:audio/flac;base64,{clip}"}}
    second = ask(client, [text("What?"), url], max_tokens=1)
    counts = [answer.usage.prompt_tokens_details.audio_tokens for answer in (first, second)]
    assert counts == [38, 38]  # 3.01 s, 80 ms each
    assert first.choices[0].message.content == second.choices[0].message.content


def test_a_picture_and_a_clip_together(client, picture, clip):
    details = ask(client, [image(picture), sound(clip)]).usage.prompt_tokens_details
    assert details.image_tokens > 0
    assert details.audio_tokens > 0


def test_a_repeated_picture_is_cached(client, picture):
    question = [image(picture), text("Is it cached, whatever it may be?")]
    ask(client, question)
    answer = ask(client, question)
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_a_chat_with_a_picture_in_every_turn(client, sample_media):
    picture = Image.open(sample_media / "picture.png").resize((320, 200))
    messages, n_cached = [], []
    for turn in range(8):
        stream = io.BytesIO()
        ImageChops.offset(picture, turn + 1).save(stream, "png")
        url = base64.b64encode(stream.getvalue()).decode()
        messages.append({"role": "user", "content": [image(url), text(f"And number {turn}?")]})
        answer = client.chat.completions.create(model="phi4-mm", messages=messages, max_tokens=3)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        n_cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        assert answer.usage.prompt_tokens_details.image_tokens % (turn + 1) == 0
    # beyond the original context, all but the last turn is kept
    assert n_cached[2:] == sorted(n_cached[2:])
    assert n_cached[-1] > 0.75 * answer.usage.prompt_tokens


def test_log_probabilities(client):
    answer = ask(client, "Hello", logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 4
    for entry in entries:
        assert entry.logprob == entry.top_logprobs[0].logprob  # greedy takes the likeliest
        assert len(entry.top_logprobs) == 3
    data = b"".join(bytes(entry.bytes) for entry in entries)
    assert data.decode(errors="replace") == answer.choices[0].message.content


def test_log_probabilities_in_a_stream(client):
    chunks = ask(client, "Hello", logprobs=True, stream=True)
    entries = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert len(entries) == 4


def test_several_answers_and_seeds(client):
    endless = {END_ID: -100, "480": -100}
    settings = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 8, "logit_bias": endless}
    first, second = (ask(client, "Hello", **settings) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in second.choices]
    assert first.usage.completion_tokens == 24


def test_several_answers_in_a_stream(client):
    chunks = list(ask(client, "Hello", n=2, temperature=1.0, stream=True))
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}
    assert sum(chunk.choices[0].finish_reason is not None for chunk in chunks) == 2


def test_a_stop_token_is_not_printed(client):
    answer = ask(client, "Hello", logit_bias={END_ID: 100})
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 1


def test_a_stop_string(client):
    whole = ask(client, "Hello", max_tokens=12).choices[0].message.content
    stop = whole[6:8]
    answer = ask(client, "Hello", max_tokens=12, stop=[stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_the_developer_role_and_extra_fields(client):
    answer = client.chat.completions.create(
        model="vision",
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        max_completion_tokens=2,
        user="someone",
        extra_body={"mystery": 1},
    )
    assert answer.usage.completion_tokens == 2


def test_completions(client):
    answer = client.completions.create(
        model="phi4-mm", prompt="<|user|>Hello<|end|><|assistant|>", max_tokens=4, logprobs=2
    )
    assert answer.usage.prompt_tokens == ask(client, "Hello").usage.prompt_tokens
    assert len(answer.choices[0].logprobs.tokens) == 4
    chunks = client.completions.create(
        model="phi4-mm", prompt="<|user|>Hello<|end|><|assistant|>", max_tokens=4, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_completions_of_ids(server, client):
    ids = server.request("/tokenize", {"content": "<|user|>Hello<|end|>"})[1]["tokens"]
    by_ids = client.completions.create(model="phi4-mm", prompt=ids, max_tokens=3)
    by_text = client.completions.create(
        model="phi4-mm", prompt="<|user|>Hello<|end|>", max_tokens=3
    )
    assert by_ids.choices[0].text == by_text.choices[0].text


def test_several_prompts_are_answered_in_order(server, client):
    prompts = ["<|user|>Hello<|end|>", "<|user|>Why<|end|>", "<|user|>No<|end|>"]
    settings = {"model": "phi4-mm", "max_tokens": 4}
    alone = [client.completions.create(prompt=prompt, **settings) for prompt in prompts]
    together = client.completions.create(prompt=prompts, **settings)
    texts = [answer.choices[0].text for answer in alone]
    assert len(set(texts)) == 3
    assert [choice.text for choice in together.choices] == texts
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(together.usage, name) == sum(getattr(a.usage, name) for a in alone)
    ids = [server.request("/tokenize", {"content": prompt})[1]["tokens"] for prompt in prompts]
    by_ids = client.completions.create(prompt=ids, **settings)
    assert [choice.text for choice in by_ids.choices] == texts


def test_several_prompts_with_several_answers_in_a_stream(client):
    chunks = list(
        client.completions.create(
            model="phi4-mm", prompt=["a", "b"], n=2, temperature=1.0, seed=1, max_tokens=3,
            stream=True, stream_options={"include_usage": True},
        )
    )  # fmt: skip
    *parts, ending = chunks
    assert {chunk.choices[0].index for chunk in parts} == {0, 1, 2, 3}
    assert sum(chunk.choices[0].finish_reason is not None for chunk in parts) == 4
    assert 4 <= ending.usage.completion_tokens <= 12


def test_text_and_ids_there_and_back(server):
    content = "<|user|>Grüße, 日本!<|end|>"
    ids = server.request("/tokenize", {"content": content})[1]["tokens"]
    assert server.request("/detokenize", {"tokens": ids})[1]["content"] == content
    as_text = server.request("/tokenize", {"content": "<|end|>", "parse_special": False})[1]
    assert int(END_ID) not in as_text["tokens"]


def test_the_template_is_shown(server, picture):
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [text("What?"), image(picture)]},
    ]
    assert server.request("/apply-template", {"messages": messages})[1]["prompt"] == (
        "<|system|>Be kind.<|end|><|user|><|image_1|>What?<|end|><|assistant|>"
    )


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_tools_and_their_history_are_rendered_natively(server):
    messages = [
        {"role": "user", "content": "Call f."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    prompt = server.request("/apply-template", {"messages": messages, "tools": [TOOL]})[1]["prompt"]
    assert prompt == (
        '<|system|><|tool|>[{"name": "f", "parameters": {"type": "object"}}]<|/tool|><|end|>'
        "<|user|>Call f.<|end|>"
        '<|assistant|><|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|><|end|>'
        "<|tool_response|>42<|end|><|assistant|>"
    )


def test_tools_and_a_plain_answer(client):
    answer = ask(client, "Hello", tools=[TOOL])
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "length"


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"$ref": "#/$defs/Place"}, "days": {"enum": [1, 2]}},
            "required": ["place", "days"],
            "additionalProperties": False,
            "$defs": {"Place": {"enum": ['a "quoted" one', "Zürich]", "東京"]}},
        },
    },
}


def test_a_tool_loop(client):
    messages = [{"role": "user", "content": "How is the weather?"}]
    settings = {"model": "phi4-mm", "tools": [WEATHER], "max_tokens": 100}
    first = client.chat.completions.create(
        messages=messages, tool_choice="required", parallel_tool_calls=False, **settings
    )
    (choice,) = first.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    for call in choice.message.tool_calls:
        assert call.function.name == "weather"
        arguments = json.loads(call.function.arguments)
        assert set(arguments) == {"place", "days"}
    messages.append(choice.message.model_dump(exclude_none=True))
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        for call in choice.message.tool_calls
    ]
    second = client.chat.completions.create(messages=messages, **{**settings, "max_tokens": 3})
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_a_streamed_call_is_the_same(client):
    settings = {
        "tools": [TOOL, WEATHER], "max_tokens": 100,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }  # fmt: skip
    whole = ask(client, "Weather?", **settings).choices[0]
    (call,) = whole.message.tool_calls
    chunks = list(ask(client, "Weather?", stream=True, **settings))
    deltas = [d for chunk in chunks for d in chunk.choices[0].delta.tool_calls or []]
    assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
    assert [delta.function.name for delta in deltas if delta.function.name] == ["weather"]
    assert [delta.id is None for delta in deltas] == [False] + [True] * (len(deltas) - 1)
    assert {delta.index for delta in deltas} == {0}
    assert len(deltas) > 5  # as it is written, not at its end
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_that_breaks_off(client):
    settings = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 40}
    whole = ask(client, "Weather?", **settings).choices[0]
    broken = ask(client, "Weather?", **{**settings, "max_tokens": 30}).choices[0]
    assert broken.finish_reason == "length"
    (call,) = broken.message.tool_calls
    assert whole.message.tool_calls[0].function.arguments.startswith(call.function.arguments)


@pytest.mark.parametrize("is_stream", [False, True])
def test_one_call_at_a_time(client, is_stream):
    # without the end of the list, of which the schema would take more
    settings = {
        "tools": [WEATHER], "tool_choice": "required", "max_tokens": 300, "stream": is_stream,
        "logit_bias": {END_ID: -100},
    }  # fmt: skip
    answer = ask(client, "Weather?", parallel_tool_calls=False, **settings)
    chunks = list(answer) if is_stream else []
    if is_stream:
        deltas = [d for chunk in chunks for d in chunk.choices[0].delta.tool_calls or []]
        assert {delta.index for delta in deltas} == {0}
        arguments = "".join(delta.function.arguments for delta in deltas)
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
    else:
        (call,) = answer.choices[0].message.tool_calls
        arguments = call.function.arguments
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.usage.completion_tokens < 300
    assert set(json.loads(arguments)) == {"place", "days"}


def test_a_setting_is_named_as_it_was_given(server):
    for field in ("temperature", "max_tokens", "max_completion_tokens"):
        _, answer, _ = server.request("/v1/chat/completions", user("x") | {field: -2})
        assert answer["error"]["message"].startswith(f"{field} is -2")
        assert answer["error"]["param"] == field


def test_a_schema(client):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["s", "m"]}},
        "required": ["ok", "size"],
        "additionalProperties": False,
    }
    output = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for _ in range(3):
        answer = ask(client, "?", response_format=output, temperature=1.0, max_tokens=60)
        assert set(json.loads(answer.choices[0].message.content)) == {"ok", "size"}
        assert answer.choices[0].finish_reason == "stop"


def test_a_json_object(client):
    answer = ask(client, "?", response_format={"type": "json_object"}, max_tokens=5)
    assert answer.choices[0].message.content.startswith("{")


def formatted(schema):
    output = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return user("x") | {"response_format": output}


def user(content):
    return {"messages": [{"role": "user", "content": content}]}


def history(arguments, call_id="call_1"):
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": "Call f."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "42"},
        ]
    }


def test_a_call_without_arguments(server):
    """Clients send "" where the model called a tool that takes none."""
    prompts = [server.request("/apply-template", history(text))[1]["prompt"] for text in ("", "{}")]
    assert prompts[0] == prompts[1]
    assert server.request("/v1/chat/completions", history("") | {"max_tokens": 1})[0] == 200


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
    ],
)
def test_a_refusal_in_the_history(server, message):
    """It is what the assistant said, and stays in the prompt."""
    messages = [{"role": "user", "content": "Why?"}, message, {"role": "user", "content": "Do!"}]
    said = [*messages[:1], {"role": "assistant", "content": "I will not."}, *messages[2:]]
    prompts = [
        server.request("/apply-template", {"messages": these})[1]["prompt"]
        for these in (messages, said)
    ]
    assert prompts[0] == prompts[1]
    assert "I will not." in prompts[0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "role"),
        (user(None), "content is missing"),
        (user([{"type": "video_url"}]), "video_url"),
        (user([image("data:image/png;base64,")]), "0 bytes"),
        (user([image("data:image/png;base64,!!")]), "base64"),
        (user([image("data:image/png;base64")]), "comma"),
        (user([image("AAAA")]), "image"),
        (user([image("http://127.0.0.1:1/a.png")]), "fetching is off"),
        (user([image("file:///etc/passwd")]), "files are off"),
        (user([image("ftp://host/a.png")]), "ftp"),
        (user([sound("")]), "0 bytes"),
        (user([image("AAAA"), image("BBBB")]), "<image 1 of 2>"),
        (user([sound("AAAA")]), "<audio bytes>"),
        (user([image("AAAA")] * 33), "33 pictures and clips: the limit is 32 (--max-media)"),
        ({"messages": [{"role": "system", "content": [image("AAAA")]}]}, "text only"),
        (user("x") | {"temperature": -1}, "temperature is -1"),
        (user("x") | {"temperature": "warm"}, "temperature"),
        (user("x") | {"top_p": 2}, "top_p is 2"),
        (user("x") | {"max_tokens": 0}, "max_tokens is 0"),
        (user("x") | {"n": 17}, "n is 17"),
        (user("x") | {"n": 0}, "n"),
        (user("x") | {"stop": [""]}, "stop"),
        (user("x") | {"logit_bias": {"512": 1}}, "logit_bias names token 512"),
        (user("x") | {"logit_bias": {"one": 1}}, "logit_bias"),
        (user("x") | {"logit_bias": {"1": 1000}}, "logit_bias"),
        (user("x") | {"top_logprobs": 1}, "top_logprobs"),
        (user("x") | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (user("x") | {"tool_choice": "required"}, "tool_choice"),
        (
            user("x")
            | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "'g'",
        ),
        (formatted({"type": "poem"}), "poem"),
        (formatted({"type": "integer", "minimum": 2, "maximum": 1}), "minimum"),
        (formatted({"allOf": [{"type": "string"}, {"type": "null"}]}), "JSON schema"),
        (user("x") | {"response_format": {"type": "json_schema"}}, "response_format"),
        (history("{"), "no JSON object"),
        (history("[1]"), "no JSON object"),
        (history("{}", call_id="call_2"), "call_2"),
    ],
)
def test_bad_requests(server, body, words):
    status, answer, _ = server.request("/v1/chat/completions", body)
    assert status == 400
    error = answer["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": ["a", ""]}, "empty"),
        ({"prompt": [[1], []]}, "empty"),
        ({"prompt": ["a", "<|image_1|>"]}, "marks 1 image place"),
        ({"prompt": ["a"] * 69}, "wants 69 answers: the server takes 68 at a time"),
        ({"prompt": ["a"] * 9, "n": 8}, "wants 72 answers"),
        ({"prompt": [512]}, "token id 512"),
        ({"prompt": "<|image_1|>"}, "marks 1 image place"),
        ({"prompt": "<|image_2|>"}, "write <|image_1|>"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logprobs": 6}, "logprobs"),
    ],
)
def test_bad_completions(server, body, words):
    status, answer, _ = server.request("/v1/completions", body)
    assert status == 400
    assert words in answer["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"messages": 1}', b"[" * 100_000])
def test_bodies_that_are_no_json_object(server, body):
    assert server.request("/v1/chat/completions", body)[0] == 400


def test_a_prompt_that_does_not_fit(client, picture):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "word " * 5000)
    assert error.value.code == "context_length_exceeded"
    assert "the context holds 4096" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, [image(picture)] * 30)
    assert error.value.code == "context_length_exceeded"


def test_paths_that_are_not_there(server):
    assert server.request("/v1/nothing")[0] == 404
    status, answer, _ = server.request("/v1/chat/completions")
    assert status == 405
    assert answer["error"]["message"]


def test_many_clients_at_once_get_the_answers_they_get_alone(client, picture, clip):
    questions = [
        "Hello",
        [image(picture)],
        [sound(clip)],
        [image(picture), sound(clip)],
        "Why? " * 9,
    ]
    settings = {"max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    alone = [ask(client, question, **settings) for question in questions]
    with ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda q: ask(client, q, **settings), questions * 4))
    for i, answer in enumerate(together):
        expected = alone[i % len(questions)].choices[0].logprobs.content
        for ours, theirs in zip(answer.choices[0].logprobs.content, expected, strict=True):
            lead = theirs.top_logprobs[0].logprob - theirs.top_logprobs[1].logprob
            if lead < 1e-2:
                break
            assert ours.bytes == theirs.bytes


def test_leaving_frees_the_slot(server):
    body = json.dumps(user("Hello") | {"stream": True}).encode()
    for _ in range(3):
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            connection.recv(100)
    server.wait_until(lambda: server.n_busy() == 0)


def count(server, name):
    """The value of a metric."""
    lines = server.request("/metrics")[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_a_picture_is_encoded_once(server, client, sample_media):
    wide = Image.open(sample_media / "picture.png").resize((64, 48))
    stream = io.BytesIO()
    wide.save(stream, "png")
    url = base64.b64encode(stream.getvalue()).decode()
    before = [count(server, f"phi4mm_encoder_cache_{name}") for name in ("misses", "hits")]
    for words in ("one", "two", "three"):
        ask(client, [text(words), image(url)])
        ask(client, words)  # takes the slot
    after = [count(server, f"phi4mm_encoder_cache_{name}") for name in ("misses", "hits")]
    assert after[0] - before[0] == 1


OPEN_WEBUI = {
    "stream": True, "model": "phi4-mm", "temperature": 0.8, "top_p": 0.9, "min_p": 0.0,
    "max_tokens": 3, "frequency_penalty": 0.1, "presence_penalty": 0.1, "seed": 42,
    "stop": ["###"], "logit_bias": {"11": -5}, "top_k": 40, "repeat_penalty": 1.1, "mirostat": 0,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "User context."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, image("PICTURE")]},
    ],
}  # fmt: skip
CONTINUE = {
    "stream": True, "model": "phi4-mm", "max_tokens": 3, "temperature": 0.2, "stop": ["\n\n"],
    "messages": [
        {"role": "system", "content": "You are a coder."},
        {"role": "user", "content": [{"type": "text", "text": "Read a.py"}]},
        {"role": "assistant", "content": " ", "tool_calls": [
            {"id": "t1", "type": "function",
             "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}]},
        {"role": "tool", "content": "print(1)", "tool_call_id": "t1"},
    ],
    "tools": [
        {"type": "function", "function": {
            "name": "read_file", "description": "Reads.", "strict": False,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}},
    ],
    "parallel_tool_calls": False,
}  # fmt: skip
SILLY_TAVERN = {
    "stream": False, "model": "phi4-mm", "temperature": 1, "max_tokens": 3, "top_p": 1, "top_k": 0,
    "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "stop": [], "n": None,
    "messages": [
        {"role": "system", "content": "Write Ann's next reply."},
        {"role": "system", "name": "example_user", "content": "Hello."},
        {"role": "assistant", "content": "*smiles*"},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "[Start a new chat]"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("body", [OPEN_WEBUI, CONTINUE, SILLY_TAVERN])
def test_requests_of_other_clients(server, picture, body):
    # the fields are those in these clients' public sources
    data = json.dumps(body).replace("PICTURE", f"data:image/png;base64,{picture}").encode()
    status, answer, _ = server.request("/v1/chat/completions", data, {"api-key": "any"})
    assert status == 200, answer
    if body["stream"]:
        assert answer.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer


def test_metrics_and_openapi(server, client):
    ask(client, "Hello")
    metrics = server.request("/metrics")[1]
    assert 'phi4mm_requests_total{path="/v1/chat/completions",status="200"}' in metrics
    assert "phi4mm_slots 5.0" in metrics
    document = server.request("/openapi.json")[1]
    assert "ChatRequest" in document["components"]["schemas"]
    assert server.request("/props")[1]["n_ctx"] == 4096


def test_the_page_needs_nothing_from_elsewhere(server):
    status, page, headers = server.request("/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert "http://" not in page.replace(server.url, "")
    assert "https://" not in page
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in headers["content-security-policy"]


def test_every_answer_has_an_id(server):
    assert server.request("/health")[2]["x-request-id"]
    given = server.request("/health", headers={"X-Request-Id": "mine"})[2]
    assert given["x-request-id"] == "mine"


def test_the_log_holds_no_contents(server, client):
    ask(client, "a very secret question")
    assert "secret" not in "".join(server.log)


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory, sample_media, tiny_path):
    """One slot, no queue, a key, small limits."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "picture.png").write_bytes((sample_media / "picture.png").read_bytes())
    (folder / "long.wav").write_bytes(bytes((1 << 20) + 1))
    os.mkfifo(folder / "pipe")
    server = ServerProcess(
        "-m", tiny_path, "-np", "1",
        "--max-waiting", "0", "--max-body", "1", "--max-pixels", "100000",
        "--max-audio", "1", "--cors-origin", "http://page", "--media-path", folder,
        "--api-key", "first", "--served-model-name", "mine", "--timeout", "2",
        "--allow-media-url", "localhost", "--log-format", "json",
        env={"PHI4MM_API_KEY": "second,third"},
    )  # fmt: skip
    server.folder = folder
    server.wait_ready()
    yield server
    assert server.stop() == 0


KEY = {"Authorization": "Bearer first"}


def test_keys(strict_server):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first"}):
        status, answer, _ = strict_server.request("/v1/models", headers=headers)
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    for key in ("first", "second", "third"):
        headers = {"Authorization": f"Bearer {key}"}
        assert strict_server.request("/v1/models", headers=headers)[0] == 200


def test_a_long_body(strict_server):
    status, answer, _ = strict_server.request("/v1/chat/completions", b"x" * (2 << 20), KEY)
    assert status == 413
    assert "--max-body" in answer["error"]["message"]


def test_a_long_body_whose_length_is_not_told(strict_server):
    def pieces():
        for _ in range(3):
            yield b"x" * (1 << 19)

    connection = http.client.HTTPConnection(strict_server.url.removeprefix("http://"))
    with closing(connection):
        connection.request(
            "POST",
            "/tokenize",
            pieces(),
            {**KEY, "Transfer-Encoding": "chunked"},
            encode_chunked=True,
        )
        assert connection.getresponse().status == 413


def test_pages(strict_server):
    for origin, allowed in (("http://page", "http://page"), ("http://other", None)):
        headers = {"Origin": origin, **KEY}
        given = strict_server.request("/v1/models", headers=headers)[2]
        assert given.get("access-control-allow-origin") == allowed


def test_media_limits(strict_server, picture, clip):
    for part, words in (
        (image(picture), "100000 (--max-pixels)"),
        (sound(clip), "limit of 1 s; cut it into shorter clips (--max-audio)"),
    ):
        status, answer, _ = strict_server.request("/v1/chat/completions", user([part]), KEY)
        assert status == 400
        assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost/a.png", "not a public one"),
        ("http://example.org/a.png", "not one the server may fetch from"),
        ("file:///etc/passwd", "not in the server's media folder"),
        ("file://{folder}/../x.png", "not in the server's media folder"),
        ("file://{folder}/absent.png", "no such file in the server's media folder"),
        ("file://{folder}/pipe", "no such file in the server's media folder"),
        ("file://{folder}/long.wav", "longer than the limit of 1048576 bytes (--max-body)"),
        ("http://[::1", "malformed"),
    ],
)
def test_urls_that_are_not_allowed(strict_server, url, words):
    body = user([image(url.format(folder=strict_server.folder))])
    status, answer, _ = strict_server.request("/v1/chat/completions", body, KEY)
    assert status == 400
    assert words in answer["error"]["message"]


def test_a_file_in_the_media_folder_is_read(strict_server):
    body = user([image(f"file://{strict_server.folder}/picture.png")])
    answer = strict_server.request("/v1/chat/completions", body, KEY)[1]
    assert "100000" in answer["error"]["message"]  # it was opened, and is too large


def test_too_many_at_once(strict_server):
    body = user("Hello") | {"temperature": 1, "logit_bias": {END_ID: -100, "480": -100}}
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda _: strict_server.request("/v1/chat/completions", body, KEY), range(6))
        )
    statuses = [status for status, _, _ in answers]
    assert 429 in statuses
    assert set(statuses) <= {200, 429, 503}
    refused = next(answer for answer in answers if answer[0] == 429)
    assert refused[1]["error"]["type"] == "rate_limit_error"
    assert int(refused[2]["retry-after"]) > 0


def test_the_json_log(strict_server):
    strict_server.request("/health")
    lines = [json.loads(line) for line in strict_server.log if line.startswith("{")]
    assert all(line["level"] for line in lines)
    assert any("request_id" in line for line in lines)
