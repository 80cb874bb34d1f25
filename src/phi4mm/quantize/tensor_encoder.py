"""Encodes the rows of one tensor and measures what that costs in exactness."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from phi4mm.convert.encode import Bytes, NotFinite, encode_rows
from phi4mm.convert.tensorfile import Rows
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.native.block_type import are_valid, dequantise_rows, quantise_rows
from phi4mm.native.library import Library
from phi4mm.quantize.loss import Loss

_FLOATS: Final = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


class TensorEncoder:
    """Encodes the blocks of one tensor, in several threads at once, and adds up the loss."""

    def __init__(self, library: Library, importance: Rows | None = None) -> None:
        """Prepare for a tensor.

        Args:
            library: the native library.
            importance: (n_cols,), what each column counts; None where all count alike.
        """
        self._library = library
        self._importance = importance
        self._losses: list[Loss] = []  # appending is atomic

    @property
    def loss(self) -> Loss:
        """The loss of all blocks so far."""
        return Loss.total(self._losses)

    def __call__(self, rows: Rows, ggml_type: GGMLType) -> Bytes:
        """The bytes of a block of rows, (n_bytes,).

        Raises:
            NotFinite: a weight is no finite number, or none that the type can hold.
        """
        flat = encode_as(self._library, rows, ggml_type, self._importance)
        encoded = flat.reshape(len(rows), -1)
        if ggml_type is not GGMLType.F32:
            self._losses.append(self._loss(rows, encoded, ggml_type))
        return flat

    def _loss(self, rows: Rows, encoded: Bytes, ggml_type: GGMLType) -> Loss:
        difference = dequantise_rows(self._library, encoded, ggml_type) - rows
        errors, values = _column_squares(difference), _column_squares(rows)
        if self._importance is None:
            return Loss(errors.sum(), values.sum())
        weights = self._importance.astype(np.float64)
        return Loss(errors.sum(), values.sum(), float(weights @ errors), float(weights @ values))


def encode_as(
    library: Library, rows: Rows, ggml_type: GGMLType, importance: Rows | None = None
) -> Bytes:
    """The bytes of rows in any type, (n_bytes,).

    Args:
        library: the native library.
        rows: (n_rows, n_cols).
        ggml_type: the type.
        importance: (n_cols,), what each column counts; None where all count alike.

    Raises:
        NotFinite: a weight is no finite number, or none that the type can hold.
    """
    if ggml_type in _FLOATS:
        return encode_rows(rows, ggml_type)
    if not np.isfinite(rows).all():
        raise NotFinite("holds NaN or infinity")
    encoded = quantise_rows(library, rows, ggml_type, importance)
    if not are_valid(library, encoded, ggml_type):
        raise NotFinite(f"cannot be {ggml_type.name}: a block's scale is no finite number")
    return encoded.reshape(-1)


def _column_squares(rows: Rows) -> npt.NDArray[np.float64]:
    """Sums of squares of the columns, (n_cols,)."""
    squares: npt.NDArray[np.float32] = np.einsum("ij,ij->j", rows, rows)
    return squares.astype(np.float64)
