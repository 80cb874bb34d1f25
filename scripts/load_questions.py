"""The requests that load_test.py makes, and how their answers are read and judged."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

MEDIA = Path(__file__).parents[1] / "src" / "phi4mm" / "sample" / "media"
# below this lead of the likeliest token, rounding may choose another one
SURE = 1e-2
N_TOKENS = 16
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "count": {"enum": [1, 2, 3]}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Question:
    """A request in two forms, and how its answer is read and judged.

    Attributes:
        from_events: makes the answer of a stream's events what it is without a stream.
        is_right: whether (answer, expected answer) agree.
    """

    name: str
    path: str
    content_type: str
    body: bytes
    streamed: bytes
    from_events: Callable[[list[dict[str, Any]]], dict[str, Any]]
    is_right: Callable[[dict[str, Any], dict[str, Any]], bool]


def questions() -> list[Question]:
    """One request of each kind."""
    picture = base64.b64encode((MEDIA / "picture.png").read_bytes()).decode()
    clip = base64.b64encode((MEDIA / "clip.flac").read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:;base64,{picture}"}}
    sound = {"type": "input_audio", "input_audio": {"data": clip, "format": "flac"}}
    text = {"type": "text", "text": "What is it?"}
    schema = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
    return [
        chat("text", "Hello"),
        chat("long text", "Tell me a story. " * 40),
        chat("picture", [image, text]),
        chat("clip", [sound, text]),
        chat("picture and clip", [image, sound]),
        chat("schema", "Which colour, and how many?", response_format=schema),
        recording(),
    ]


def chat(name: str, content: object, **settings: object) -> Question:
    """A question to the chat API."""
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": N_TOKENS,
        "logprobs": True,
        "top_logprobs": 2,
        **settings,
    }
    return Question(
        name, "/v1/chat/completions", "application/json",
        json.dumps(body).encode(), json.dumps({**body, "stream": True}).encode(),
        joined_tokens, same_tokens,
    )  # fmt: skip


def recording() -> Question:
    """A transcription in several pieces."""
    samples, rate = soundfile.read(MEDIA / "clip.flac")
    file = io.BytesIO()
    talk = np.concatenate([samples, np.zeros(rate)] * 3)
    soundfile.write(file, talk, rate, format="FLAC")

    def form(*fields: tuple[str, str]) -> bytes:
        parts = [
            f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in (("response_format", "verbose_json"), *fields)
        ]
        head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        return b"".join([*parts, head, file.getvalue(), b"\r\n--x--\r\n"])

    return Question(
        "recording", "/v1/audio/transcriptions", "multipart/form-data; boundary=x",
        form(), form(("stream", "true")), joined_segments, same_times,
    )  # fmt: skip


def joined_tokens(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A chat answer of its stream."""
    choices = [choice for event in events for choice in event["choices"]]
    entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    return {"choices": [{"logprobs": {"content": entries}}]}


def joined_segments(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A transcript of its stream."""
    return {"segments": [e for e in events if e["type"] == "transcript.text.segment"]}


def same_times(answer: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether both hear speech at the same times."""
    ours, theirs = (
        [(segment["start"], segment["end"]) for segment in found["segments"]]
        for found in (answer, expected)
    )
    return ours == theirs != []


def same_tokens(answer: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether both take the same tokens wherever the choice is sure."""
    found, right = (a["choices"][0]["logprobs"]["content"] for a in (answer, expected))
    for ours, theirs in zip(found, right, strict=False):
        first, second = theirs["top_logprobs"]
        if first["logprob"] - second["logprob"] < SURE:
            return True
        if ours["bytes"] != theirs["bytes"]:
            return False
    return len(found) == len(right) > 0
