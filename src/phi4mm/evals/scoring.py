"""Computes a text chunk by chunk and hands out log-probabilities of its second halves.

A chunk is computed from an empty cache, and only tokens of its second half are scored, so that
every scored token has at least half a chunk before it.  Source: perplexity.cpp of llama.cpp
0c1e570, ``perplexity``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phi4mm.engine.decoder import require_numbers
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError
from phi4mm.evals.log_probs import Ids, Rows, log_softmax
from phi4mm.modelfile import keys
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.metadata import Metadata
from phi4mm.modelfile.part import DecoderPart
from phi4mm.native.batch import Batch
from phi4mm.native.llama import Context, Model
from phi4mm.native.params import ContextParams
from phi4mm.progress import Progress
from phi4mm.prompt.chunk import PromptBuilder, TextChunk
from phi4mm.prompt.tokenizer import Tokenizer

# Rows of logits that the library holds at once: 51 MB with the real vocabulary.
_N_OUTPUTS = 64
# Rows that the arithmetic works on at once, so that its temporaries stay in the cache.
_N_ROWS = 8


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Some rows of a chunk.

    Attributes:
        log_probs: (n, n_vocab), what the model gives every token.
        targets: (n,), the tokens that really come.
    """

    log_probs: Rows
    targets: Ids


def read_text(path: Path) -> str:
    """A text in UTF-8, without the newline at its very end, as llama.cpp's tools read it.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def cut_chunks(
    decoder: DecoderPart,
    path: Path,
    n_ctx: int,
    max_chunks: int | None,
    *,
    parse_special: bool = False,
) -> Ids:
    """Token ids of a text file in chunks, (n_chunks, n_ctx); what is left at the end is dropped.

    Args:
        decoder: the decoder, for its vocabulary.
        path: a text in UTF-8.
        n_ctx: tokens of a chunk.
        max_chunks: most chunks; None for all.
        parse_special: whether what special tokens are called stands for them, as in a prompt; it
            stays text otherwise.

    Raises:
        InputError: the text cannot be read or is too short, or a number is out of range.
    """
    n_ctx_train = decoder.hparams.n_ctx_train
    if not 4 <= n_ctx <= n_ctx_train:
        raise InputError(f"-c is {n_ctx}, must be 4 to {n_ctx_train} for this model")
    if max_chunks is not None and max_chunks < 1:
        raise InputError(f"--chunks is {max_chunks}, must be at least 1")
    ids = _text_ids(decoder, path, parse_special=parse_special)
    bos = bos_id(decoder.file.metadata)
    if bos is not None:
        ids.insert(0, bos)
    n_chunks = len(ids) // n_ctx
    if n_chunks == 0:
        raise InputError(
            f"{path}: has {len(ids)} tokens, a chunk takes {n_ctx}: more text, or a smaller -c"
        )
    return np.array(ids[: n_chunks * n_ctx], np.int32).reshape(n_chunks, n_ctx)[:max_chunks]


def _text_ids(decoder: DecoderPart, path: Path, *, parse_special: bool) -> list[int]:
    tokenizer, text = Tokenizer(decoder.file.metadata), read_text(path)
    if not (parse_special and text):
        return tokenizer.encode(text)
    alone = Bundle(decoder, mmproj=None, adapters={}, warnings=())
    try:
        chunks = PromptBuilder(alone, tokenizer).raw(text).chunks
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return [id_ for chunk in chunks if isinstance(chunk, TextChunk) for id_ in chunk.ids]


def bos_id(metadata: Metadata) -> int | None:
    """The token that stands before every text; None for this model, and where a file says no."""
    key = keys.Tokenizer.ADD_BOS
    if key not in metadata or not metadata.flag(key):
        return None
    return int(metadata.number(keys.Tokenizer.BOS_ID))


def score_chunks(
    decoder: DecoderPart, chunks: Ids, params: EngineParams, progress: Progress | None = None
) -> Iterator[ScoredRows]:
    """Log-probabilities of the tokens in the second half of every chunk, in order.

    Args:
        decoder: the decoder, used without an adapter.
        chunks: (n_chunks, n_ctx).
        params: threads, layers on an accelerator, and types of the cache.
        progress: told about every chunk.

    Raises:
        ModelFileError: the model does not compute numbers.
    """
    n_chunks, n_ctx = chunks.shape
    chunks = chunks.copy()
    bos = bos_id(decoder.file.metadata)
    if bos is not None:
        chunks[:, 0] = bos
    with (
        Model(decoder.path, offload=params.offload) as model,
        Context(model, _context_params(params, n_ctx)) as context,
    ):
        for done, chunk in enumerate(chunks, start=1):
            context.kv_remove(0)
            yield from _score_chunk(decoder.path, context, chunk)
            if progress is not None:
                progress(done, n_chunks)


def _context_params(params: EngineParams, n_ctx: int) -> ContextParams:
    n_batch = min(params.n_batch, n_ctx)
    return ContextParams(
        n_ctx_seq=n_ctx,
        n_threads=params.threads,
        n_threads_batch=params.threads,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_outputs_max=min(_N_OUTPUTS, n_batch),
        type_k=params.type_k,
        type_v=params.type_v,
        flash_attn=params.flash_attention,
    )


def _score_chunk(path: Path, context: Context, chunk: Ids) -> Iterator[ScoredRows]:
    """Fill the first half without logits, then ask for those of the second, piece by piece.

    The last token is not fed: nothing comes after it.
    """
    first, last = len(chunk) // 2, len(chunk) - 1
    for start in range(0, first, context.params.n_batch):
        piece = chunk[start : min(start + context.params.n_batch, first)]
        context.decode(Batch.of_sequence(piece, start=start, logits="none"))
    step = context.params.n_outputs_max
    for start in range(first, last, step):
        piece = chunk[start : min(start + step, last)]
        context.decode(Batch.of_sequence(piece, start=start, logits="all"))
        for row in range(0, len(piece), _N_ROWS):
            rows = range(row, min(row + _N_ROWS, len(piece)))
            targets = chunk[start + rows.start + 1 : start + rows.stop + 1]
            yield score_rows(path, context.logits(rows), targets)


def score_rows(path: Path, logits: Rows, targets: Ids) -> ScoredRows:
    """Log-probabilities of tokens.

    Args:
        path: the decoder's file, for messages.
        logits: (n, n_vocab).
        targets: the tokens that really come, (n,).

    Raises:
        ModelFileError: the model does not compute numbers.
    """
    log_probs = log_softmax(logits)
    require_numbers(path, log_probs[np.arange(len(targets)), targets])
    return ScoredRows(log_probs, targets)
