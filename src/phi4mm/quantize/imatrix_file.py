"""Importance matrices and the GGUF files that llama.cpp's tools keep them in.

An importance matrix has, for each matrix of the decoder, the sums of squares of what its columns
were multiplied with.  Source of the format: imatrix.cpp and imatrix-loader.cpp of llama.cpp
0c1e570: tensors ``NAME.in_sum2`` (1, n_cols) and ``NAME.counts`` (1, 1), both F32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from phi4mm.convert.output_folder import readable_os_errors
from phi4mm.convert.rows import ArrayRows
from phi4mm.convert.tensorfile import Rows
from phi4mm.convert.writer import OutputFile, OutputTensor, StagedFiles
from phi4mm.errors import InputError, ModelFileError
from phi4mm.modelfile import keys
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.modelfile.hparams import WritableMetadata
from phi4mm.modelfile.keys import Key
from phi4mm.modelfile.reader import GGUFFile

TYPE_IMATRIX: Final = "imatrix"
DATASETS: Final = Key("imatrix.datasets", "str[]", "the texts it was collected from")
CHUNK_COUNT: Final = Key("imatrix.chunk_count", "u32", "chunks of text computed")
CHUNK_SIZE: Final = Key("imatrix.chunk_size", "u32", "tokens of a chunk")
_SUMS: Final = ".in_sum2"
_COUNTS: Final = ".counts"


@dataclass(frozen=True, slots=True)
class Sums:
    """What was seen of one matrix's inputs.

    Attributes:
        squares: (n_cols,), sums of squares of each column's input.
        count: rows that were added up.
    """

    squares: Rows
    count: int

    @property
    def mean(self) -> Rows:
        """Mean squares, (n_cols,)."""
        mean: Rows = self.squares / np.float32(self.count)
        return mean


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """An importance matrix.

    Attributes:
        sums: what was seen, by the matrix's name.
        datasets: names of the texts.
        n_chunks: chunks of text computed.
        chunk_size: tokens of a chunk.
    """

    sums: Mapping[str, Sums]
    datasets: tuple[str, ...]
    n_chunks: int
    chunk_size: int

    def to_file(self, path: Path) -> OutputFile:
        """The file that holds it, for the writer."""
        metadata: WritableMetadata = {
            keys.General.TYPE: TYPE_IMATRIX,
            DATASETS: list(self.datasets),
            CHUNK_COUNT: self.n_chunks,
            CHUNK_SIZE: self.chunk_size,
        }
        tensors = []
        for name in sorted(self.sums):
            entry = self.sums[name]
            count = np.array([entry.count], np.float32)
            tensors += [_tensor(name + _SUMS, entry.squares), _tensor(name + _COUNTS, count)]
        return OutputFile(path, metadata, tensors)


def write_imatrix(imatrix: ImportanceMatrix, path: Path) -> None:
    """Write a file; it appears whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    with readable_os_errors(), StagedFiles(path.parent) as staged:
        staged.write(imatrix.to_file(path), lambda n_bytes: None)


def check_target(path: Path) -> None:
    """Refuse to replace anything but another importance matrix.

    Raises:
        InputError: such a file is there.
    """
    if path.exists():
        try:
            read_imatrix(path)
        except ModelFileError:
            raise InputError(f"{path} is there already and no importance matrix") from None


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Read a file of this package's or of ``llama-imatrix``.

    Raises:
        ModelFileError: it is none, or an entry of it cannot be.
    """
    with GGUFFile.open(path) as file:
        metadata = file.metadata
        if metadata.get(keys.General.TYPE) != TYPE_IMATRIX:
            raise metadata.error(
                f"{keys.General.TYPE} is {metadata.get(keys.General.TYPE)!r:.40}, must be "
                f"'{TYPE_IMATRIX}': make an importance matrix with phi4mm imatrix"
            )
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        if len(file.tensors) != 2 * len(names) or not names:
            raise metadata.error(f"must have pairs of tensors, NAME{_SUMS} and NAME{_COUNTS}")
        return ImportanceMatrix(
            sums={name: _read_sums(file, name) for name in names},
            datasets=tuple(metadata.strings(DATASETS)),
            n_chunks=int(metadata.number(CHUNK_COUNT)),
            chunk_size=int(metadata.number(CHUNK_SIZE)),
        )


def _read_sums(file: GGUFFile, name: str) -> Sums:
    squares, counts = _values(file, name + _SUMS), _values(file, name + _COUNTS)
    if counts.size != 1 or not 1 <= counts[0] < 1 << 53:
        raise ModelFileError(f"{file.path}: {name}{_COUNTS} is {counts[:4]}, must be one count")
    if not (np.isfinite(squares).all() and (squares >= 0).all()):
        raise ModelFileError(f"{file.path}: {name}{_SUMS} has a value that is no sum of squares")
    return Sums(squares, int(counts[0]))


def _values(file: GGUFFile, name: str) -> Rows:
    if name not in file.tensors:
        raise ModelFileError(f"{file.path}: tensor {name} is missing")
    if file.tensors[name].ggml_type is not GGMLType.F32:
        raise ModelFileError(f"{file.path}: {name} is {file.tensors[name].ggml_type.name}, not F32")
    values: Rows = file.data(name).reshape(-1).copy()
    return values


def _tensor(name: str, values: Rows) -> OutputTensor:
    return OutputTensor(name, (1, values.size), GGMLType.F32, ArrayRows(values))


def importance_of(
    imatrix: ImportanceMatrix, path: Path, widths: Mapping[str, int]
) -> dict[str, Rows]:
    """What each column counts, for the matrices of a decoder.

    Args:
        imatrix: the importance matrix.
        path: where it was read from.
        widths: columns of the decoder's matrices.

    Returns:
        Mean squares, (n_cols,), of the matrices that the importance matrix has.

    Raises:
        ModelFileError: it is of another model.
    """
    found = {name: imatrix.sums[name].mean for name in widths if name in imatrix.sums}
    for name, mean in found.items():
        if mean.size != widths[name]:
            raise ModelFileError(
                f"{path}: {name} has {mean.size} columns, the decoder's has {widths[name]}: "
                "collected from another model"
            )
    if not found:
        raise ModelFileError(f"{path}: has no matrix of this decoder: collected from another model")
    return found
