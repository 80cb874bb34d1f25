"""One request on its way through the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from phi4mm.engine.decoder import Ids, Rows
from phi4mm.engine.event import Timings, Usage
from phi4mm.engine.parameters import SamplingParams
from phi4mm.prompt.chunk import Prompt


@dataclass
class Sequence:
    """A prompt, what it became, and what was generated after it.

    Attributes:
        prompt: the request.
        sampling: how to answer it.
        inputs: the prompt as ids and embeddings, once its media are encoded.
        generated: ids generated so far.
        n_refilled: tokens computed again at the RoPE crossing.
    """

    prompt: Prompt
    sampling: SamplingParams
    inputs: list[Ids | Rows] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    n_refilled: int = 0
    started: float = field(default_factory=time.perf_counter)
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float | None = None

    @property
    def n_tokens(self) -> int:
        """Length with everything generated."""
        return self.prompt.n_tokens + len(self.generated)

    @property
    def all_inputs(self) -> list[Ids | Rows]:
        """The whole sequence as inputs, to compute it from its start."""
        return [*self.inputs, np.array(self.generated, np.int32)] if self.generated else self.inputs

    def append(self, token_id: int) -> None:
        """Add a generated token."""
        self.generated.append(token_id)
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.started

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        return Usage(
            n_text=self.prompt.n_text_tokens,
            n_image=self.prompt.n_image_tokens,
            n_audio=self.prompt.n_audio_tokens,
            n_generated=len(self.generated),
            n_refilled=self.n_refilled,
        )

    @property
    def timings(self) -> Timings:
        """Seconds so far."""
        return Timings(self.encode_s, self.prefill_s, self.decode_s, self.first_token_s)
