"""What types are compared on: a text, or the answers of conversations.

A text shows how well the bare decoder predicts whatever comes.  Conversations are computed as
requests are, with adapters, pictures and clips, and only the answers' tokens are scored: those are
what a chat model was taught to predict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.evals.log_probs import Ids, file_size, row_size
from phi4mm.evals.perplexity import (
    Divergence,
    Perplexity,
    compare_rows,
    measure_divergence,
    measure_perplexity,
    sum_up,
)
from phi4mm.evals.scoring import ScoredRows, cut_chunks, score_rows
from phi4mm.evals.statistic import Estimate
from phi4mm.measurement.fingerprint import identify
from phi4mm.measurement.staged_file import staged_file
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.part import AdapterPart, DecoderPart, MmprojPart
from phi4mm.native.llama import Model
from phi4mm.progress import Progress, counter
from phi4mm.quantize.calibration import Conversation
from phi4mm.quantize.conversation_run import ConversationRun

_N_BATCH = 64  # rows computed at once: their logits take 51 MB with the real vocabulary


def answers_run(source: Bundle, params: EngineParams) -> ConversationRun:
    """What computes conversations for ``AnswersMaterial``; the caller closes it."""
    return ConversationRun(source, params, _N_BATCH)


class Material(Protocol):
    """Something to measure decoders on."""

    @property
    def name(self) -> str:
        """For records."""

    @property
    def unit(self) -> str:
        """What progress counts."""

    def identity(self) -> dict[str, Any]:
        """What tells it from others, as JSON values."""

    def base_bytes(self) -> int:
        """Size of the file of log-probabilities."""

    def perplexity(
        self, decoder: DecoderPart, save_to: Path, progress: Progress | None
    ) -> Perplexity:
        """Score a decoder, and keep its log-probabilities as the base."""

    def divergence(self, decoder: DecoderPart, base: Path, progress: Progress | None) -> Divergence:
        """Compare a decoder with the base."""


@dataclass(frozen=True)
class TextMaterial:
    """A text, cut into chunks.

    Attributes:
        source: the bundle that is quantised.
        params: how to compute.
        text: a text in UTF-8.
        n_ctx: tokens of a chunk.
        max_chunks: most chunks; None for all.
        parse_special: whether what special tokens are called stands for them.
    """

    source: Bundle
    params: EngineParams
    text: Path
    n_ctx: int
    max_chunks: int | None
    parse_special: bool
    unit: str = "chunks"

    @property
    def name(self) -> str:
        """The file's."""
        return self.text.name

    @cached_property
    def _chunks(self) -> Ids:
        return cut_chunks(
            self.source.decoder,
            self.text,
            self.n_ctx,
            self.max_chunks,
            parse_special=self.parse_special,
        )

    def identity(self) -> dict[str, Any]:
        """Its tokens."""
        digest = sha256(self._chunks.tobytes()).hexdigest()
        return {"text": digest, "chunks": [*self._chunks.shape]}

    def base_bytes(self) -> int:
        """Size of the file of log-probabilities."""
        n_chunks, n_ctx = self._chunks.shape
        return file_size(n_chunks, n_ctx, self.source.decoder.hparams.n_vocab)

    def perplexity(
        self, decoder: DecoderPart, save_to: Path, progress: Progress | None
    ) -> Perplexity:
        """Of the second half of every chunk."""
        return measure_perplexity(
            decoder,
            self.text,
            self.params,
            n_ctx=self.n_ctx,
            max_chunks=self.max_chunks,
            parse_special=self.parse_special,
            save_to=save_to,
            progress=progress,
        )

    def divergence(self, decoder: DecoderPart, base: Path, progress: Progress | None) -> Divergence:
        """Of the second half of every chunk."""
        return measure_divergence(decoder, base, self.params, progress=progress)


class AnswersMaterial:
    """The answers of conversations.

    Args:
        source: the bundle that is quantised: its encoders and adapters serve every type.
        params: how to compute.
        name: of the manifest.
        conversations: each with an answer.
        run: computes them, from ``answers_run``.

    Raises:
        InputError: a medium cannot be used, a conversation is too long or has no answer.
    """

    unit = "tokens"

    def __init__(
        self,
        source: Bundle,
        params: EngineParams,
        name: str,
        conversations: Sequence[Conversation],
        run: ConversationRun,
    ) -> None:
        for conversation in conversations:
            if conversation.answer is None:
                raise InputError(f"{conversation.name}: has no answer, which is what is scored")
        self.name = name
        self._source, self._params, self._run = source, params, run
        self._planned = run.plan(conversations)

    def identity(self) -> dict[str, Any]:
        """What is said, the media's bytes, and what encodes them."""
        digest = sha256()
        for item in self._planned:
            said = item.conversation
            words = [said.system, said.tools, said.prompt, said.answer]
            digest.update(json.dumps(words).encode())
            for path in (*said.images, *said.audios):
                digest.update(Path(path).read_bytes())
        parts = [identify(file.file).fingerprint for file in self._other_parts()]
        return {"conversations": digest.hexdigest(), "parts": parts}

    def _other_parts(self) -> Iterator[MmprojPart | AdapterPart]:
        if self._source.mmproj is not None:
            yield self._source.mmproj
        yield from self._source.adapters.values()

    def base_bytes(self) -> int:
        """Size of the file of log-probabilities."""
        n_scored = sum(item.n_answer for item in self._planned)
        return 2 * n_scored * row_size(self._source.decoder.hparams.n_vocab)

    def perplexity(
        self, decoder: DecoderPart, save_to: Path, progress: Progress | None
    ) -> Perplexity:
        """Of the answers' tokens."""
        with staged_file(save_to) as stream:
            losses = sum_up(self._score(decoder, progress), stream)
        return Perplexity(Estimate.of(losses).exponential(), *self._shape, len(losses))

    def divergence(self, decoder: DecoderPart, base: Path, progress: Progress | None) -> Divergence:
        """Of the answers' tokens."""
        n_bytes, found = self.base_bytes(), base.stat().st_size
        if found != n_bytes:
            raise InputError(f"{base}: has {found} bytes, must have {n_bytes}: it is not whole")
        n_vocab = decoder.hparams.n_vocab
        with base.open("rb") as stream:
            return compare_rows(self._score(decoder, progress), stream, n_vocab, self._shape)

    @property
    def _shape(self) -> tuple[int, int]:
        """Conversations, and tokens of the longest."""
        return len(self._planned), max(item.n_tokens for item in self._planned)

    def _score(self, decoder: DecoderPart, progress: Progress | None) -> Iterator[ScoredRows]:
        advance = counter(sum(item.n_tokens for item in self._planned), progress)
        with Model(decoder.path, offload=self._params.offload) as model:
            for logits, targets in self._run.score(model, self._planned, advance):
                yield score_rows(decoder.path, logits, targets)
