"""What a client reads of a fault: the field as it was sent, and the setting of a limit."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from phi4mm.errors import MediaTooLarge
from phi4mm.server import wire
from phi4mm.server.error import status_and_body


def chat(content: object, **settings: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **settings}


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (wire.ChatRequest, {}, "messages"),
        (wire.ChatRequest, chat(1), "messages.0.content"),
        (wire.ChatRequest, chat([1]), "messages.0.content.0"),
        (wire.ChatRequest, chat([{"type": "x"}]), "messages.0.content.0"),
        (wire.ChatRequest, chat([{"type": "text"}]), "messages.0.content.0.text"),
        (
            wire.ChatRequest,
            chat([{"type": "image_url", "image_url": "x"}]),
            "messages.0.content.0.image_url",
        ),
        (
            wire.ChatRequest,
            chat([{"type": "text", "text": "x"}, {"type": "input_audio", "input_audio": {}}]),
            "messages.0.content.1.input_audio.data",
        ),
        (wire.ChatRequest, chat("x", tool_choice="maybe"), "tool_choice"),
        (wire.ChatRequest, chat("x", tool_choice={"type": "function"}), "tool_choice.function"),
        (wire.ChatRequest, chat("x", stop=["a", 1]), "stop.1"),
        (wire.ChatRequest, chat("x", logit_bias={"7": "a"}), "logit_bias.7"),
        (wire.CompletionRequest, {"prompt": 1.5}, "prompt"),
        (wire.CompletionRequest, {"prompt": [[1, "a"]]}, "prompt.0.1"),
        (wire.DetokenizeRequest, {"tokens": ["a"]}, "tokens.0"),
    ],
)
def test_the_field_is_named_as_it_was_sent(
    model: type[wire.WireModel], body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ValidationError) as error:
        model.model_validate_json(json.dumps(body))
    status, answer = status_and_body(error.value)
    assert status == 400
    assert answer["error"]["param"] == param
    assert answer["error"]["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("error", "flag"),
    [
        (MediaTooLarge("a picture of 9 pixels", "pixels"), "(--max-pixels)"),
        (MediaTooLarge("longer than 1 s", "seconds"), "(--max-audio)"),
    ],
)
def test_a_limit_is_named_by_its_setting(error: MediaTooLarge, flag: str) -> None:
    error = pickle.loads(pickle.dumps(error))  # it may come from another process
    status, answer = status_and_body(error)
    assert (status, answer["error"]["code"]) == (400, "invalid_media")
    assert answer["error"]["message"] == f"{error} {flag}"
