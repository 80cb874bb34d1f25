"""Which requests should meet at the same replica: those about the same picture, clip or talk.

A replica keeps the embeddings of media it has encoded and what it has computed of conversations.
So requests get a key that stays the same as a conversation goes on; equal keys go to one replica
for as long as it has room.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from phi4mm.deploy.exchange import Call

# Of a raw prompt, in characters: what is likely to stay the same when it grows.
_PROMPT_HEAD = 512


def affinity_key(call: Call) -> str | None:
    """The key of a request; None where it does not matter which replica answers.

    The first picture or clip of a conversation, else its system message and first question; the
    clip of a transcription; the beginning of a raw prompt.
    """
    if call.method != "POST":
        return None
    kind, _, parameters = call.header("content-type").partition(";")
    if kind.strip().lower() == "multipart/form-data":
        return _key(_largest_part(call.body, parameters))
    try:
        body = json.loads(call.body)
    except (ValueError, RecursionError):
        return None  # whoever gets it says what is wrong with it
    return _json_key(body) if isinstance(body, dict) else None


def _json_key(body: dict[str, Any]) -> str | None:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return _key(prompt[:_PROMPT_HEAD].encode(errors="replace"))
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    medium = next(_media(messages), None)
    return _key(medium) if medium is not None else _key(_opening(messages))


def _media(messages: list[Any]) -> Iterator[bytes]:
    """Media of a conversation, as they are given: a URL, or base64."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                continue
            for name in ("image_url", "audio_url", "input_audio"):
                medium = part.get(name)
                if isinstance(medium, dict):
                    value = medium.get("url") or medium.get("data")
                    if isinstance(value, str):
                        yield value.encode(errors="replace")


def _opening(messages: list[Any]) -> bytes:
    """Everything up to the first question of a conversation."""
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    end = roles.index("user") + 1 if "user" in roles else len(messages)
    return json.dumps(messages[:end], sort_keys=True).encode()


def _largest_part(body: bytes, parameters: str) -> bytes:
    """The contents of the largest part of a form: the file, without headers that may differ."""
    _, _, boundary = parameters.partition("boundary=")
    boundary = boundary.partition(";")[0].strip().strip('"')
    if not boundary:
        return body
    parts = body.split(b"--" + boundary.encode())
    return max((part.partition(b"\r\n\r\n")[2] for part in parts), key=len)


def _key(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
