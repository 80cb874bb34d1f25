"""One request on its way through the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from phi4mm.engine.event import Timings, Usage
from phi4mm.engine.parameters import SamplingParams
from phi4mm.engine.slot import PositionKey
from phi4mm.modality import AudioProjection
from phi4mm.prompt.chunk import InputChunk, Prompt, TextChunk
from phi4mm.prompt.medium import Sound


@dataclass
class Sequence:
    """A prompt, and what was generated after it.

    Attributes:
        prompt: the request.
        sampling: how to answer it.
        generated: ids generated so far.
        n_cached: prompt tokens that were kept from an earlier request.
        n_refilled: tokens computed again at the RoPE crossing.
        encode_s: seconds spent on media, see ``Timings`` for the others.
    """

    prompt: Prompt
    sampling: SamplingParams
    generated: list[int] = field(default_factory=list)
    n_cached: int = 0
    n_refilled: int = 0
    started: float = field(default_factory=time.perf_counter)
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        self.keys: list[PositionKey] = [
            key for chunk in self.prompt.chunks for key in self._keys_of(chunk)
        ]

    def _keys_of(self, chunk: InputChunk) -> list[PositionKey]:
        if isinstance(chunk, TextChunk):
            return list(chunk.ids)
        projection = self.projection(chunk)
        return [(chunk.digest, projection, row) for row in range(chunk.n_tokens)]

    def projection(self, chunk: InputChunk) -> AudioProjection | None:
        """The audio projection of a chunk; None if it is no clip."""
        return self.prompt.mode.audio_projection if isinstance(chunk, Sound) else None

    @property
    def prompt_ids(self) -> list[int]:
        """The ids of the prompt's text, media left out."""
        chunks = self.prompt.chunks
        return [id_ for chunk in chunks if isinstance(chunk, TextChunk) for id_ in chunk.ids]

    @property
    def n_tokens(self) -> int:
        """Length with everything generated."""
        return len(self.keys)

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self.generated.append(token_id)
        self.keys.append(token_id)
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.started

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        return Usage(
            n_text=self.prompt.n_text_tokens,
            n_image=self.prompt.n_image_tokens,
            n_audio=self.prompt.n_audio_tokens,
            n_cached=self.n_cached,
            n_generated=len(self.generated),
            n_refilled=self.n_refilled,
        )

    @property
    def timings(self) -> Timings:
        """Seconds so far."""
        return Timings(self.encode_s, self.prefill_s, self.decode_s, self.first_token_s)
