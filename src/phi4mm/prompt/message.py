"""What a person says to the model: messages made of parts, before any rendering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from phi4mm.errors import InputError
from phi4mm.media.audio import AudioSource
from phi4mm.media.image import ImageSource
from phi4mm.prompt.tool_call import ToolCall

Role = Literal["system", "user", "assistant", "tool"]


def require_unicode(text: object) -> None:
    """Refuse what cannot be tokenised.

    Raises:
        InputError: it is no text, or not valid Unicode.
    """
    if not isinstance(text, str):
        raise InputError(f"a prompt is text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"a text is not valid Unicode at character {error.start}: give UTF-8 text"
        ) from None


@dataclass(frozen=True, slots=True)
class TextPart:
    """Words.  Whatever they spell, they stay words: no special token is read out of them.

    Raises:
        InputError: they are no text, or hold a half of a surrogate pair, as text does that was
            read from bytes in another encoding.
    """

    text: str

    def __post_init__(self) -> None:
        require_unicode(self.text)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture: a path, the bytes of a file, or a PIL image."""

    source: ImageSource


@dataclass(frozen=True, slots=True)
class AudioPart:
    """A clip: a path, the bytes of a file, or ``(samples, rate)``."""

    source: AudioSource


Part = TextPart | ImagePart | AudioPart


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: who speaks.
        parts: text and media in the order given.
        tools: for a system message, the JSON text that describes the tools on offer.
        tool_calls: for an assistant's message, the calls it made after its text.

    Raises:
        InputError: the role is unknown, or tools or calls stand in a message of another role.
    """

    role: Role
    parts: tuple[Part, ...]
    tools: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise InputError(f"message role {self.role!r}: use one of {', '.join(get_args(Role))}")
        if self.tools is not None and self.role != "system":
            raise InputError(f"tools belong in a system message, not in a {self.role} message")
        if self.tool_calls and self.role != "assistant":
            raise InputError(f"tool calls belong to the assistant, not to a {self.role} message")
        if self.role != "user" and any(not isinstance(part, TextPart) for part in self.parts):
            raise InputError(f"a {self.role} message holds text only; media go in a user message")


def user_message(
    text: str = "",
    images: tuple[ImageSource, ...] | list[ImageSource] = (),
    audios: tuple[AudioSource, ...] | list[AudioSource] = (),
) -> Message:
    """A user's turn from its pictures, its clips and its words."""
    media: list[Part] = [*map(ImagePart, images), *map(AudioPart, audios)]
    return Message("user", (*media, TextPart(text)) if text else tuple(media))
