"""Which way to multiply with weights of a type is faster on this machine, by a short trial."""

from __future__ import annotations

import time

import numpy as np

from phi4mm.native.ggml import Backend, WeightData, Weights
from phi4mm.native.graph import Graph

_SIDE = 1024  # of the weight that is tried, a multiple of every type's block
_N_ROWS = 512
_N_TRIES = 3
# ggml must win by so much: the other way is more exact, and a close race should end the same way
# each time.
_MARGIN = 1.15


class ProductChoice:
    """Tells whether OpenBLAS should multiply with a type; tries it once for each type.

    A trial takes about a tenth of a second.

    Args:
        backend: whose products they are.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._answers: dict[int, bool] = {}

    def __call__(self, ggml_type: int) -> bool:
        """Whether it should."""
        if ggml_type not in self._answers:
            self._answers[ggml_type] = self._measure(ggml_type)
        return self._answers[ggml_type]

    def _measure(self, ggml_type: int) -> bool:
        lib = self._backend.library.lib
        row_bytes = _SIDE // lib.ggml_blck_size(ggml_type) * lib.ggml_type_size(ggml_type)
        zeros = np.zeros(_SIDE * row_bytes, np.uint8)
        weight = WeightData(ggml_type, (_SIDE, _SIDE), zeros)
        with Weights(self._backend, {"weight": weight}) as weights:
            seconds = [
                [self._seconds(weights, use_blas=use_blas) for use_blas in (False, True)]
                for _ in range(_N_TRIES)
            ]
        by_ggml, by_blas = map(min, zip(*seconds, strict=True))
        return bool(by_blas < _MARGIN * by_ggml)

    def _seconds(self, weights: Weights, *, use_blas: bool) -> float:
        rows = np.zeros((_N_ROWS, _SIDE), np.float32)
        with Graph(self._backend, max_tensors=8) as g:
            x = g.input("rows", rows.shape)
            weight = weights["weight"]
            g.output("out", g.blas_product(weight, x) if use_blas else g.mul_mat(weight, x))
            began = time.perf_counter()
            g.compute({"rows": rows})
            return time.perf_counter() - began
