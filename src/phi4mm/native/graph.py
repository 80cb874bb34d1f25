"""A ggml graph, built from Python one operation at a time.

A wrong shape makes ggml abort the process, so every operation checks its operands first.  Shapes
are ggml's: ``ne=[n_embd, n_tokens]`` is a numpy array of shape ``(n_tokens, n_embd)``.  No model is
known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phi4mm.errors import NativeError
from phi4mm.native.blas_product import is_worth_it
from phi4mm.native.ggml import Backend, Ne, Tensor, ne_of, new_context
from phi4mm.native.handle import Handle

Array: TypeAlias = NDArray[np.float32]


class Graph(Handle):
    """Operations on one backend, and the computation of their results.

    A graph is built, computed once and closed: building costs some microseconds an operation.
    Its scratch memory is the backend's, so one graph is computed and read at a time.

    Args:
        backend: what computes it.
        max_tensors: the most inputs and operations it may hold.
    """

    def __init__(self, backend: Backend, max_tensors: int = 4096) -> None:
        library = backend.library
        context = new_context(library, max_tensors, max_tensors)
        super().__init__(library, context, "ggml_cgraph")
        self._backend = backend
        self._ffi, self._lib = library.ffi, library.lib
        self._n_left = max_tensors
        self._graph = self._lib.ggml_new_graph_custom(context, max_tensors, False)
        self._inputs: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        self._outputs: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        self._is_computed = False

    def _free(self, pointer: Any) -> None:
        self._lib.ggml_free(pointer)

    # ---- inputs, outputs, computation

    def input(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A float32 array of this numpy shape, given to ``compute`` by name."""
        ne = ne_of(shape)
        handle = self._lib.ggml_new_tensor_4d(self.pointer, self._lib.GGML_TYPE_F32, *ne)
        self._lib.ggml_set_input(handle)
        tensor = self._new(handle)
        _require(tensor.ne == ne, "ggml_new_tensor_4d", f"{ne} became {tensor.ne}")
        self._inputs[name] = (tensor, shape)
        return tensor

    def output(self, name: str, x: Tensor, n_dims: int = 2) -> None:
        """Have ``compute`` return this tensor, as an array of ``n_dims`` dimensions."""
        _require(all(n == 1 for n in x.ne[n_dims:]), "output", f"{name} has ne {x.ne}")
        # Of its own, contiguous and read by nobody else: neither a view nor an operation in place
        # can then touch its memory.
        x = self.cont(x)
        self._lib.ggml_set_output(x.handle)
        self._lib.ggml_build_forward_expand(self._graph, x.handle)
        self._outputs[name] = (x, x.ne[n_dims - 1 :: -1])

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs from the inputs.

        Args:
            inputs: an array for every input, of the shape it was declared with.

        Raises:
            NativeError: memory is short, the device lacks an operation, or it failed.
            Cancelled: the backend's abort flag was set.
        """
        arrays = self._check_inputs(inputs)
        # Its tensors have their places now, which other graphs take over.
        _require(not self._is_computed, "compute", "a graph is computed once")
        self._is_computed = True
        self._backend.allocate(self._graph)
        for name, array in arrays.items():
            handle, data = self._inputs[name][0].handle, self._ffi.from_buffer(array)
            self._lib.ggml_backend_tensor_set(handle, data, 0, array.nbytes)
        self._backend.compute(self._graph)
        return {name: self._read(x, shape) for name, (x, shape) in self._outputs.items()}

    def _check_inputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found, expected = sorted(inputs), sorted(self._inputs)
        _require(found == expected, "compute", f"inputs are {found}, expected {expected}")
        arrays = {name: np.ascontiguousarray(a, np.float32) for name, a in inputs.items()}
        for name, array in arrays.items():
            shape = self._inputs[name][1]
            _require(array.shape == shape, "compute", f"{name} is {array.shape}, not {shape}")
        return arrays

    def _read(self, x: Tensor, shape: tuple[int, ...]) -> Array:
        array = np.empty(shape, np.float32)
        data = self._ffi.from_buffer(array, require_writable=True)
        self._lib.ggml_backend_tensor_get(x.handle, data, 0, array.nbytes)
        return array

    def _new(self, handle: Any) -> Tensor:
        self._n_left -= 1
        _require(
            self._n_left > 0, "ggml_init", "the graph has more operations than it was made for"
        )
        self._backend.check_support(handle)
        return Tensor.of(handle)

    # ---- arithmetic

    def mul_mat(self, weight: Tensor, x: Tensor) -> Tensor:
        """Rows of ``x`` times the transpose of ``weight``, with sums in float32.

        ``weight`` ne=[n_in, n_out, a, b], ``x`` ne=[n_in, n, c, d] -> ne=[n_out, n, c, d], where
        ``a`` and ``b`` divide ``c`` and ``d``: the weight repeats.
        """
        ok = weight.ne[0] == x.ne[0] and x.ne[2] % weight.ne[2] == 0 and x.ne[3] % weight.ne[3] == 0
        _require(ok, "ggml_mul_mat", f"{weight.ne} by {x.ne}")
        handle = self._lib.ggml_mul_mat(self.pointer, weight.handle, x.handle)
        self._lib.ggml_prec_set_acc(handle, self._lib.GGML_PREC_F32)
        return self._new(handle)

    def dense(self, weight: Tensor, x: Tensor) -> Tensor:
        """Rows of ``x`` times the transpose of a stored matrix, the way that is faster for it.

        A matrix with longer rows takes rows with zeros at their ends.

        ``weight`` ne=[n_in, n_out], ``x`` ne=[n <= n_in, ...] -> ne=[n_out, ...].
        """
        n_rows, type_ = math.prod(x.ne[1:]), weight.handle.type
        if (
            self._backend.blas is not None
            and is_worth_it(n_rows, math.prod(weight.ne))
            and self._lib.ggml_is_contiguous(x.handle)
            and self._backend.prefers_blas(type_)
        ):
            return self.blas_product(weight, x)
        n_missing = weight.ne[0] - x.ne[0]
        return self.mul_mat(weight, self.pad(x, n_missing) if n_missing else x)

    def blas_product(self, weight: Tensor, x: Tensor) -> Tensor:
        """The same, by OpenBLAS, which the backend must have; ``x`` must be contiguous."""
        is_matrix = weight.ne[2:] == (1, 1) and x.ne[0] <= weight.ne[0]
        ok = is_matrix and self._lib.ggml_is_contiguous(x.handle)
        _require(ok, "ggml_custom_4d", f"{weight.ne} by {x.ne}")
        assert self._backend.blas is not None
        return self._new(self._backend.blas.add(self.pointer, weight.handle, x.handle))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """``a + b``; ``b`` repeats over ``a``."""
        _require_repeats("ggml_add", a, b)
        return self._new(self._lib.ggml_add(self.pointer, a.handle, b.handle))

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """``a * b``, element by element; ``b`` repeats over ``a``."""
        _require_repeats("ggml_mul", a, b)
        return self._new(self._lib.ggml_mul(self.pointer, a.handle, b.handle))

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        """``a / b``, element by element; ``b`` repeats over ``a``."""
        _require_repeats("ggml_div", a, b)
        return self._new(self._lib.ggml_div(self.pointer, a.handle, b.handle))

    def square(self, x: Tensor) -> Tensor:
        """``x * x``."""
        return self._new(self._lib.ggml_sqr(self.pointer, x.handle))

    def scale(self, x: Tensor, factor: float, offset: float = 0.0) -> Tensor:
        """``factor * x + offset``."""
        return self._new(self._lib.ggml_scale_bias(self.pointer, x.handle, factor, offset))

    # ---- functions

    def norm(self, x: Tensor, eps: float) -> Tensor:
        """Each row less its mean, over the square root of its variance plus ``eps``."""
        return self._new(self._lib.ggml_norm(self.pointer, x.handle, eps))

    def relu(self, x: Tensor) -> Tensor:
        """``max(x, 0)``."""
        return self._new(self._lib.ggml_relu(self.pointer, x.handle))

    def silu(self, x: Tensor) -> Tensor:
        """``x * sigmoid(x)``."""
        return self._new(self._lib.ggml_silu(self.pointer, x.handle))

    def gelu_erf(self, x: Tensor) -> Tensor:
        """``x * Phi(x)`` with the error function."""
        return self._new(self._lib.ggml_gelu_erf(self.pointer, x.handle))

    def swiglu(self, x: Tensor) -> Tensor:
        """First half of each row times SiLU of its second half."""
        _require(x.ne[0] % 2 == 0, "ggml_swiglu_swapped", f"rows of {x.ne[0]} have no halves")
        return self._new(self._lib.ggml_swiglu_swapped(self.pointer, x.handle))

    def soft_max(self, x: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
        """Softmax of each row of ``scale * x + bias``."""
        mask = self._ffi.NULL
        if bias is not None:
            _require(bias.ne == x.ne, "ggml_soft_max_ext", f"bias {bias.ne} of {x.ne}")
            mask = bias.handle
        return self._new(self._lib.ggml_soft_max_ext(self.pointer, x.handle, mask, scale, 0.0))

    def flash_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Softmax of ``scale * q k`` times ``v``.

        Without the matrix of scores in memory, where the device has such a kernel for heads of
        this size.  All ne=[n_embd_head, n, n_head] -> ne=[n_embd_head, n_head, n]: heads and rows
        are swapped.
        """
        ok = k.ne == v.ne and q.ne[0] == k.ne[0] and q.ne[2:] == k.ne[2:]
        _require(ok, "ggml_flash_attn_ext", f"q {q.ne}, k {k.ne}, v {v.ne}")
        handle = self._lib.ggml_flash_attn_ext(
            self.pointer, q.handle, k.handle, v.handle, self._ffi.NULL, scale, 0.0, 0.0
        )
        self._lib.ggml_prec_set_acc(handle, self._lib.GGML_PREC_F32)
        if not self._backend.supports(handle):
            return self._attention(q, k, v, scale)
        return self._new(handle)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        weights = self.soft_max(self.mul_mat(k, self.cont(q)), scale)  # ne=[n keys, n, n_head]
        heads = self.mul_mat(self.cont(self.permute(v, (1, 0, 2, 3))), weights)
        return self.cont(self.permute(heads, (0, 2, 1, 3)))

    def conv_2d_depthwise(
        self, kernel: Tensor, x: Tensor, stride: int, padding: tuple[int, int]
    ) -> Tensor:
        """Depthwise convolution of an image whose channels are the fastest dimension.

        Args:
            kernel: ne=[width, height, 1, n_channels], float32.
            x: ne=[n_channels, width, height]; its width must exceed 1.
            stride: of both directions.
            padding: zeros on each side: (of the width, of the height).

        Returns:
            ne=[n_channels, width', height'], with width' = (width + 2 p - k) // stride + 1.
        """
        ok = kernel.ne[2:] == (1, x.ne[0]) and x.ne[3] == 1
        # Of one column ggml cannot tell that the channels come first.
        ok = ok and x.ne[1] > 1
        _require(ok, "ggml_conv_2d_dw_direct", f"kernel {kernel.ne}, image {x.ne}")
        swap = (2, 3, 0, 1)
        channels_first = self.cont(self.permute(kernel, swap))
        image = self.permute(x, (2, 0, 1, 3))
        handle = self._lib.ggml_conv_2d_dw_direct(
            self.pointer,
            self.permute(channels_first, swap).handle,
            image.handle,
            *(stride, stride, *padding, 1, 1),
        )
        return self.permute(self._new(handle), (1, 2, 0, 3))

    # ---- shapes

    def permute(self, x: Tensor, axes: Ne) -> Tensor:
        """A view in which dimension ``i`` of ``x`` is dimension ``axes[i]``."""
        return self._new(self._lib.ggml_permute(self.pointer, x.handle, *axes))

    def cont(self, x: Tensor) -> Tensor:
        """A contiguous copy."""
        return self._new(self._lib.ggml_cont(self.pointer, x.handle))

    def reshape(self, x: Tensor, *ne: int) -> Tensor:
        """The same elements, which must lie contiguously, in another shape."""
        full = ne_of(ne[::-1])
        ok = np.prod(full) == np.prod(x.ne) and self._lib.ggml_is_contiguous(x.handle)
        _require(bool(ok), "ggml_reshape_4d", f"{x.ne} to {full}")
        return self._new(self._lib.ggml_reshape_4d(self.pointer, x.handle, *full))

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        """A view of the second dimension's entries ``start`` to ``stop``."""
        _require(0 <= start < stop <= x.ne[1], "ggml_view_4d", f"rows {start}:{stop} of {x.ne}")
        ne = (x.ne[0], stop - start, *x.ne[2:])
        strides = x.nb[1:]
        offset = start * strides[0]
        return self._new(self._lib.ggml_view_4d(self.pointer, x.handle, *ne, *strides, offset))

    def pad(self, x: Tensor, n_columns: int, n_rows: int = 0) -> Tensor:
        """``x`` with zeros after the first dimension's end, and after the second's."""
        _require(n_columns >= 0 and n_rows >= 0, "ggml_pad", f"by ({n_columns}, {n_rows})")
        return self._new(self._lib.ggml_pad(self.pointer, x.handle, n_columns, n_rows, 0, 0))


def _require(condition: bool, call: str, detail: str) -> None:
    if not condition:
        raise NativeError(call, detail=detail)


def _require_repeats(call: str, a: Tensor, b: Tensor) -> None:
    ok = all(n % m == 0 for n, m in zip(a.ne, b.ne, strict=True))
    _require(ok, call, f"{b.ne} does not repeat over {a.ne}")
