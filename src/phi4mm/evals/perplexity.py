"""Perplexity of a text, and how far a model's predictions are from another's.

Both score what ``scoring`` hands out, so they cover the same tokens.  Formulas: perplexity.cpp of
llama.cpp 0c1e570.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.evals import log_probs
from phi4mm.evals.log_probs import Ids, LogProbsHeader, Numbers, Rows
from phi4mm.evals.scoring import ScoredRows, cut_chunks, score_chunks
from phi4mm.evals.statistic import Estimate, Values, quantile
from phi4mm.measurement.staged_file import staged_file
from phi4mm.modelfile.part import DecoderPart
from phi4mm.progress import Progress

# Base probabilities below this, as a natural logarithm, are left out of the sums.
_LEAST_LOG_PROB = np.float32(-16)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a model predicts a text.

    Attributes:
        perplexity: exponential of the mean negative log-likelihood, with its standard error.
        n_chunks: chunks computed.
        n_ctx: tokens of a chunk.
        n_scored: tokens that were scored.
    """

    perplexity: Estimate
    n_chunks: int
    n_ctx: int
    n_scored: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model's predictions are from those of a base model, on the same text.

    Attributes:
        perplexity: of the model.
        base_perplexity: of the base.
        log_ratio: natural logarithm of the perplexities' ratio; the error counts that both
            models find the same tokens hard.
        kl: Kullback-Leibler divergence from the base, in nats per token.
        kl_median: its median.
        kl_99: what 99 % of the tokens stay below.
        kl_max: the worst token.
        same_top: share of tokens where both find the same token most likely.
        rms_dp: root mean square of the change of the probability of the token that really comes.
        n_scored: tokens that were scored.
        n_chunks: chunks computed.
        n_ctx: tokens of a chunk.
    """

    perplexity: Estimate
    base_perplexity: Estimate
    log_ratio: Estimate
    kl: Estimate
    kl_median: float
    kl_99: float
    kl_max: float
    same_top: Estimate
    rms_dp: float
    n_scored: int
    n_chunks: int
    n_ctx: int


def measure_perplexity(
    decoder: DecoderPart,
    text_path: Path,
    params: EngineParams,
    *,
    n_ctx: int = 512,
    max_chunks: int | None = None,
    parse_special: bool = False,
    save_to: Path | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Score a text.

    Args:
        decoder: the decoder, used without an adapter.
        text_path: a text in UTF-8.
        params: how to compute.
        n_ctx: tokens of a chunk.
        max_chunks: most chunks; None for all.
        parse_special: whether what special tokens are called stands for them.
        save_to: file for the log-probabilities of every scored token, the base of
            ``measure_divergence``; 400 kB a token with the real vocabulary.
        progress: told about every chunk.

    Raises:
        InputError: the text is too short, a number is out of range, or the file cannot be written.
    """
    chunks = cut_chunks(decoder, text_path, n_ctx, max_chunks, parse_special=parse_special)
    header = LogProbsHeader(chunks, decoder.hparams.n_vocab)
    scored = score_chunks(decoder, chunks, params, progress)
    with ExitStack() as stack:
        stream = None if save_to is None else stack.enter_context(staged_file(save_to))
        if stream is not None:
            log_probs.write_header(stream, header)
        losses = sum_up(scored, stream)
    return Perplexity(Estimate.of(losses).exponential(), len(chunks), n_ctx, len(losses))


def sum_up(scored: Iterable[ScoredRows], stream: IO[bytes] | None) -> Values:
    """Negative log-likelihoods of tokens, (n,); their log-probabilities go to the stream."""
    losses = []
    for rows in scored:
        losses.append(_losses(rows.log_probs, rows.targets))
        if stream is not None:
            stream.write(log_probs.encode(rows.log_probs).tobytes())
    return np.concatenate(losses)


def measure_divergence(
    decoder: DecoderPart,
    base_path: Path,
    params: EngineParams,
    *,
    max_chunks: int | None = None,
    progress: Progress | None = None,
) -> Divergence:
    """Compare a model with the base whose log-probabilities a file holds.

    Args:
        decoder: the decoder, used without an adapter.
        base_path: made by ``measure_perplexity`` or llama-perplexity; it names the tokens.
        params: how to compute.
        max_chunks: most chunks; None for all of the file.
        progress: told about every chunk.

    Raises:
        InputError: the file cannot be used, or is of a model with another vocabulary.
    """
    try:
        with base_path.open("rb") as stream:
            header = log_probs.read_header(stream, base_path)
            _check_vocabulary(decoder, header, base_path)
            chunks = header.chunks[:max_chunks]
            scored = score_chunks(decoder, chunks, params, progress)
            return compare_rows(scored, stream, header.n_vocab, chunks.shape)
    except OSError as error:
        raise InputError(f"{base_path}: cannot be read: {error.strerror or error}") from None


def compare_rows(
    scored: Iterable[ScoredRows], base: IO[bytes], n_vocab: int, shape: tuple[int, int]
) -> Divergence:
    """Compare scored rows with the base's, which follow each other in a stream.

    Args:
        scored: the model's.
        base: at the base's first row, as ``sum_up`` wrote them.
        n_vocab: size of the vocabulary.
        shape: number of chunks, and tokens of each, for the result.
    """
    return _summarise([_compare(rows, r) for rows, r in _beside(scored, base, n_vocab)], shape)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Numbers of some scored tokens, (n,) each."""

    loss: Values
    base_loss: Values
    kl: Values
    same_top: np.ndarray[tuple[int], np.dtype[np.bool_]]


def _beside(
    scored: Iterable[ScoredRows], stream: IO[bytes], n_vocab: int
) -> Iterator[tuple[ScoredRows, Rows]]:
    """The base's log-probabilities beside the model's."""
    for rows in scored:
        numbers: Numbers = log_probs.read_rows(stream, n_vocab, len(rows.targets))
        yield rows, log_probs.decode(numbers, n_vocab)


def _compare(scored: ScoredRows, base: Rows) -> _Comparison:
    terms = np.exp(base) * (base - scored.log_probs)
    terms[base <= _LEAST_LOG_PROB] = 0
    same_top = scored.log_probs.argmax(axis=1) == base.argmax(axis=1)
    return _Comparison(
        loss=_losses(scored.log_probs, scored.targets),
        base_loss=_losses(base, scored.targets),
        kl=terms.sum(axis=1, dtype=np.float64),
        same_top=same_top,
    )


def _losses(rows: Rows, targets: Ids) -> Values:
    """Negative log-likelihood of the tokens that really come, (n,)."""
    return -rows[np.arange(len(targets)), targets].astype(np.float64)


def _summarise(pieces: list[_Comparison], shape: tuple[int, int]) -> Divergence:
    loss, base_loss, kl, same_top = (
        np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("loss", "base_loss", "kl", "same_top")
    )
    change = np.exp(-loss) - np.exp(-base_loss)
    n_chunks, n_ctx = shape
    return Divergence(
        perplexity=Estimate.of(loss).exponential(),
        base_perplexity=Estimate.of(base_loss).exponential(),
        log_ratio=Estimate.of(loss - base_loss),
        kl=Estimate.of(kl),
        kl_median=quantile(kl, 0.5),
        kl_99=quantile(kl, 0.99),
        kl_max=float(kl.max()),
        same_top=Estimate.of_share(same_top),
        rms_dp=float(np.sqrt((change * change).mean())),
        n_scored=len(kl),
        n_chunks=n_chunks,
        n_ctx=n_ctx,
    )


def _check_vocabulary(decoder: DecoderPart, header: LogProbsHeader, path: Path) -> None:
    if header.n_vocab != decoder.hparams.n_vocab:
        raise InputError(
            f"{path}: of a model with {header.n_vocab} tokens, {decoder.path} has "
            f"{decoder.hparams.n_vocab}: the base must be of the same model"
        )
