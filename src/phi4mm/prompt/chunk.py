"""Input chunks: a prompt whose every token is counted, and nothing of it computed yet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TypeVar

from phi4mm.errors import InputError, PromptTooLong
from phi4mm.media.audio import AudioSource
from phi4mm.media.image import ImageSource
from phi4mm.media.source import is_data_url
from phi4mm.modality import Mode, mode_of
from phi4mm.modelfile.bundle import Bundle
from phi4mm.prompt.media_memory import MediaMemory
from phi4mm.prompt.medium import (
    NO_LIMITS,
    MediaLimits,
    Picture,
    Sound,
    contents_of,
    image_params,
    mel_params,
    open_picture,
    open_sound,
)
from phi4mm.prompt.message import Message, require_unicode
from phi4mm.prompt.segment import (
    Medium,
    MediumKind,
    Segment,
    Special,
    Text,
    media_of,
    parse_raw,
    render_chat,
)
from phi4mm.prompt.tokenizer import Tokenizer

_Source = TypeVar("_Source")


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Token ids of text and special tokens."""

    ids: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        """Number of ids."""
        return len(self.ids)


InputChunk = TextChunk | Picture | Sound


@dataclass(frozen=True)
class Prompt:
    """A prompt ready for the engine: chunks in order, media decoded, tokens counted."""

    chunks: tuple[InputChunk, ...]

    @cached_property
    def n_text_tokens(self) -> int:
        """Ids of text and special tokens."""
        return sum(chunk.n_tokens for chunk in self.chunks if isinstance(chunk, TextChunk))

    @cached_property
    def n_image_tokens(self) -> int:
        """Soft tokens of pictures."""
        return sum(chunk.n_tokens for chunk in self.chunks if isinstance(chunk, Picture))

    @cached_property
    def n_audio_tokens(self) -> int:
        """Soft tokens of clips."""
        return sum(chunk.n_tokens for chunk in self.chunks if isinstance(chunk, Sound))

    @property
    def n_tokens(self) -> int:
        """Positions the prompt takes in the context."""
        return self.n_text_tokens + self.n_image_tokens + self.n_audio_tokens

    @cached_property
    def mode(self) -> Mode:
        """Adapter and audio projection that its media ask for."""
        return mode_of(
            n_images=sum(isinstance(chunk, Picture) for chunk in self.chunks),
            n_audios=sum(isinstance(chunk, Sound) for chunk in self.chunks),
        )

    def asked_once(self) -> Prompt:
        """The same prompt, whose media do not come in another one: they take no place in caches."""
        return Prompt(
            tuple(
                chunk if isinstance(chunk, TextChunk) else replace(chunk, is_kept=False)
                for chunk in self.chunks
            )
        )


class PromptBuilder:
    """Makes prompts for one bundle: renders, tokenises, decodes media and plans them.

    Args:
        bundle: what it takes.
        tokenizer: of its decoder.
        limits: of each medium.
        n_ctx: text that cannot fit into so many positions is refused before it is tokenised; None
            tokenises any.
    """

    def __init__(
        self,
        bundle: Bundle,
        tokenizer: Tokenizer,
        limits: MediaLimits = NO_LIMITS,
        n_ctx: int | None = None,
    ) -> None:
        self._limits = limits
        self._n_ctx = n_ctx
        self._tokenizer = tokenizer
        self._bundle = bundle
        self._image_params = None if bundle.vision is None else image_params(bundle.vision)
        self._mel_params = None if bundle.audio is None else mel_params(bundle.audio)
        self._pictures: MediaMemory[Picture] = MediaMemory()
        self._sounds: MediaMemory[Sound] = MediaMemory()

    def chat(self, messages: Sequence[Message]) -> Prompt:
        """A conversation in the model's template, waiting for the assistant's answer.

        Raises:
            InputError: the conversation is malformed, or this bundle cannot take its media.
            MediaError: a picture or clip cannot be used.
            PromptTooLong: its text cannot fit.
        """
        messages = tuple(messages)
        if not all(isinstance(message, Message) for message in messages):
            raise InputError("a conversation is a list of Message objects")
        images, audios = media_of(messages)
        return self._build(
            render_chat(messages), [p.source for p in images], [p.source for p in audios]
        )

    def raw(
        self, prompt: str, images: Sequence[ImageSource] = (), audios: Sequence[AudioSource] = ()
    ) -> Prompt:
        """A raw prompt: special tokens are parsed, ``<|image_1|>`` and ``<|audio_1|>`` mark media.

        Raises:
            InputError: markers and media do not match, or this bundle cannot take the media.
            MediaError: a picture or clip cannot be used.
            PromptTooLong: its text cannot fit.
        """
        self.require_room(len(prompt))
        require_unicode(prompt)
        if not prompt:
            raise InputError("the prompt is empty")
        segments = parse_raw(prompt, self._tokenizer.special_tokens)
        for kind, media in (("image", images), ("audio", audios)):
            n_markers = sum(isinstance(s, Medium) and s.kind == kind for s in segments)
            if n_markers != len(media):
                raise InputError(
                    f"the prompt marks {n_markers} {kind} place(s) and {len(media)} {kind}(s) "
                    f"were given: write one <|{kind}_k|> for each"
                )
        return self._build(segments, images, audios)

    def require_room(self, n_characters: int) -> None:
        """Refuse text that is too long whatever it says, as its longest token tells.

        Raises:
            PromptTooLong: it cannot fit.
        """
        n_least = n_characters // self._tokenizer.n_longest
        if self._n_ctx is not None and n_least > self._n_ctx:
            raise PromptTooLong(n_least, self._n_ctx, is_least=True)

    def picture(self, source: ImageSource, name: str | None = None) -> Picture:
        """Decode and plan one picture, or remember it by the contents of its file.

        Args:
            source: the picture.
            name: what messages call it; None for the source's own name.

        Raises:
            InputError: this bundle has no vision encoder.
            MediaError: it cannot be used.
        """
        params = self._image_params
        if params is None:
            raise InputError("this model has no vision encoder: give its mmproj file")
        return self._pictures.get(
            contents_of(source), lambda: open_picture(source, params, self._limits, name)
        )

    def sound(self, source: AudioSource, name: str | None = None) -> Sound:
        """Decode one clip, or remember it by the contents of its file.

        Args:
            source: the clip.
            name: what messages call it; None for the source's own name.

        Raises:
            InputError: this bundle has no audio encoder.
            MediaError: it cannot be used.
        """
        params = self._mel_params
        if params is None:
            raise InputError("this model has no audio encoder: give its mmproj file")
        return self._sounds.get(
            contents_of(source), lambda: open_sound(source, params, self._limits, name)
        )

    def _build(
        self,
        segments: Sequence[Segment],
        images: Sequence[ImageSource],
        audios: Sequence[AudioSource],
    ) -> Prompt:
        self.require_room(sum(len(s.text) for s in segments if isinstance(s, Text)))
        mode = mode_of(n_images=len(images), n_audios=len(audios))
        if reason := self._bundle.missing_for(mode):
            raise InputError(reason)
        media: dict[MediumKind, list[Picture] | list[Sound]] = {
            "image": [self.picture(source, name) for name, source in _named("image", images)],
            "audio": [self.sound(source, name) for name, source in _named("audio", audios)],
        }
        return Prompt(tuple(self._chunks(segments, media)))

    def _chunks(
        self, segments: Sequence[Segment], media: Mapping[MediumKind, Sequence[Picture | Sound]]
    ) -> Iterator[InputChunk]:
        """Runs of text and special tokens become one chunk each, media stand between them."""
        for is_medium, run in groupby(segments, key=lambda segment: isinstance(segment, Medium)):
            if is_medium:
                yield from (media[s.kind][s.index] for s in run if isinstance(s, Medium))
            else:
                yield TextChunk(tuple(self._ids(run)))

    def _ids(self, run: Iterable[Segment]) -> Iterator[int]:
        """Ids of text and special tokens."""
        strips = False
        for segment in run:
            if isinstance(segment, Text):
                yield from self._tokenizer.encode(segment.text.lstrip() if strips else segment.text)
            elif isinstance(segment, Special):
                strips = segment.token in self._tokenizer.strip_after
                yield self._tokenizer.special_id(segment.token)


def _named(kind: MediumKind, sources: Sequence[_Source]) -> Iterator[tuple[str | None, _Source]]:
    """What messages call each: its place where there are several and it has no name of its own."""
    for place, source in enumerate(sources, 1):
        has_name = isinstance(source, (str, os.PathLike)) and not is_data_url(source)
        is_clear = has_name or len(sources) == 1
        yield None if is_clear else f"<{kind} {place} of {len(sources)}>", source
