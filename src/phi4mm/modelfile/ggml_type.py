"""Element types of tensors as GGUF numbers them, with their block sizes.

Source: ``ggml.h`` (numbers) and ``ggml-common.h`` (block layouts) of llama.cpp.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class GGMLType(IntEnum):
    """An element type; members absent from the numbering were withdrawn upstream."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42

    @property
    def block_size(self) -> int:
        """Elements of one block."""
        return _LAYOUT[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _LAYOUT[self][1]

    def padded(self, n: int) -> int:
        """The least multiple of the block size that holds ``n`` elements."""
        return -(-n // self.block_size) * self.block_size

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of ``n`` elements, a multiple of the block size."""
        assert n % self.block_size == 0
        return n // self.block_size * self.block_bytes


_T = GGMLType
_LAYOUT: Final[dict[GGMLType, tuple[int, int]]] = {
    _T.F32: (1, 4), _T.F16: (1, 2), _T.BF16: (1, 2), _T.F64: (1, 8),
    _T.I8: (1, 1), _T.I16: (1, 2), _T.I32: (1, 4), _T.I64: (1, 8),
    _T.Q4_0: (32, 18), _T.Q4_1: (32, 20), _T.Q5_0: (32, 22), _T.Q5_1: (32, 24),
    _T.Q8_0: (32, 34), _T.Q8_1: (32, 36), _T.IQ4_NL: (32, 18), _T.MXFP4: (32, 17),
    _T.NVFP4: (64, 36), _T.Q2_0: (64, 18), _T.Q1_0: (128, 18),
    _T.Q2_K: (256, 84), _T.Q3_K: (256, 110), _T.Q4_K: (256, 144), _T.Q5_K: (256, 176),
    _T.Q6_K: (256, 210), _T.Q8_K: (256, 292),
    _T.IQ1_S: (256, 50), _T.IQ1_M: (256, 56), _T.IQ2_XXS: (256, 66), _T.IQ2_XS: (256, 74),
    _T.IQ2_S: (256, 82), _T.IQ3_XXS: (256, 98), _T.IQ3_S: (256, 110), _T.IQ4_XS: (256, 136),
    _T.TQ1_0: (256, 54), _T.TQ2_0: (256, 66),
}  # fmt: skip

MATRIX_TYPES: Final[frozenset[GGMLType]] = frozenset(GGMLType) - {
    _T.I8, _T.I16, _T.I32, _T.I64, _T.F64,  # no matrix product
    _T.Q8_1, _T.Q8_K,  # activations only: no row of them is ever read as a weight
}  # fmt: skip
"""Types a weight matrix may have."""
