"""The shapes of requests, as OpenAI's clients send them.

Fields that are not listed are ignored, as OpenAI's own servers do with fields they know and this
model has no use for.  Ranges of sampling settings are checked where the settings are made.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

Body = TypeVar("Body", bound="WireModel")
Item = TypeVar("Item")

# A long list may have a fault in each item: the first is enough, and all of them take a minute.
List = Annotated[list[Item], Field(fail_fast=True)]


class WireModel(BaseModel):
    """Types are taken as they come: no string is read as a number."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class TextPart(WireModel):
    """Words."""

    type: Literal["text"]
    text: str


class Url(WireModel):
    """A ``data:`` URL, base64 alone, or a URL the server may fetch."""

    url: str


class ImagePart(WireModel):
    """A picture."""

    type: Literal["image_url"]
    image_url: Url


class Audio(WireModel):
    """The bytes of a sound file; the format is read from them."""

    data: str
    format: str | None = None


class InputAudioPart(WireModel):
    """A clip by its bytes."""

    type: Literal["input_audio"]
    input_audio: Audio


class AudioUrlPart(WireModel):
    """A clip by URL."""

    type: Literal["audio_url"]
    audio_url: Url


class RefusalPart(WireModel):
    """What the assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


# More than any context holds; each costs memory before anything else can be checked.
_MOST_IDS = 1 << 20
_MOST_MESSAGES = 1 << 16
_MOST_BIASES = 10_000


def _few_biases(value: object) -> object:
    if isinstance(value, dict) and len(value) > _MOST_BIASES:
        raise PydanticCustomError(
            "too_long", f"has {len(value)} tokens: give at most {_MOST_BIASES}"
        )
    return value


Biases = Annotated[dict[str, float], BeforeValidator(_few_biases)]
Ids = Annotated[list[int], Field(max_length=_MOST_IDS, fail_fast=True)]
Part = Annotated[
    TextPart | ImagePart | InputAudioPart | AudioUrlPart | RefusalPart,
    Field(discriminator="type"),
]


class CalledFunction(WireModel):
    """What was called; the arguments are the text of a JSON object, or "" for none."""

    name: str
    arguments: str


class CalledTool(WireModel):
    """A call the assistant made before."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(WireModel):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | List[Part] | None = None
    refusal: str | None = None
    tool_calls: List[CalledTool] | None = None
    tool_call_id: str | None = None


Messages = Annotated[
    list[ChatMessage], Field(min_length=1, max_length=_MOST_MESSAGES, fail_fast=True)
]


class Function(WireModel):
    """A tool on offer."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(WireModel):
    """A tool on offer, in its wrapping."""

    type: Literal["function"]
    function: Function


class NamedFunction(WireModel):
    """The name of a tool."""

    name: str


class NamedTool(WireModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(WireModel):
    """What a stream holds besides the answer."""

    include_usage: bool = False


class JsonSchema(WireModel):
    """A schema that the answer must fit."""

    name: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class ResponseFormat(WireModel):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Sampling(WireModel):
    """Settings that chat and completions share."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = Field(default=None, ge=1)
    stop: str | List[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Biases | None = None
    max_tokens: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def n_choices(self) -> int:
        """How many answers are wanted."""
        return self.n or 1


class ChatRequest(Sampling):
    """Body of ``/v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: List[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = True
    response_format: ResponseFormat | None = None


class CompletionRequest(Sampling):
    """Body of ``/v1/completions``: raw text, in which special tokens are parsed."""

    prompt: str | List[str] | Ids | List[Ids]
    max_tokens: int | None = 16
    logprobs: int | None = Field(default=None, ge=0, le=5)
    echo: Literal[False] | None = None
    suffix: None = None


class TokenizeRequest(WireModel):
    """Body of ``/tokenize``."""

    content: str
    parse_special: bool = True


class DetokenizeRequest(WireModel):
    """Body of ``/detokenize``."""

    tokens: Ids


class TemplateRequest(WireModel):
    """Body of ``/apply-template``."""

    messages: Messages
    tools: List[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
