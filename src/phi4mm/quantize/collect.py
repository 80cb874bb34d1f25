"""Collects the importance matrix of a decoder from text.

The text is cut into chunks of a context's length, each computed from an empty cache, and what every
matrix is multiplied with is squared and added up.  Source: compute_imatrix and collect_imatrix in
imatrix.cpp of llama.cpp 0c1e570.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phi4mm.convert.tensorfile import Rows
from phi4mm.errors import InputError
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.part import DecoderPart
from phi4mm.native.batch import Batch
from phi4mm.native.library import load
from phi4mm.native.llama import Context, Model
from phi4mm.native.params import ContextParams
from phi4mm.native.product_observer import ProductObserver
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.quantize.cores import n_threads_or_all
from phi4mm.quantize.imatrix_file import ImportanceMatrix, Sums
from phi4mm.quantize.source import parts_of

DEFAULT_CHUNK_SIZE = 512
# Rows computed at once; the logits of each, which nobody reads, take 4 bytes per token id.
_N_BATCH = 256

Ids = npt.NDArray[np.int32]
ChunkProgress = Callable[[int, int], None]
"""Called with the chunks computed so far and their number."""


class _Collector:
    """Adds up the squares of what it is shown."""

    def __init__(self) -> None:
        self._squares: dict[str, npt.NDArray[np.float64]] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, rows: Rows) -> None:
        squares = np.einsum("ij,ij->j", rows, rows)
        if name in self._squares:
            self._squares[name] += squares
        else:
            self._squares[name] = squares.astype(np.float64)
        self._counts[name] = self._counts.get(name, 0) + len(rows)

    def sums(self) -> dict[str, Sums]:
        return {
            name: Sums(squares.astype(np.float32), self._counts[name])
            for name, squares in self._squares.items()
        }


def collect_imatrix(
    path: Path,
    text_path: Path,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    max_chunks: int | None = None,
    n_threads: int | None = None,
    n_gpu_layers: int = 0,
    progress: ChunkProgress | None = None,
) -> ImportanceMatrix:
    """Compute the importance matrix of a bundle's decoder.

    Differs from the reference: the token embedding, which is the output matrix too, has an entry.
    llama-imatrix leaves it out, although llama-quantize would use it.

    Args:
        path: the bundle's folder, or its decoder file; F16 or Q8_0 is exact enough.
        text_path: a text in UTF-8; what special tokens are called stays text.
        chunk_size: tokens of a chunk; what is left at the end is not used.
        max_chunks: most chunks to compute; None for all.
        n_threads: threads that compute; None for all cores.
        n_gpu_layers: layers on a GPU.
        progress: told about every chunk.

    Raises:
        ModelFileError: the bundle cannot be used.
        InputError: the text cannot be read or is too short, or a number is out of range.
    """
    threads = n_threads_or_all(n_threads)
    with Bundle.open(path) as bundle:
        _check_range("--ctx-size", chunk_size, 1, bundle.decoder.hparams.n_ctx_train)
        chunks = _chunks(bundle.decoder, text_path, chunk_size, max_chunks)
        collector = _Collector()
        names = frozenset(next(parts_of(bundle)).matrices)
        observer = ProductObserver(load(), names, collector.add)
        with Model(bundle.decoder.path, n_gpu_layers=n_gpu_layers) as model:
            _compute(model, observer, chunks, threads, progress)
    return ImportanceMatrix(collector.sums(), (text_path.name,), len(chunks), chunk_size)


def _compute(
    model: Model,
    observer: ProductObserver,
    chunks: Ids,
    n_threads: int,
    progress: ChunkProgress | None,
) -> None:
    """Compute every chunk from an empty cache."""
    n_chunks, chunk_size = chunks.shape
    n_batch = min(_N_BATCH, chunk_size)
    params = ContextParams(
        chunk_size, n_threads, n_threads, n_batch=n_batch, n_ubatch=n_batch, n_outputs_max=n_batch
    )
    with Context(model, params, observer=observer) as context:
        for done, chunk in enumerate(chunks, start=1):
            context.kv_remove(0)
            for start in range(0, chunk_size, n_batch):
                # without logits of a row, the last layer's feed-forward part leaves it out
                inputs = chunk[start : start + n_batch]
                context.decode(Batch.of_sequence(inputs, start=start, logits="all"))
                observer.raise_failure()
            if progress is not None:
                progress(done, n_chunks)


def _chunks(decoder: DecoderPart, path: Path, size: int, max_chunks: int | None) -> Ids:
    """The text's token ids, (n_chunks, size)."""
    if max_chunks is not None:
        _check_range("--chunks", max_chunks, 1, 1 << 30)
    ids = Tokenizer(decoder.file.metadata).encode(_read(path))
    n_chunks = len(ids) // size
    if n_chunks == 0:
        raise InputError(
            f"{path}: has {len(ids)} tokens, a chunk takes {size}: give more text, or a smaller -c"
        )
    return np.array(ids[: n_chunks * size], np.int32).reshape(n_chunks, size)[:max_chunks]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _check_range(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{flag} is {value}, must be {low} to {high}")
