"""A ggml backend that computes graphs, and weights it can read.

``Graph`` (``graph``) builds what is computed.  No model and no file format is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phi4mm.errors import Cancelled, NativeError
from phi4mm.native import openblas
from phi4mm.native.abort import AbortFlag
from phi4mm.native.blas_product import BlasProducts
from phi4mm.native.handle import Handle
from phi4mm.native.library import Library

Ne: TypeAlias = tuple[int, int, int, int]

# Weights in place must lie on this boundary, in bytes; what ggml aligns the CPU's tensors to.
_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight, or a tensor of a graph.

    Attributes:
        handle: the C pointer; valid as long as the weights or the graph it belongs to.
        ne: elements of each dimension, the fastest first.
    """

    handle: Any = field(repr=False)
    ne: Ne

    @classmethod
    def of(cls, handle: Any) -> Tensor:
        """Wrap a C pointer."""
        n0, n1, n2, n3 = handle.ne
        return cls(handle, (n0, n1, n2, n3))

    @property
    def nb(self) -> Ne:
        """Bytes from one element to the next in each dimension."""
        n0, n1, n2, n3 = self.handle.nb
        return (n0, n1, n2, n3)


def ne_of(shape: tuple[int, ...]) -> Ne:
    """The ne of a numpy shape of at most four dimensions: reversed, filled up with ones."""
    n0, n1, n2, n3 = (*shape[::-1], *(1,) * (4 - len(shape)))
    return (n0, n1, n2, n3)


class _Scratch(Handle):
    """ggml's allocator of the tensors of a graph."""

    def _free(self, pointer: Any) -> None:
        self.library.lib.ggml_gallocr_free(pointer)


class Backend(Handle):
    """A device that computes, and the scratch memory its graphs share.

    Used by one thread at a time; closed after its weights and graphs.

    Args:
        library: the native library.
        n_threads: threads of the CPU; other devices have no use for it.
        abort: a set flag makes computations end with ``Cancelled``.  The CPU asks before every
            operation; other devices are asked between graphs only.
        device: ggml's name of a device; None is the CPU.

    Attributes:
        is_cpu: whether the device is the CPU.
        blas: computes large products where OpenBLAS is here; None where it is not.
        prefers_blas: whether it should with weights of a type; never, unless it is replaced.

    Raises:
        NativeError: there is no such device, or it cannot be used.
    """

    def __init__(
        self,
        library: Library,
        n_threads: int,
        abort: AbortFlag | None = None,
        device: str | None = None,
    ) -> None:
        ffi, lib = library.ffi, library.lib
        if n_threads < 1:
            raise NativeError("ggml_backend_set_n_threads", detail=f"{n_threads} threads")
        self._device = _find_device(library, device)
        pointer = lib.ggml_backend_dev_init(self._device, ffi.NULL)
        if pointer == ffi.NULL:
            raise NativeError("ggml_backend_dev_init", detail=f"device {device or 'CPU'}")
        super().__init__(library, pointer, "ggml_backend")
        self._abort = abort
        device_type = lib.ggml_backend_dev_type(self._device)
        self.is_cpu: bool = device_type == lib.GGML_BACKEND_DEVICE_TYPE_CPU
        if self.is_cpu:
            self._configure_cpu(n_threads)
        allocator = lib.ggml_gallocr_new(lib.ggml_backend_get_default_buffer_type(pointer))
        self._scratch = _Scratch(library, allocator, "ggml_gallocr")
        has_blas = self.is_cpu and openblas.is_here()
        self.blas = BlasProducts(library) if has_blas else None
        self.prefers_blas: Callable[[int], bool] = lambda _ggml_type: False

    def _configure_cpu(self, n_threads: int) -> None:
        self._procedure("ggml_backend_set_n_threads")(self.pointer, n_threads)
        if self._abort is not None:
            set_callback = self._procedure("ggml_backend_set_abort_callback")
            set_callback(self.pointer, self._abort.callback, self._abort.data)

    def _procedure(self, name: str) -> Any:
        """A function of the backend, which the library need not export."""
        ffi, lib = self.library.ffi, self.library.lib
        registry = lib.ggml_backend_dev_backend_reg(self._device)
        address = lib.ggml_backend_reg_get_proc_address(registry, name.encode())
        if address == ffi.NULL:
            raise NativeError("ggml_backend_reg_get_proc_address", detail=f"no {name}")
        return ffi.cast(f"{name}_t", address)

    def _free(self, pointer: Any) -> None:
        self._scratch.close()
        self.library.lib.ggml_backend_free(pointer)

    @property
    def n_scratch_bytes(self) -> int:
        """Bytes of scratch memory held: what the largest graph so far needed."""
        return int(self.library.lib.ggml_gallocr_get_buffer_size(self._scratch.pointer, 0))

    def supports(self, operation: Any) -> bool:
        """Whether the device can do an operation; the CPU can do all."""
        return self.is_cpu or self.library.lib.ggml_backend_dev_supports_op(self._device, operation)

    def check_support(self, operation: Any) -> None:
        """Refuse an operation that the device cannot do.

        Raises:
            NativeError: naming the device and the operation.
        """
        if not self.supports(operation):
            ffi, lib = self.library.ffi, self.library.lib
            device = ffi.string(lib.ggml_backend_dev_name(self._device)).decode()
            name = ffi.string(lib.ggml_op_desc(operation)).decode()
            raise NativeError("ggml_backend_dev_supports_op", detail=f"{device} lacks {name}")

    def allocate(self, graph: Any) -> None:
        """Give the tensors of a C graph their places in the scratch memory.

        Raises:
            NativeError: memory is short.
        """
        lib, scratch = self.library.lib, self._scratch.pointer
        # ggml plans anew only when sizes differ from those of the last graph, and overlooks that
        # another graph keeps other tensors for longer.  So the plan is always made anew.
        if not lib.ggml_gallocr_reserve(scratch, graph):
            raise NativeError("ggml_gallocr_reserve", detail="no memory for the graph")
        if not lib.ggml_gallocr_alloc_graph(scratch, graph):
            raise NativeError("ggml_gallocr_alloc_graph", detail="no memory for the graph")

    def compute(self, graph: Any) -> None:
        """Compute an allocated C graph.

        Raises:
            Cancelled: the abort flag is set.
            NativeError: the computation failed.
        """
        lib = self.library.lib
        self.raise_if_aborted()
        with nullcontext() if self.blas is None else self.blas.computing():
            status = lib.ggml_backend_graph_compute(self.pointer, graph)
        if status == lib.GGML_STATUS_ABORTED:
            raise Cancelled("the computation was stopped")
        if status != lib.GGML_STATUS_SUCCESS:
            raise NativeError("ggml_backend_graph_compute", status)

    def raise_if_aborted(self) -> None:
        """Raise ``Cancelled`` if the abort flag is set."""
        if self._abort is not None and self._abort.is_set:
            raise Cancelled("the computation was stopped")


def _find_device(library: Library, name: str | None) -> Any:
    lib = library.lib
    if name is None:
        device = lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU)
    else:
        device = lib.ggml_backend_dev_by_name(name.encode())
    if device == library.ffi.NULL:
        raise NativeError("ggml_backend_dev_by_name", detail=f"there is no device {name or 'CPU'}")
    return device


def new_context(library: Library, n_tensors: int, n_nodes: int = 0) -> Any:
    """A ggml context for so many tensors, and a graph of so many nodes, without their data.

    Raises:
        NativeError: memory is short.
    """
    params = library.ffi.new("struct ggml_init_params *")
    params.mem_size = n_tensors * library.lib.ggml_tensor_overhead()
    params.mem_size += library.lib.ggml_graph_overhead_custom(n_nodes, False)
    params.no_alloc = True
    context = library.lib.ggml_init(params[0])
    if context == library.ffi.NULL:
        raise NativeError("ggml_init", detail=f"no memory for {params.mem_size} bytes")
    return context


@dataclass(frozen=True, slots=True)
class WeightData:
    """A weight's elements, as they lie in memory.

    Attributes:
        ggml_type: number of the element type.
        shape: numpy order, ``(rows, cols)``.
        data: the bytes, contiguous; for quantised types whole blocks.
    """

    ggml_type: int
    shape: tuple[int, ...]
    data: NDArray[Any]

    @classmethod
    def of_array(cls, array: NDArray[np.float32]) -> WeightData:
        """A float32 weight."""
        array = np.ascontiguousarray(array, np.float32)
        return cls(0, array.shape, array)


class Weights(Handle):
    """Named weights that graphs of one backend can read.

    On the CPU, data that lies on a boundary of 32 bytes is used where it is, so that mapped files
    stay mapped; everything else is copied to the device.

    Args:
        backend: where to.
        tensors: the weights by name.

    Raises:
        NativeError: memory is short, or data does not have the bytes its shape asks for.
    """

    def __init__(self, backend: Backend, tensors: Mapping[str, WeightData]) -> None:
        self._backend = backend
        self._ffi, self._lib = backend.library.ffi, backend.library.lib
        self._buffers: list[Any] = []
        self._in_place: list[Any] = []  # keeps the memory alive
        context = new_context(backend.library, len(tensors) + 1)
        super().__init__(backend.library, context, "ggml_context")
        try:
            self._tensors = {name: self._declare(name, data) for name, data in tensors.items()}
            self._load(tensors)
        except NativeError:
            self.close()
            raise

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def _free(self, pointer: Any) -> None:
        for buffer in self._buffers:
            self._lib.ggml_backend_buffer_free(buffer)
        self._lib.ggml_free(pointer)
        self._in_place.clear()

    def _declare(self, name: str, weight: WeightData) -> Tensor:
        ne = ne_of(weight.shape)
        block = self._lib.ggml_blck_size(weight.ggml_type)
        if ne[0] % block:
            raise NativeError("ggml_new_tensor", detail=f"{name}: {block} does not divide {ne[0]}")
        handle = self._lib.ggml_new_tensor_4d(self.pointer, weight.ggml_type, *ne)
        expected = self._lib.ggml_nbytes(handle)
        if weight.data.nbytes != expected:
            detail = f"{name} has {weight.data.nbytes} bytes, expected {expected}"
            raise NativeError("ggml_new_tensor", detail=detail)
        return Tensor.of(handle)

    def _load(self, tensors: Mapping[str, WeightData]) -> None:
        copied = {}
        for name, weight in tensors.items():
            if self._backend.is_cpu and weight.data.ctypes.data % _ALIGNMENT == 0:
                self._use_in_place(self._tensors[name], weight.data)
            else:
                copied[name] = weight.data
        if not copied:
            return
        # Allocates what has no place yet.
        buffer = self._lib.ggml_backend_alloc_ctx_tensors(self.pointer, self._backend.pointer)
        if buffer == self._ffi.NULL:
            raise NativeError("ggml_backend_alloc_ctx_tensors", detail="no memory for the weights")
        self._buffers.append(buffer)
        for name, data in copied.items():
            handle, source = self._tensors[name].handle, self._ffi.from_buffer(data)
            self._lib.ggml_backend_tensor_set(handle, source, 0, data.nbytes)

    def _use_in_place(self, tensor: Tensor, data: NDArray[Any]) -> None:
        source = self._ffi.from_buffer(data)
        buffer = self._lib.ggml_backend_cpu_buffer_from_ptr(source, data.nbytes)
        if buffer == self._ffi.NULL:
            raise NativeError("ggml_backend_cpu_buffer_from_ptr")
        self._buffers.append(buffer)
        self._in_place.append(source)
        status = self._lib.ggml_backend_tensor_alloc(buffer, tensor.handle, source)
        if status != self._lib.GGML_STATUS_SUCCESS:
            raise NativeError("ggml_backend_tensor_alloc", status)
