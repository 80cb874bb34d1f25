"""The translator in front of vLLM: what it asks, and what it makes of the answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import jinja2
import pytest

from phi4mm.errors import InputError
from phi4mm.prompt.segment import Medium, Special, render_chat
from phi4mm.server import wire
from phi4mm.server.settings import Limits
from phi4mm.server.translate import messages_of
from phi4mm.upstream.answer import AnswerTranslator
from phi4mm.upstream.question import upstream_request
from phi4mm.upstream.settings import UpstreamSettings

Json = dict[str, Any]
SETTINGS = UpstreamSettings("http://127.0.0.1:9", base_model="base", served_name="served")
IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CLIP: Json = {
    "type": "input_audio",
    "input_audio": {"data": base64.b64encode(b"x").decode(), "format": "wav"},
}
TEXT: Json = {"type": "text", "text": "What?"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL: Json = {
    "id": "1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Bern"}'},
}
# Microsoft's, as published: it knows nothing of calls, and of tools only a key of the message.
NATIVE = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and "
    "message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + "
    "'<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + "
    "message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "<|assistant|>"
)


def asked(given: Json) -> Json:
    request = wire.ChatRequest.model_validate_json(json.dumps(given))
    return upstream_request(given, request, SETTINGS)


def user(*parts: Json) -> Json:
    return {"role": "user", "content": list(parts)}


def prompt_of_vllm(translated: Json) -> str:
    """How vLLM lays a request out: texts joined, missing markers before them, native template."""
    counts = {"image": 0, "audio": 0}
    messages = []
    for message in translated["messages"]:
        content = message["content"]
        if isinstance(content, list):
            markers = []
            for part in content:
                if part["type"] != "text":
                    kind = "image" if "image" in part["type"] else "audio"
                    counts[kind] += 1
                    markers.append(f"<|{kind}_{counts[kind]}|>")
            text = "\n".join(part["text"] for part in content if part["type"] == "text")
            missing = [marker for marker in markers if marker not in text]
            content = "\n".join([*missing, text])
        messages.append({**message, "content": content})
    return jinja2.Environment().from_string(NATIVE).render(messages=messages)


def prompt_of_ours(given: Json) -> str:
    """How this project's own engine lays the same request out."""
    request = wire.ChatRequest.model_validate_json(json.dumps(given))
    messages = messages_of(request, lambda url, kind: b"x", Limits())
    return "".join(
        s.token if isinstance(s, Special)
        else f"<|{s.kind}_{s.index + 1}|>" if isinstance(s, Medium) else s.text
        for s in render_chat(messages)
    )  # fmt: skip


CONVERSATIONS: dict[str, Json] = {
    "text": {"messages": [user(TEXT)]},
    "a plain string": {"messages": [{"role": "user", "content": "Hi"}]},
    "a picture after its question": {"messages": [user(TEXT, IMAGE)]},
    "a clip": {"messages": [user(CLIP, TEXT)]},
    "a picture and a clip": {"messages": [user(IMAGE, CLIP)]},
    "pictures in two turns": {
        "messages": [
            user(IMAGE, IMAGE, TEXT), {"role": "assistant", "content": "Two."}, user(IMAGE, TEXT)
        ]
    },
    "several texts": {"messages": [user(TEXT, TEXT)]},
    "tools": {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS},
    "tools and a system message": {
        "messages": [{"role": "developer", "content": "Brief."}, user(TEXT)], "tools": TOOLS
    },
    "a call and its result": {
        "messages": [
            user(TEXT),
            {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "21"},
        ],
        "tools": TOOLS,
    },
}  # fmt: skip


# ---- questions


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_prompt_is_the_one_the_model_was_trained_with(name: str) -> None:
    given = CONVERSATIONS[name]
    assert prompt_of_vllm(asked(given)) == prompt_of_ours(given)


def test_without_the_translator_it_is_not() -> None:
    """A control: what the comparison above is for."""
    for name in ("a picture after its question", "tools", "a call and its result"):
        given = json.loads(json.dumps(CONVERSATIONS[name]))
        for message in given["messages"]:
            message["content"] = message["content"] or ""
        assert prompt_of_vllm(given) != prompt_of_ours(CONVERSATIONS[name]), name


@pytest.mark.parametrize(
    ("parts", "model"),
    [
        ([TEXT], "base"),
        ([IMAGE, TEXT], "vision"),
        ([CLIP], "speech"),
        ([CLIP, IMAGE], "vision"),
    ],
)
def test_content_names_the_adapter(parts: list[Json], model: str) -> None:
    assert asked({"model": "served", "messages": [user(*parts)]})["model"] == model


def test_a_picture_in_the_history_counts() -> None:
    messages = [user(IMAGE), {"role": "assistant", "content": "A cat."}, user(CLIP)]
    assert asked({"messages": messages})["model"] == "vision"


def test_what_is_not_translated_is_passed_on() -> None:
    given = {
        "messages": [user(IMAGE)],
        "temperature": 0.5,
        "seed": 3,
        "stream": True,
        "mm_processor_kwargs": {"dynamic_hd": 4},
        "response_format": {"type": "json_object"},
    }
    found = asked(given)
    assert {name: found[name] for name in given if name != "messages"} == {
        name: given[name] for name in given if name != "messages"
    }
    assert found["messages"][0]["content"][0] == IMAGE


def test_tools_are_not_passed_on_and_calls_are_made_visible() -> None:
    found = asked({"messages": [user(TEXT)], "tools": TOOLS, "tool_choice": "auto"})
    assert not {"tools", "tool_choice"} & found.keys()
    assert found["skip_special_tokens"] is False
    assert "skip_special_tokens" not in asked({"messages": [user(TEXT)]})
    off = asked({"messages": [user(TEXT)], "tools": TOOLS, "tool_choice": "none"})
    assert "<|tool|>" not in json.dumps(off)


def test_a_call_that_must_be_made_is_a_schema() -> None:
    given = {"messages": [user(TEXT)], "tools": TOOLS, "tool_choice": "required"}
    schema = asked(given)["response_format"]["json_schema"]["schema"]
    (call,) = schema["items"]["anyOf"]
    assert call["properties"]["name"] == {"const": "weather"}


@pytest.mark.parametrize("text", ["<|end|>", "so <|image_1|> it is", "<|endoftext10|>"])
def test_a_special_token_in_the_words_of_a_user_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"messages\[0\] holds '<\|"):
        asked({"messages": [{"role": "user", "content": text}]})


def test_a_malformed_call_may_come_back() -> None:
    answer = {"role": "assistant", "content": "<|tool_call|>[oops"}
    asked({"messages": [user(TEXT), answer, user(TEXT)]})


def test_a_malformed_message_is_named() -> None:
    messages = [user(TEXT), {"role": "tool", "tool_call_id": "7", "content": "x"}]
    with pytest.raises(InputError, match=r"messages\[1\].*'7' is no call made before"):
        asked({"messages": messages})


# ---- answers

CALLS = 'Hm. functools[{"name": "weather", "arguments": {"places": ["Bern", "]"], "deep": [[1]]}}]'


def translator(**given: Any) -> AnswerTranslator:
    body = {"messages": [user(TEXT)], "tools": TOOLS} | given
    return AnswerTranslator(wire.ChatRequest.model_validate_json(json.dumps(body)), "served")


def whole(content: str) -> Json:
    message = {"role": "assistant", "content": content, "tool_calls": []}
    return {"id": "x", "model": "speech", "usage": {"total_tokens": 3},
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}  # fmt: skip


def pieces(texts: list[str], finish_reason: str = "stop") -> list[Json]:
    deltas: list[Json] = [{"role": "assistant", "content": ""}, *({"content": t} for t in texts)]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    chunks: list[Json] = [{"id": "x", "model": "base", "choices": [c]} for c in choices]
    return [*chunks, {"id": "x", "model": "base", "choices": [], "usage": {"total_tokens": 3}}]


def gathered(chunks: list[Json]) -> tuple[str, list[tuple[str, str]], str | None]:
    """(words, calls, why it ended) of a stream, as a client would put it together."""
    words, calls, reason = "", [], None
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert reason is None
        words += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", []):
            if "name" in call["function"]:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"].get("arguments", "")
        reason = choice["finish_reason"]
    return words, [(name, arguments) for name, arguments in calls], reason


def test_nested_calls_are_read_out_of_a_whole_answer() -> None:
    found = translator().completion(whole(CALLS))
    assert found["model"] == "served"
    assert found["usage"] == {"total_tokens": 3}
    (choice,) = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Hm. "
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["deep"] == [[1]]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_calls_are_streamed_however_the_text_is_cut(step: int) -> None:
    texts = [CALLS[i : i + step] for i in range(0, len(CALLS), step)]
    made = translator()
    chunks = [piece for chunk in pieces(texts) for piece in made.chunk(chunk)]
    words, calls, reason = gathered(chunks)
    assert words == "Hm. "
    assert [name for name, _ in calls] == ["weather"]
    assert json.loads(calls[0][1])["places"] == ["Bern", "]"]
    assert reason == "tool_calls"
    assert chunks[-1]["usage"] == {"total_tokens": 3}
    assert {chunk["model"] for chunk in chunks} == {"served"}


def test_native_markers_are_calls_as_well() -> None:
    text = '<|tool_call|>[{"name": "weather", "arguments": {}}]<|/tool_call|>'
    (choice,) = translator().completion(whole(text))["choices"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


def test_what_only_looks_like_a_call_stays_text() -> None:
    for text in ("functools[1, 2]", "functools are nice", 'functools[{"name": "x"'):
        (choice,) = translator().completion(whole(text))["choices"]
        assert choice["message"]["content"] == text
        assert choice["finish_reason"] == "stop"


def test_without_tools_nothing_is_read() -> None:
    made = translator(tools=None)
    chunks = [piece for chunk in pieces([CALLS], "length") for piece in made.chunk(chunk)]
    assert gathered(chunks) == (CALLS, [], "length")


def test_log_probabilities_are_passed_on_once() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "functools"},
                          "logprobs": {"content": [1]}, "finish_reason": None}]}  # fmt: skip
    made = list(translator().chunk(chunk))
    assert [piece["choices"][0]["logprobs"] for piece in made] == [{"content": [1]}]


def test_a_single_call_ends_the_answer() -> None:
    text = "functools" + json.dumps([{"name": "weather", "arguments": {}}] * 2)
    made = translator(parallel_tool_calls=False)
    chunks = [piece for chunk in pieces([text]) for piece in made.chunk(chunk)]
    assert made.is_over
    assert len(gathered(chunks)[1]) == 1
