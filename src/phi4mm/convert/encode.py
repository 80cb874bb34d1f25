"""Float32 rows to the element types of the files, in bulk.

Q8_0 equals ggml's ``quantize_row_q8_0_ref`` byte for byte (``roundf`` rounds halves away from
zero), bfloat16 equals ``ggml_compute_fp32_to_bf16`` (halves to even).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from phi4mm.convert.tensorfile import Rows
from phi4mm.modelfile.ggml_type import GGMLType

Bytes = npt.NDArray[np.uint8]
Encode: TypeAlias = Callable[[Rows, GGMLType], Bytes]
"""Float32 rows to the bytes of a type; runs in several threads at once; may raise NotFinite."""

# The largest float32 below one half: truncating x + this rounds halves away from zero, where
# x + 0.5 would round 0.49999997 up.
_BELOW_HALF: Final = np.nextafter(np.float32(0.5), np.float32(0))
_Q8_0_BLOCK: Final = np.dtype([("d", "<f2"), ("qs", "i1", (32,))])


class NotFinite(ValueError):
    """A weight is not a finite number, or becomes none in the type asked for."""


def encode_rows(rows: Rows, ggml_type: GGMLType) -> Bytes:
    """Encode float32 rows.

    Args:
        rows: (n_rows, n_cols); ``n_cols`` a multiple of the type's block size.
        ggml_type: F32, F16, BF16 or Q8_0.

    Returns:
        The bytes, (n_bytes,).

    Raises:
        NotFinite: a weight is infinite or NaN, or exceeds the range of the type.
    """
    largest = float(np.maximum(rows.max(), -rows.min()))  # NaN if any weight is
    if not np.isfinite(largest):
        raise NotFinite("holds NaN or infinity")
    encoded = _ENCODERS[ggml_type](rows, largest)
    return np.ascontiguousarray(encoded).reshape(-1).view(np.uint8)


def _f32(rows: Rows, _largest: float) -> npt.NDArray[np.generic]:
    return rows.astype("<f4", copy=False)


def _f16(rows: Rows, largest: float) -> npt.NDArray[np.generic]:
    if largest >= 65520:  # rounds to infinity
        raise NotFinite(f"holds {largest:g}, beyond F16's 65504: use BF16, F32 or Q8_0")
    return rows.astype("<f2")


def _bf16(rows: Rows, _largest: float) -> npt.NDArray[np.generic]:
    bits = rows.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def _q8_0(rows: Rows, largest: float) -> npt.NDArray[np.generic]:
    if largest / 127 >= 65520:
        raise NotFinite(f"holds {largest:g}, beyond Q8_0's scale: use BF16 or F32")
    blocks = rows.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1) / np.float32(127)
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale != 0)
    scaled = blocks * inverse[:, None]
    scaled += np.copysign(_BELOW_HALF, scaled)
    encoded = np.empty(len(blocks), _Q8_0_BLOCK)
    encoded["d"] = scale
    encoded["qs"] = scaled  # the cast truncates
    return encoded


_ENCODERS: Final = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q8_0: _q8_0,
}
