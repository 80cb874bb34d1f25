"""Products in 16-bit integers, by a small kernel that a compiler makes for this machine once.

    python -m phi4mm.native.int16_product

On processors with VNNI instructions integers of 16 bits are multiplied twice as fast as float32.
Both factors are quantised for it, by row and block of 128: against float64 a product is off by 4e-4
to 6e-4 (root mean square), where ggml's with Q8_0 weights is off by 5e-3.

Differs from the reference: that multiplies in bf16 or float32.  It is used for quantised weights
only, which have moved by more than that already.

The compiled kernel lies in the user's cache folder; its name tells the source and the processor it
is made for, so that no other is ever loaded.  ``PHI4MM_INT16=0`` leaves it alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from phi4mm.errors import NativeError

_SOURCE = Path(__file__).with_suffix(".c")
# Without the last flag gcc 12 and 13 copy every sum to another register and back.
_FLAGS = ("-O3", "-march=native", "-fno-tree-pre", "-shared", "-fPIC")
_WORK = f"compiling {_SOURCE.name}"
_CDEF = """
void phi4mm_quantise_rows(const float *x, int64_t n_rows, int64_t n_in, int16_t *q, float *scales);
void phi4mm_multiply(const int16_t *x, const float *x_scales, int64_t n_rows, int64_t n_in,
                     const float *w, int64_t stride, int64_t n_out, float *out, int64_t out_stride,
                     int16_t *panels, float *panel_scales);
"""
# as in the source
_BLOCK, _STEP, _TILE_ROWS, _TILE_COLUMNS = 128, 16, 6, 16
_OFF = {"0", "off", "no"}


@dataclass(frozen=True, slots=True)
class QuantisedRows:
    """Rows of activations, ready to be multiplied; with rows and numbers of zero at the ends."""

    values: NDArray[np.int16]
    scales: NDArray[np.float32]
    n_rows: int
    n_in: int


class Int16Kernel:
    """The compiled kernel.  Threads may share it.

    Raises:
        NativeError: the file cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self._ffi = FFI()
        self._ffi.cdef(_CDEF)
        try:
            self._lib = self._ffi.dlopen(str(path))
        except OSError:
            raise NativeError("dlopen", detail=f"{path}: delete it, or make it again") from None

    def quantised(self, rows: NDArray[np.float32]) -> QuantisedRows:
        """Rows ``(n_rows, n_in)``, contiguous."""
        n_rows, n_in = rows.shape
        values, scales = _scratch(_rounded_up(n_rows, _TILE_ROWS), n_in)
        values[:], scales[:] = 0, 0
        self._lib.phi4mm_quantise_rows(
            self._floats(rows), n_rows, n_in, self._integers(values), self._floats(scales)
        )
        return QuantisedRows(values, scales, n_rows, n_in)

    def multiply(
        self, x: QuantisedRows, weights: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        """Each row of ``x`` times each of the weights.

        Args:
            x: ``n_rows`` rows of ``n_in``.
            weights: ``(n_out, n_in)``; each row is contiguous.
            out: where the products go, ``(n_rows, n_out)``; each row is contiguous.
        """
        n_out = len(weights)
        panels, panel_scales = _scratch(_rounded_up(n_out, _TILE_COLUMNS), x.n_in)
        self._lib.phi4mm_multiply(
            self._integers(x.values), self._floats(x.scales), x.n_rows, x.n_in,
            self._floats(weights), weights.strides[0] // 4, n_out,
            self._floats(out), out.strides[0] // 4,
            self._integers(panels), self._floats(panel_scales),
        )  # fmt: skip

    def _floats(self, array: NDArray[np.float32]) -> Any:
        return self._ffi.cast("float *", array.ctypes.data)

    def _integers(self, array: NDArray[np.int16]) -> Any:
        return self._ffi.cast("int16_t *", array.ctypes.data)


def _scratch(n_rows: int, n_in: int) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Room for quantised rows and the scales of their blocks."""
    values = np.empty((n_rows, _rounded_up(n_in, _STEP)), np.int16)
    return values, np.empty((n_rows, -(-n_in // _BLOCK)), np.float32)


def _rounded_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def kernel_path() -> Path:
    """Where the kernel for this processor lies, or would."""
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.exists() else []
    features = next((line for line in lines if line.startswith("flags")), "")
    made_of = f"{_SOURCE.read_text()}{_FLAGS}{features}"
    name = f"int16-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches, "phi4mm", name)


@cache
def load() -> Int16Kernel | None:
    """The kernel, where it was made and is wanted.

    Raises:
        NativeError: the file cannot be loaded.
    """
    if os.environ.get("PHI4MM_INT16", "").lower() in _OFF:
        return None
    path = kernel_path()
    return Int16Kernel(path) if path.exists() else None


def build() -> Path:
    """Compile the kernel, see that it multiplies rightly, and leave it where ``load`` finds it.

    Raises:
        NativeError: there is no compiler, it fails, or the kernel does.
    """
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        raise NativeError(_WORK, detail=f"no {compiler[0]}: install gcc, or name a compiler in CC")
    path = kernel_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [*compiler, *_FLAGS, str(_SOURCE), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = (line for line in done.stderr.splitlines() if "error" in line)
            raise NativeError(_WORK, detail=next(errors, f"{compiler[0]} ended with an error"))
        _require_right(Int16Kernel(made))
        made.replace(path)
    load.cache_clear()
    return path


def _require_right(kernel: Int16Kernel) -> None:
    random = np.random.default_rng(1)
    x, weights = (random.standard_normal((n, 300), np.float32) for n in (50, 70))
    out = np.empty((50, 70), np.float32)
    kernel.multiply(kernel.quantised(x), weights, out)
    off = np.sqrt(np.square(out - x @ weights.T).mean() / np.square(out).mean())
    if not off < 1e-3:
        raise NativeError(_WORK, detail=f"its products are wrong by {off:.1e}")


def gain() -> float:
    """How much faster the kernel is than numpy's product, with one thread, on a layer's shape."""
    kernel = load()
    assert kernel is not None
    x, weights = np.ones((1024, 1152), np.float32), np.ones((256, 1152), np.float32)
    out = np.empty((1024, 256), np.float32)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(40):
        is_ours, began = bool(turn % 2), time.perf_counter()
        if is_ours:
            kernel.multiply(kernel.quantised(x), weights, out)
        else:
            np.matmul(x, weights.T, out=out)
        seconds[is_ours].append(time.perf_counter() - began)
    return min(seconds[False]) / min(seconds[True])


def main() -> int:
    """Compile it, and say what it gains."""
    from phi4mm.native import openblas

    try:
        path = build()
    except NativeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with openblas.one_thread():
        print(f"{path}: {gain():.2f} times the speed of float32")
    return 0


if __name__ == "__main__":
    sys.exit(main())
