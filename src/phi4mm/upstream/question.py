"""From a request to this API to one that vLLM answers rightly.  Pure: nothing is sent.

vLLM lays messages out in the model's own template, reads special tokens in whatever text they hold,
and puts media that no marker stands for before the text, with a line break between (vLLM 0.32,
``renderers/chat_utils.py``).  So everything the template has no form for is written into the texts
here: markers of media, tools, calls and their results.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from phi4mm.errors import InputError
from phi4mm.modality import mode_of
from phi4mm.prompt.message import ImagePart, Message, TextPart
from phi4mm.prompt.tool_call import calls_json
from phi4mm.server import wire
from phi4mm.server.answer_schema import answer_schema
from phi4mm.server.settings import Limits
from phi4mm.server.translate import messages_of, must_call, offered_tools
from phi4mm.upstream.settings import UpstreamSettings

Json = dict[str, Any]

_ROLES: Final = {"tool": "tool_response"}
_TRANSLATED: Final = ("tools", "tool_choice", "parallel_tool_calls", "response_format")
_SPECIAL: Final = re.compile(
    r"<\|(?:endoftext(?:10|11)?|endofprompt|end|system|user|assistant|tag|/?tool|/?tool_call|"
    r"tool_response|(?:image|audio)_\d+)\|>"
)
# What an answer may hold that was no well-formed call, and that clients send back.
_OF_CALLS: Final = ("<|tool_call|>", "<|/tool_call|>")


def upstream_request(given: Json, request: wire.ChatRequest, settings: UpstreamSettings) -> Json:
    """The request for the endpoint.

    Args:
        given: the body as it came; what is not translated is passed on.
        request: the same, checked.
        settings: names of the models, limits.

    Raises:
        InputError: a message is malformed, or holds a special token in its words.
    """
    messages = messages_of(request, _not_loaded, Limits(n_media=settings.n_media))
    n_added = len(messages) - len(request.messages)  # a system message for tools
    media: list[list[Json]] = [[]] * n_added + [_media(message) for message in given["messages"]]
    counts = {"image": 0, "audio": 0}
    translated = []
    for place, (message, parts) in enumerate(zip(messages, media, strict=True)):
        _refuse_special(message, place - n_added)
        translated.append(_translated(message, parts, counts))
    mode = mode_of(n_images=counts["image"], n_audios=counts["audio"])
    kept = {name: value for name, value in given.items() if name not in _TRANSLATED}
    return kept | {
        "model": settings.model_for(mode.adapter),
        "messages": translated,
        **_answer_form(given, request),
    }


def _answer_form(given: Json, request: wire.ChatRequest) -> Json:
    """What the answer must look like, and what of it is to be seen."""
    form: Json = {}
    if offered_tools(request):
        form["skip_special_tokens"] = False  # they mark the calls
    if must_call(request):
        schema = json.loads(answer_schema(request) or "{}")
        named = {"name": "calls", "schema": schema}
        form["response_format"] = {"type": "json_schema", "json_schema": named}
    elif "response_format" in given:
        form["response_format"] = given["response_format"]
    return form


def _not_loaded(url: str, kind: str) -> bytes:
    """Media are passed on as they are."""
    return b""


def _media(message: Json) -> list[Json]:
    """The pictures and clips of a message, as they came."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [part for part in parts if part["type"] != "text"]


def _translated(message: Message, media: list[Json], counts: dict[str, int]) -> Json:
    """One message, with the numbers of its media counted on."""
    markers = ""
    for part in message.parts:
        if not isinstance(part, TextPart):
            kind = "image" if isinstance(part, ImagePart) else "audio"
            counts[kind] += 1
            markers += f"<|{kind}_{counts[kind]}|>"
    text = markers + _words(message)
    if message.tools is not None:
        text += f"<|tool|>{message.tools}<|/tool|>"
    if message.tool_calls:
        text += f"<|tool_call|>{calls_json(message.tool_calls)}<|/tool_call|>"
    content = [*media, {"type": "text", "text": text}] if media else text
    return {"role": _ROLES.get(message.role, message.role), "content": content}


def _words(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _refuse_special(message: Message, place: int) -> None:
    """The endpoint would read a special token where a user only spells one.

    Raises:
        InputError: the message's words hold one.
    """
    allowed = _OF_CALLS if message.role == "assistant" else ()
    texts = (_words(message), message.tools or "", calls_json(message.tool_calls))
    found = {token for text in texts for token in _SPECIAL.findall(text)} - set(allowed)
    if found:
        where = f"messages[{place}]" if place >= 0 else "tools"
        raise InputError(
            f"{where} holds {min(found)!r}, which the engine behind this server would take for a "
            "special token: leave it out"
        )
