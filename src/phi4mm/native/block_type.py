"""Rows of float32 weights to ggml's block types and back.

The work is done by ggml's reference code, so the bytes are those of its own tools.  The calls let
go of the interpreter's lock, so threads may run them side by side.  No model and no file format is
known here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phi4mm.errors import NativeError
from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.native.library import Library

Rows = NDArray[np.float32]
Blocks = NDArray[np.uint8]


def quantise_rows(
    library: Library, rows: Rows, ggml_type: int, importance: Rows | None = None
) -> Blocks:
    """Quantise rows to a type that needs no importance matrix.

    Args:
        library: the native library.
        rows: (n_rows, n_cols), finite; ``n_cols`` a multiple of the type's block.
        ggml_type: number of the type.
        importance: (n_cols,), the mean square of what each column is multiplied with, at least 0;
            None treats all columns alike.

    Returns:
        The blocks, (n_rows, bytes of a row).
    """
    ffi, lib = library.ffi, library.lib
    n_rows, n_cols = rows.shape
    n_blocks, rest = divmod(n_cols, lib.ggml_blck_size(ggml_type))
    assert rest == 0
    assert importance is None or importance.shape == (n_cols,)
    blocks = np.empty((n_rows, n_blocks * lib.ggml_type_size(ggml_type)), np.uint8)
    weights = ffi.NULL if importance is None else _floats(ffi, importance)
    target = ffi.from_buffer(blocks)
    lib.ggml_quantize_chunk(ggml_type, _floats(ffi, rows), target, 0, n_rows, n_cols, weights)
    return blocks


def are_valid(library: Library, blocks: Blocks, ggml_type: int) -> bool:
    """Whether all scales of the blocks are finite numbers."""
    data = library.ffi.from_buffer(blocks)
    return bool(library.lib.ggml_validate_row_data(ggml_type, data, blocks.nbytes))


def dequantise_rows(library: Library, blocks: Blocks, ggml_type: int) -> Rows:
    """The weights that blocks stand for.

    Args:
        library: the native library.
        blocks: (n_rows, bytes of a row).
        ggml_type: number of their type, a quantised one.

    Returns:
        (n_rows, n_cols) float32.
    """
    ffi, traits = library.ffi, _traits(library, ggml_type)
    n_rows, n_bytes = blocks.shape
    rows = np.empty((n_rows, n_bytes // traits.type_size * traits.blck_size), np.float32)
    traits.to_float(ffi.from_buffer(blocks), _floats(ffi, rows), rows.size)
    return rows


def stored_rows(library: Library, rows: Blocks, ggml_type: GGMLType) -> Rows:
    """The weights of rows as a file stores them, of any type that weights have.

    Args:
        library: the native library.
        rows: (n_rows, bytes of a row).
        ggml_type: their type.

    Returns:
        (n_rows, n_cols) float32.
    """
    if ggml_type is GGMLType.F32:
        return rows.view(np.float32)
    if ggml_type is GGMLType.F16:
        return rows.view(np.float16).astype(np.float32)
    if ggml_type is GGMLType.BF16:
        widened = np.left_shift(rows.view(np.uint16), 16, dtype=np.uint32, casting="unsafe")
        return np.asarray(widened).view(np.float32)
    return dequantise_rows(library, np.ascontiguousarray(rows), ggml_type)


def _traits(library: Library, ggml_type: int) -> Any:
    """The type's entry in ggml's table, if the entry is laid out as declared."""
    lib = library.lib
    traits = lib.ggml_get_type_traits(ggml_type)
    found = (traits.type_size, traits.blck_size)
    expected = (lib.ggml_type_size(ggml_type), lib.ggml_blck_size(ggml_type))
    if found != expected:
        detail = f"type {ggml_type} has (bytes, elements) {found}, expected {expected}"
        raise NativeError("ggml_get_type_traits", detail=detail)
    return traits


def _floats(ffi: Any, array: Rows) -> Any:
    """A C pointer into a contiguous float32 array; the array must outlive its use."""
    assert array.dtype == np.float32
    return ffi.from_buffer("float[]", array)
