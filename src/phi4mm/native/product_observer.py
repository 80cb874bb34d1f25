"""Shows what a decoder's weights are multiplied with, while a context computes.

libllama calls back for every operation of its graph; for the matrix products with weights of
chosen names the second factor is copied out.  No model is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phi4mm.errors import NativeError
from phi4mm.native.ggml import new_context
from phi4mm.native.library import Library

Receive = Callable[[str, NDArray[np.float32]], None]
"""Called with a weight's name and the rows it is multiplied with, (n_rows, n_cols)."""

_PRODUCT = "MUL_MAT"


class ProductObserver:
    """Passes on the inputs of matrix products; give it to ``Context`` and keep it as long.

    An exception of ``receive``, an interrupt among them, is kept: what the context computes is
    then broken off and worthless, and ``raise_failure`` raises it.  Products of no rows, as a step
    without logits has them, are not shown.

    Attributes:
        callback: the ``ggml_backend_sched_eval_callback`` to give to the library.
    """

    def __init__(self, library: Library, names: Collection[str], receive: Receive) -> None:
        """Observe products with weights of these names.

        Args:
            library: the native library.
            names: names of two-dimensional weights.
            receive: is shown the inputs.

        Raises:
            NativeError: the library's tensors are not laid out as declared.
        """
        _check_layout(library)
        self._library = library
        self._names = names
        self._receive = receive
        self._failure: BaseException | None = None
        self.callback: Any = library.ffi.callback(
            "ggml_backend_sched_eval_callback", self._observe, error=False, onerror=self._fail
        )

    def raise_failure(self) -> None:
        """Raise what went wrong while the context computed, if anything did."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _observe(self, tensor: Any, ask: bool, _user_data: Any) -> bool:
        """Asked before an operation whether it is wanted; called again once it is computed."""
        if self._failure is not None:
            return ask  # wanted, so that the answer to the second call breaks the computing off
        ffi, lib = self._library.ffi, self._library.lib
        if ffi.string(lib.ggml_op_desc(tensor)).decode() != _PRODUCT:
            return False
        name = weight_name(ffi.string(lib.ggml_get_name(tensor.src[0])).decode())
        if name not in self._names or _n_rows(tensor) == 0:
            return False
        if not ask:
            self._receive(name, self._rows(tensor.src[1]))
        return True

    def _rows(self, tensor: Any) -> NDArray[np.float32]:
        lib = self._library.lib
        if tensor.type != lib.GGML_TYPE_F32 or not lib.ggml_is_contiguous(tensor):
            raise NativeError("ggml_backend_tensor_get", detail="the input is no float32 matrix")
        rows = np.empty((_n_rows(tensor), tensor.ne[0]), np.float32)
        target = self._library.ffi.from_buffer(rows)
        lib.ggml_backend_tensor_get(tensor, target, 0, rows.nbytes)
        return rows

    def _fail(
        self, _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
    ) -> None:
        self._failure = error


def _n_rows(tensor: Any) -> int:
    return int(tensor.ne[1] * tensor.ne[2] * tensor.ne[3])


def weight_name(name: str) -> str:
    """A weight's name without what the scheduler adds when it copies one: ``GPU#NAME#0``."""
    _, separator, copied = name.partition("#")
    return copied.rpartition("#")[0] if separator else name


def _check_layout(library: Library) -> None:
    """Make a product and look for its sources where they are declared to be."""
    lib = library.lib
    context = new_context(library, 3)
    try:
        left, right = (lib.ggml_new_tensor_2d(context, lib.GGML_TYPE_F32, 2, 2) for _ in range(2))
        product = lib.ggml_mul_mat(context, left, right)
        found = (product.src[0], product.src[1], product.src[2])
    finally:
        lib.ggml_free(context)
    if found != (left, right, library.ffi.NULL):
        raise NativeError("ggml_mul_mat", detail="a product's sources are not where expected")
