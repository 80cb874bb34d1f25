"""Collects the importance matrix of a decoder, from text and from conversations with media.

The text is cut into chunks of a context's length, each computed from an empty cache, and what every
matrix is multiplied with is squared and added up.  Source: compute_imatrix and collect_imatrix in
imatrix.cpp of llama.cpp 0c1e570.

A conversation is computed as a request is, with its adapter.  An adapter adds its own product to
that of a matrix, from the same input, so what the matrix is multiplied with counts like any other
input of it: quantising a matrix does the same damage to an input whether or not an adapter adds
something to the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phi4mm.convert.tensorfile import Rows
from phi4mm.engine.parameters import EngineParams
from phi4mm.errors import InputError, ModelFileError
from phi4mm.json_lines import read_utf8
from phi4mm.modality import Adapter
from phi4mm.modelfile.bundle import Bundle
from phi4mm.modelfile.part import DecoderPart
from phi4mm.native.batch import Batch
from phi4mm.native.device import NO_OFFLOAD, Offload
from phi4mm.native.library import load
from phi4mm.native.llama import Context, Model
from phi4mm.native.params import ContextParams
from phi4mm.native.product_observer import ProductObserver
from phi4mm.progress import Advance, Progress, counter
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.quantize.calibration import Calibration
from phi4mm.quantize.conversation_run import ConversationRun
from phi4mm.quantize.cores import n_threads_or_all
from phi4mm.quantize.imatrix_file import ImportanceMatrix, Sums
from phi4mm.quantize.source import parts_of

# Rows computed at once; the logits of each, which nobody reads, take 4 bytes per token id.
_N_BATCH = 256

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Collected:
    """An importance matrix, and where it comes from.

    Attributes:
        imatrix: the matrix.
        n_tokens: tokens computed, by the adapter that was in use.
    """

    imatrix: ImportanceMatrix
    n_tokens: Mapping[Adapter | None, int]


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
    calibration: Calibration,
    *,
    n_threads: int | None = None,
    offload: Offload = NO_OFFLOAD,
    progress: Progress | None = None,
) -> Collected:
    """Compute the importance matrix of a bundle's decoder.

    Differs from the reference: the token embedding, which is the output matrix too, has an entry.
    llama-imatrix leaves it out, although llama-quantize would use it.

    Args:
        path: the bundle's folder, or its decoder file; F16 or Q8_0 is exact enough.
        calibration: what to compute.
        n_threads: threads that compute; None for all cores.
        offload: what goes to accelerators, and to which.
        progress: told about every piece.

    Raises:
        ModelFileError: the bundle cannot be used.
        InputError: the text cannot be read or is too short, a medium cannot be used, there is
            nothing to compute, or a number is out of range.
    """
    threads = n_threads_or_all(n_threads)
    params = EngineParams(n_threads=threads, offload=offload, encoder_cache_bytes=0)
    with Bundle.open(path) as bundle, ConversationRun(bundle, params, _N_BATCH) as run:
        chunks = _chunks(bundle.decoder, calibration)
        planned = run.plan(calibration.conversations)
        n_tokens: Counter[Adapter | None] = Counter({None: chunks.size} if chunks.size else {})
        for item in planned:
            n_tokens[item.adapter] += item.n_tokens
        if not n_tokens:
            raise InputError("nothing to compute: give a text, or conversations")
        collector = _Collector()
        names = frozenset(next(parts_of(bundle)).matrices)
        observer = ProductObserver(load(), names, collector.add)
        advance = counter(n_tokens.total(), progress)
        with Model(bundle.decoder.path, offload=offload) as model:
            _compute_text(model, observer, chunks, threads, advance)
            run.compute(model, observer, planned, advance)
        sums = collector.sums()
        _check_numbers(bundle.decoder.path, sums)
    n_chunks = len(chunks) + len(planned)
    imatrix = ImportanceMatrix(sums, calibration.datasets, n_chunks, calibration.chunk_size)
    return Collected(imatrix, n_tokens)


def _check_numbers(path: Path, sums: Mapping[str, Sums]) -> None:
    """Refuse what no quantiser could use.

    Raises:
        ModelFileError: the model does not compute numbers.
    """
    for name, entry in sums.items():
        if not np.isfinite(entry.squares).all():
            raise ModelFileError(
                f"{path}: computes NaN or infinity as inputs of {name}: some weights are damaged; "
                "convert it again"
            )


def _compute_text(
    model: Model, observer: ProductObserver, chunks: Ids, n_threads: int, advance: Advance
) -> None:
    """Compute every chunk from an empty cache, without an adapter."""
    if not len(chunks):
        return
    chunk_size = chunks.shape[1]
    n_batch = min(_N_BATCH, chunk_size)
    params = ContextParams(
        chunk_size, n_threads, n_threads, n_batch=n_batch, n_ubatch=n_batch, n_outputs_max=n_batch
    )
    with Context(model, params, observer=observer) as context:
        for chunk in chunks:
            context.kv_remove(0)
            for start in range(0, chunk_size, n_batch):
                # without logits of a row, the last layer's feed-forward part leaves it out
                inputs = chunk[start : start + n_batch]
                context.decode(Batch.of_sequence(inputs, start=start, logits="all"))
                observer.raise_failure()
                advance(len(inputs))


def _chunks(decoder: DecoderPart, calibration: Calibration) -> Ids:
    """The text's token ids, (n_chunks, chunk size); no chunk where there is no text."""
    size, max_chunks = calibration.chunk_size, calibration.max_chunks
    _check_range("--ctx-size", size, 1, decoder.hparams.n_ctx_train)
    if max_chunks is not None:
        _check_range("--chunks", max_chunks, 1, 1 << 30)
    if calibration.text is None:
        return np.empty((0, size), np.int32)
    ids = Tokenizer(decoder.file.metadata).encode(read_utf8(calibration.text))
    n_chunks = len(ids) // size
    if n_chunks == 0:
        raise InputError(
            f"{calibration.text}: has {len(ids)} tokens, a chunk takes {size}: give more text, or "
            "a smaller -c"
        )
    return np.array(ids[: n_chunks * size], np.int32).reshape(n_chunks, size)[:max_chunks]


def _check_range(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{flag} is {value}, must be {low} to {high}")
