"""What this machine can do at most: reading memory, and multiplying matrices.

Both are measured, not looked up: the best of some runs, with all cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from phi4mm.measurement.machine import n_cores

_READ_BYTES: Final = 512 << 20  # larger than any cache
_GEMM_SIDE: Final = 1536
_RUNS: Final = 5


@dataclass(frozen=True, slots=True)
class Peak:
    """The limits of a machine.

    Attributes:
        bytes_per_s: reading memory, all cores.
        flops: float32 matrix products with numpy's BLAS, all cores; additions and
            multiplications per second.  Kernels on 8-bit integers can exceed it.
    """

    bytes_per_s: float
    flops: float

    @classmethod
    def measure(cls) -> Peak:
        """Measure this machine; takes about a second."""
        return cls(_read_speed(), _gemm_speed())

    def least_s(self, *works: Work) -> float:
        """The least time for some work: each piece is bound by computing or by reading."""
        return sum(max(w.flops / self.flops, w.n_bytes / self.bytes_per_s) for w in works)


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be done at least.

    Attributes:
        flops: additions and multiplications.
        n_bytes: bytes read from memory.
    """

    flops: float
    n_bytes: float


def least_s(peak: Peak | None, *works: Work) -> float | None:
    """The least time for some work; None where the peak is not known."""
    return None if peak is None else peak.least_s(*works)


def best_of(run: Callable[[], object], n: int) -> float:
    """Seconds of the fastest of ``n`` runs, after one that does not count."""
    run()
    times = []
    for _ in range(n):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def _read_speed() -> float:
    """Bytes per second that all cores together read."""
    data = np.ones(_READ_BYTES // 4, np.int32)
    pieces = np.array_split(data, n_cores())
    with ThreadPoolExecutor(len(pieces)) as pool:
        seconds = best_of(lambda: list(pool.map(np.max, pieces)), _RUNS)
    return _READ_BYTES / seconds


def _gemm_speed() -> float:
    a = np.random.default_rng(0).standard_normal((_GEMM_SIDE, _GEMM_SIDE), np.float32)
    seconds = best_of(lambda: a @ a, _RUNS)
    return 2.0 * _GEMM_SIDE**3 / seconds
