"""Products of weights with many rows outside of ggml, as operations of a ggml graph.

ggml multiplies quantised weights with activations that it quantises as well.  Here a block of
weights is widened to float32 while it is needed, and the activations stay float32: that is a
hundred times more exact, and on many machines faster, since the widening is shared by all rows.
numpy's OpenBLAS multiplies, or the kernel of ``int16_product`` where that was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phi4mm.modelfile.ggml_type import GGMLType
from phi4mm.native import int16_product, openblas
from phi4mm.native.block_type import stored_rows
from phi4mm.native.library import Library

# With fewer rows the widening counts; with less work the way into Python and back does.
_MIN_ROWS = 128
_MIN_WORK = 1 << 27  # multiplications

_BLOCK_ROWS = 256  # of weights that are widened at a time: a megabyte or so, in the second cache
_ALL_THREADS = -1  # GGML_N_TASKS_MAX


def is_worth_it(n_rows: int, n_weights: int) -> bool:
    """Whether a product is large enough."""
    return n_rows >= _MIN_ROWS and n_rows * n_weights >= _MIN_WORK


class BlasProducts:
    """Adds products to graphs and computes them when ggml's threads come to them.

    Each thread computes a part of the columns.  An exception in one, an interrupt among them, is
    kept; what the graph computes is then worthless.

    Args:
        library: the native library.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._int16 = int16_product.load()
        self._failure: BaseException | None = None
        self._callback = library.ffi.callback(
            "ggml_custom_op_t", self._compute, onerror=self._keep_failure
        )

    def add(self, context: Any, weight: Any, x: Any) -> Any:
        """Add a product to a graph.

        Args:
            context: the graph's.
            weight: ne=[n_in, n_out], of any type that weights have.
            x: contiguous float32, ne=[n <= n_in, ...].

        Returns:
            The product's tensor, ne=[n_out, ...].
        """
        ffi, lib = self._library.ffi, self._library.lib
        sources = ffi.new("struct ggml_tensor *[]", [weight, x])
        ne = (weight.ne[1], *x.ne[1:4])
        args = (sources, len(sources), self._callback, _ALL_THREADS, ffi.NULL)
        return lib.ggml_custom_4d(context, lib.GGML_TYPE_F32, *ne, *args)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What a graph with such products is computed in; raises what went wrong in one."""
        with openblas.one_thread():
            yield
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _compute(self, product: Any, thread: int, n_threads: int, _user_data: Any) -> None:
        weight, x = product.src[0], product.src[1]
        n_in, n_out = x.ne[0], weight.ne[1]
        rows, out = self._rows(x), self._rows(product)
        kernel = self._int16 if GGMLType(weight.type).block_size > 1 else None
        quantised = None if kernel is None else kernel.quantised(rows)
        first, last = (n_out * n // n_threads for n in (thread, thread + 1))
        for start in range(first, last, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, last)
            block = self._widened(weight, start, stop)[:, :n_in]
            if kernel is None or quantised is None:
                np.matmul(rows, block.T, out=out[:, start:stop])
            else:
                kernel.multiply(quantised, block, out[:, start:stop])

    def _rows(self, tensor: Any) -> NDArray[np.float32]:
        """The rows of a contiguous float32 tensor, in place."""
        ffi, lib = self._library.ffi, self._library.lib
        data = ffi.buffer(lib.ggml_get_data(tensor), lib.ggml_nbytes(tensor))
        return np.frombuffer(data, np.float32).reshape(-1, tensor.ne[0])

    def _widened(self, weight: Any, start: int, stop: int) -> NDArray[np.float32]:
        """Rows of a weight as float32."""
        ffi, n_bytes = self._library.ffi, weight.nb[1]
        data = ffi.cast("char *", self._library.lib.ggml_get_data(weight)) + start * n_bytes
        stored = np.frombuffer(ffi.buffer(data, (stop - start) * n_bytes), np.uint8)
        return stored_rows(self._library, stored.reshape(-1, n_bytes), GGMLType(weight.type))

    def _keep_failure(
        self, _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
    ) -> None:
        self._failure = error
