"""The renderer's output: text, special tokens and media, kept apart until they are tokenised.

Keeping them apart is what lets a user write ``<|end|>`` or ``<|image_1|>`` in a message: only the
template and raw prompts produce special tokens and media markers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from phi4mm.errors import InputError
from phi4mm.prompt.message import AudioPart, ImagePart, Message, TextPart
from phi4mm.prompt.tool_call import calls_json

MediumKind = Literal["image", "audio"]

IMAGE_PLACEHOLDER = "<|endoftext10|>"
AUDIO_PLACEHOLDER = "<|endoftext11|>"
_PLACEHOLDERS: dict[str, MediumKind] = {IMAGE_PLACEHOLDER: "image", AUDIO_PLACEHOLDER: "audio"}
_KINDS: dict[str, MediumKind] = {"image": "image", "audio": "audio"}
_ROLE_TOKENS = {"tool": "<|tool_response|>"}
_MARKER = re.compile(r"<\|(?P<kind>image|audio)_(?P<number>\d+)\|>")


@dataclass(frozen=True, slots=True)
class Text:
    """Words to be tokenised; never parsed for special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special token by its name, such as ``<|end|>``."""

    token: str


@dataclass(frozen=True, slots=True)
class Medium:
    """The place of a medium: ``index`` counts pictures and clips separately, from 0."""

    kind: MediumKind
    index: int


Segment = Text | Special | Medium


def render_chat(messages: Sequence[Message]) -> list[Segment]:
    """Lay out a conversation in the model's template, ready for the assistant's answer.

    Each message is ``<|role|>`` content ``<|end|>`` without newlines; a system message carries its
    tools as ``<|tool|>`` JSON ``<|/tool|>`` after its text (docs/model.md, "Chat template").  For
    calls and their results the template has no form: they are laid out with the special tokens
    that the vocabulary has for them.

    Differs from the reference: within a message, media come before the text whatever the order
    given, since the model was trained so and answers otherwise with refusals.
    """
    if not messages:
        raise InputError("the conversation is empty: give at least one message")
    segments: list[Segment] = []
    n_media: dict[MediumKind, int] = {"image": 0, "audio": 0}
    for message in messages:
        segments.append(Special(_ROLE_TOKENS.get(message.role, f"<|{message.role}|>")))
        for part in message.parts:
            if not isinstance(part, TextPart):
                kind: MediumKind = "image" if isinstance(part, ImagePart) else "audio"
                segments.append(Medium(kind, n_media[kind]))
                n_media[kind] += 1
        if text := "".join(part.text for part in message.parts if isinstance(part, TextPart)):
            segments.append(Text(text))
        if message.tools is not None:
            segments += [Special("<|tool|>"), Text(message.tools), Special("<|/tool|>")]
        if message.tool_calls:
            calls = Text(calls_json(message.tool_calls))
            segments += [Special("<|tool_call|>"), calls, Special("<|/tool_call|>")]
        segments.append(Special("<|end|>"))
    segments.append(Special("<|assistant|>"))
    return segments


def parse_raw(prompt: str, special_tokens: Collection[str]) -> list[Segment]:
    """Read a raw prompt: special tokens and media markers are parsed, the rest is text.

    ``<|image_k|>`` and ``<|audio_k|>`` mark the k-th picture and clip, in ascending order; the
    placeholder tokens ``<|endoftext10|>`` and ``<|endoftext11|>`` mark the next one.

    Differs from the reference: the number must be the marker's place.  The reference ignores it,
    which answers from the wrong picture when two are swapped.

    Raises:
        InputError: a marker's number is not its place.
    """
    names = sorted(special_tokens, key=len, reverse=True)
    pattern = re.compile("|".join([_MARKER.pattern, *map(re.escape, names)]))
    segments: list[Segment] = []
    n_media: dict[MediumKind, int] = {"image": 0, "audio": 0}
    end = 0
    for match in pattern.finditer(prompt):
        if match.start() > end:
            segments.append(Text(prompt[end : match.start()]))
        end = match.end()
        kind = _KINDS[match["kind"]] if match["kind"] else _PLACEHOLDERS.get(match[0])
        if kind is None:
            segments.append(Special(match[0]))
            continue
        index = n_media[kind]
        if match["number"] is not None and int(match["number"]) != index + 1:
            raise InputError(f"prompt marker {match[0]} is the {kind} number {index + 1}: "
                             f"write <|{kind}_{index + 1}|>")  # fmt: skip
        segments.append(Medium(kind, index))
        n_media[kind] += 1
    if end < len(prompt):
        segments.append(Text(prompt[end:]))
    return segments


def media_of(messages: Sequence[Message]) -> tuple[list[ImagePart], list[AudioPart]]:
    """The pictures and the clips of a conversation, each in order of appearance."""
    parts = [part for message in messages for part in message.parts]
    return (
        [part for part in parts if isinstance(part, ImagePart)],
        [part for part in parts if isinstance(part, AudioPart)],
    )
