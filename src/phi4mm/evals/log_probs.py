"""Log-probabilities of every token of a text on disk, in the format of llama-perplexity.

A file made by either program serves as the other's base.  Source: perplexity.cpp of llama.cpp
0c1e570, ``log_softmax`` and ``kl_divergence``.

    "_logits_"                     8 bytes
    n_ctx, n_vocab, n_chunks       int32
    tokens                         int32 (n_chunks, n_ctx)
    for each scored token:         float32 scale, float32 lowest, uint16 (n_vocab + n_vocab % 2)

A log-probability is ``scale * number + lowest``; what is 16 below the highest or more is at the
lowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np
import numpy.typing as npt

from phi4mm.errors import InputError

MAGIC: Final = b"_logits_"
_RANGE: Final = 16.0  # natural logarithm
_STEPS: Final = 65535

Ids = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32]  # (n, n_vocab)
Numbers = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class LogProbsHeader:
    """What a file of log-probabilities was computed from.

    Attributes:
        chunks: token ids, (n_chunks, n_ctx).
        n_vocab: log-probabilities of each scored token.
    """

    chunks: Ids
    n_vocab: int


def row_size(n_vocab: int) -> int:
    """Numbers of 16 bits that one scored token takes."""
    return 4 + n_vocab + n_vocab % 2


def file_size(n_chunks: int, n_ctx: int, n_vocab: int) -> int:
    """Bytes of a file: the second half of every chunk but its last token is scored."""
    n_rows = n_chunks * (n_ctx - 1 - n_ctx // 2)
    return len(MAGIC) + 12 + 4 * n_chunks * n_ctx + 2 * n_rows * row_size(n_vocab)


def log_softmax(logits: Rows) -> Rows:
    """Logarithms of the softmax of each row, float32 with sums in float64."""
    shifted: Rows = logits - logits.max(axis=1, keepdims=True)
    totals = np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64))
    shifted -= totals.astype(np.float32)
    return shifted


def encode(log_probs: Rows) -> Numbers:
    """Log-probabilities in 16 bits: (n, n_vocab) -> (n, row size)."""
    highest = log_probs.max(axis=1, keepdims=True)
    lowest = np.maximum(log_probs.min(axis=1, keepdims=True), highest - np.float32(_RANGE))
    scale = (highest - lowest) / np.float32(_STEPS)
    safe_scale = np.where(scale > 0, scale, np.float32(1))
    n_rows, n_vocab = log_probs.shape
    rows = np.zeros((n_rows, row_size(n_vocab)), np.uint16)
    rows[:, :4] = np.concatenate([scale, lowest], axis=1).view(np.uint16)
    rows[:, 4 : 4 + n_vocab] = np.rint(np.maximum(log_probs - lowest, 0) / safe_scale)
    return rows


def decode(rows: Numbers, n_vocab: int) -> Rows:
    """The inverse of ``encode``, exact to half a step."""
    scale, lowest = np.ascontiguousarray(rows[:, :4]).view(np.float32).T
    log_probs: Rows = rows[:, 4 : 4 + n_vocab] * scale[:, None] + lowest[:, None]
    return log_probs


def write_header(stream: IO[bytes], header: LogProbsHeader) -> None:
    """Write what comes before the rows."""
    n_chunks, n_ctx = header.chunks.shape
    stream.write(MAGIC)
    stream.write(np.array([n_ctx, header.n_vocab, n_chunks], "<i4").tobytes())
    stream.write(header.chunks.astype("<i4").tobytes())


def read_header(stream: IO[bytes], path: Path) -> LogProbsHeader:
    """Read what comes before the rows, and check the file's size against it.

    Raises:
        InputError: it is no such file, or it is not whole.
    """
    if stream.read(len(MAGIC)) != MAGIC:
        raise InputError(f"{path}: no file of log-probabilities: make one with --save-logits")
    numbers = np.frombuffer(stream.read(12), "<i4")
    if len(numbers) < 3 or not ((numbers > 0).all() and numbers[0] <= 1 << 24):
        raise InputError(f"{path}: damaged: n_ctx, n_vocab and n_chunks are {numbers.tolist()}")
    n_ctx, n_vocab, n_chunks = numbers.tolist()
    n_bytes = file_size(n_chunks, n_ctx, n_vocab)
    if path.stat().st_size != n_bytes:
        raise InputError(
            f"{path}: has {path.stat().st_size} bytes, must have {n_bytes} for {n_chunks} chunks "
            f"of {n_ctx} tokens: it is not whole"
        )
    tokens = np.frombuffer(stream.read(4 * n_chunks * n_ctx), "<i4").astype(np.int32)
    if tokens.min() < 0 or tokens.max() >= n_vocab:
        raise InputError(f"{path}: damaged: token ids must be 0 to {n_vocab - 1}")
    return LogProbsHeader(tokens.reshape(n_chunks, n_ctx), n_vocab)


def read_rows(stream: IO[bytes], n_vocab: int, n_rows: int) -> Numbers:
    """The next rows, (n_rows, row size)."""
    width = row_size(n_vocab)
    numbers = np.frombuffer(stream.read(2 * n_rows * width), "<u2")
    return numbers.reshape(n_rows, width)
