"""From request bodies to conversations and sampling settings.  Pure: nothing is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from phi4mm.engine.parameters import SamplingParams
from phi4mm.errors import InputError, SettingError
from phi4mm.prompt.message import AudioPart, ImagePart, Message, Part, TextPart
from phi4mm.prompt.tool_call import ToolCall
from phi4mm.server import wire
from phi4mm.server.media_url import Kind, from_base64
from phi4mm.server.settings import Limits

LoadMedia = Callable[[str, Kind], bytes]


def messages_of(
    request: wire.ChatRequest | wire.TemplateRequest, load: LoadMedia, limits: Limits
) -> list[Message]:
    """The conversation, tools included.

    Args:
        request: the body.
        load: gives the bytes behind a URL; may wait.
        limits: how many media there may be.

    Raises:
        InputError: a message is malformed; it names the message.
        MediaError: a medium cannot be had.
    """
    n_media = sum(
        not isinstance(part, wire.TextPart)
        for message in request.messages
        if isinstance(message.content, list)
        for part in message.content
    )
    if n_media > limits.n_media:
        raise InputError(
            f"{n_media} pictures and clips: the limit is {limits.n_media} (--max-media)"
        )
    call_ids: set[str] = set()
    messages = []
    for place, message in enumerate(request.messages):
        try:
            messages.append(_message(message, load, call_ids))
        except InputError as error:
            raise type(error)(f"messages[{place}]: {error}") from None
    return _with_tools(messages, offered_tools(request))


def _message(message: wire.ChatMessage, load: LoadMedia, call_ids: set[str]) -> Message:
    if message.tool_calls and message.role != "assistant":
        raise InputError(f"tool_calls belong to the assistant, not to the role {message.role}")
    content = message.content
    if content is None and message.role == "assistant":
        content = message.refusal
    if content is None and not message.tool_calls:
        raise InputError("content is missing")
    if message.role == "tool" and message.tool_call_id not in call_ids:
        raise InputError(f"tool_call_id {message.tool_call_id!r} is no call made before")
    role = "system" if message.role == "developer" else message.role
    calls = message.tool_calls or []
    call_ids.update(call.id for call in calls)
    return Message(
        role,
        tuple(_parts(content or "", load)),
        tool_calls=tuple(_call(call.function) for call in calls),
    )


def _call(function: wire.CalledFunction) -> ToolCall:
    text = function.arguments or "{}"  # clients send "" for a call without arguments
    try:
        arguments = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InputError(f"the arguments of {function.name!r} are no JSON object")
    return ToolCall(function.name, text)


def _parts(content: str | list[wire.Part], load: LoadMedia) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    return [_part(part, load) for part in content]


def _part(part: wire.Part, load: LoadMedia) -> Part:
    if isinstance(part, wire.TextPart):
        return TextPart(part.text)
    if isinstance(part, wire.RefusalPart):
        return TextPart(part.refusal)
    if isinstance(part, wire.ImagePart):
        return ImagePart(load(part.image_url.url, "image"))
    if isinstance(part, wire.AudioUrlPart):
        return AudioPart(load(part.audio_url.url, "audio"))
    data = part.input_audio.data
    # some clients put a data: URL here
    is_url = data[:5].lower() == "data:"
    return AudioPart(load(data, "audio") if is_url else from_base64(data, "audio"))


def offered_tools(request: wire.ChatRequest | wire.TemplateRequest) -> list[wire.Function]:
    """The tools the model may call: all of them, the one that is named, or none.

    Raises:
        InputError: ``tool_choice`` asks for a tool that is not there.
    """
    tools = [tool.function for tool in request.tools or []]
    choice = request.tool_choice
    if choice == "none":
        return []
    if isinstance(choice, wire.NamedTool):
        named = [tool for tool in tools if tool.name == choice.function.name]
        if not named:
            raise InputError(f"tool_choice names {choice.function.name!r}, which is no tool given")
        return named
    if choice == "required" and not tools:
        raise InputError("tool_choice is required, and there are no tools")
    return tools


def must_call(request: wire.ChatRequest) -> bool:
    """Whether the answer has to be a call."""
    return request.tool_choice == "required" or isinstance(request.tool_choice, wire.NamedTool)


def _with_tools(messages: list[Message], tools: Sequence[wire.Function]) -> list[Message]:
    """Tools stand in the first system message; there will be one."""
    if not tools:
        return messages
    text = json.dumps([tool.model_dump(exclude_none=True) for tool in tools], ensure_ascii=False)
    if messages[0].role == "system":
        return [Message("system", messages[0].parts, tools=text), *messages[1:]]
    return [Message("system", (), tools=text), *messages]


def sampling_of(request: wire.ChatRequest | wire.CompletionRequest) -> SamplingParams:
    """The settings of one answer.

    Raises:
        InputError: one is out of range; it is named.
    """
    given = {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    if given.get("top_k") == -1:  # as vLLM's and llama.cpp's clients say that all are kept
        given["top_k"] = 0
    (limit_name, max_tokens) = _max_tokens(request)
    try:
        return SamplingParams(
            **given,
            stop=_stops(request.stop),
            logit_bias=tuple(_bias(*item) for item in (request.logit_bias or {}).items()),
            max_tokens=max_tokens,
            top_logprobs=_top_logprobs(request),
        )
    except SettingError as error:
        if error.name != "max_tokens":
            raise
        raise SettingError(limit_name, error.problem) from None


_MOST_STOPS, _LONGEST_STOP = 64, 1000
_SAME_NAMES = (
    "temperature", "top_p", "top_k", "min_p", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Strings that end the answer; each is looked for after every token."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MOST_STOPS:
        raise SettingError("stop", f"has {len(stops)} strings: give at most {_MOST_STOPS}")
    if (longest := max(map(len, stops), default=0)) > _LONGEST_STOP:
        raise SettingError("stop", f"has {longest} characters: give at most {_LONGEST_STOP}")
    return stops


def _bias(token_id: str, bias: float) -> tuple[int, float]:
    if not token_id.isascii() or not token_id.isdigit():
        raise InputError(f"logit_bias: {token_id!r} is no token id")
    return int(token_id), bias


def _max_tokens(request: wire.ChatRequest | wire.CompletionRequest) -> tuple[str, int | None]:
    """(field, limit): the newer field counts where both are given; -1 is no limit."""
    name, value = "max_tokens", request.max_tokens
    if isinstance(request, wire.ChatRequest) and request.max_completion_tokens is not None:
        name, value = "max_completion_tokens", request.max_completion_tokens
    return name, None if value == -1 else value


def _top_logprobs(request: wire.ChatRequest | wire.CompletionRequest) -> int | None:
    if isinstance(request, wire.CompletionRequest):
        return request.logprobs
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs is not None:
        raise InputError("top_logprobs is given without logprobs: set logprobs to true")
    return None
