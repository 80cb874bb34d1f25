"""Owning handles on libllama's objects: a model, its adapters, its contexts.

However often and in whatever order they are closed, each object is freed once, contexts before
adapters before the model: a model closes what still belongs to it, and an adapter stays in memory
until no context computes with it.  One thread at a time may use a model and what belongs to it.
Which model it is, is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phi4mm.errors import Cancelled, NativeError
from phi4mm.native.abort import AbortFlag
from phi4mm.native.batch import Batch
from phi4mm.native.device import NO_OFFLOAD, Offload, device_handle, no_accelerator
from phi4mm.native.handle import Handle
from phi4mm.native.library import Library, load
from phi4mm.native.params import ContextParams
from phi4mm.native.product_observer import ProductObserver

# What llama_decode returns besides 0.  After the first two the cache is as it was.
_REFUSED = -1
_NO_SLOT = 1
_ABORTED = 2


class Model(Handle):
    """The weights of a decoder."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        offload: Offload = NO_OFFLOAD,
        use_mmap: bool = True,
    ) -> None:
        """Load a GGUF file.

        Args:
            path: the file.  A malformed one can crash the library, so check it first.
            offload: layers whose weights go to accelerators, and to which.
            use_mmap: map the file, so that the system can drop and reload its pages, instead of
                reading it into memory.

        Raises:
            InputError: there is no such device, or layers are wanted on a GPU and the library has
                no support for one.
            NativeError: the library does not accept the file.
        """
        library = load()
        lib = library.lib
        params, _devices = model_params(library, offload)
        params.load_mode = lib.LLAMA_LOAD_MODE_MMAP if use_mmap else lib.LLAMA_LOAD_MODE_NONE
        with library.log.errors() as lines:
            pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
        if pointer == library.ffi.NULL:
            raise NativeError("llama_model_load_from_file", detail="; ".join(lines))
        super().__init__(library, pointer, "llama_model")
        self._contexts: list[Context] = []
        self._adapters: list[Adapter] = []

    @property
    def n_vocab(self) -> int:
        """Token ids, and the width of a row of logits."""
        lib = self.library.lib
        return int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.pointer)))

    @property
    def n_embd(self) -> int:
        """Width of an embedding given in place of a token."""
        return int(self.library.lib.llama_model_n_embd_inp(self.pointer))

    @property
    def n_layer(self) -> int:
        """Number of blocks."""
        return int(self.library.lib.llama_model_n_layer(self.pointer))

    @property
    def n_ctx_train(self) -> int:
        """The longest sequence the model was trained for."""
        return int(self.library.lib.llama_model_n_ctx_train(self.pointer))

    @property
    def description(self) -> str:
        """Architecture, size and type of the weights, as libllama words them."""
        text = self.library.ffi.new("char[]", 256)
        self.library.lib.llama_model_desc(self.pointer, text, len(text))
        return str(self.library.ffi.string(text).decode("utf-8", "replace"))

    def close(self) -> None:
        """Free the model, after the contexts and adapters that are still open."""
        if not self.is_closed:
            for dependent in (*self._contexts, *self._adapters):
                dependent.close()
        super().close()

    def _free(self, pointer: Any) -> None:
        self.library.lib.llama_model_free(pointer)


class Adapter(Handle):
    """A LoRA adapter of a model."""

    def __init__(self, model: Model, path: str | os.PathLike[str]) -> None:
        """Load a GGUF file whose ``general.type`` is ``adapter``.

        Raises:
            NativeError: the library does not accept the file, or it does not fit the model.
        """
        library = model.library
        with library.log.errors() as lines:
            pointer = library.lib.llama_adapter_lora_init(model.pointer, os.fsencode(path))
        if pointer == library.ffi.NULL:
            raise NativeError("llama_adapter_lora_init", detail="; ".join(lines))
        super().__init__(library, pointer, "llama_adapter_lora")
        self.model = model
        model._adapters.append(self)
        self._n_users = 0
        self._unfreed = None

    def _free(self, pointer: Any) -> None:
        """Free the adapter, or leave that to the last context that computes with it."""
        self._unfreed = pointer
        self._free_unused()

    def _retain(self) -> None:
        self._n_users += 1

    def _release(self) -> None:
        self._n_users -= 1
        self._free_unused()

    def _free_unused(self) -> None:
        if self._unfreed is not None and self._n_users == 0:
            self.library.lib.llama_adapter_lora_free(self._unfreed)
            self._unfreed = None
            self.model._adapters.remove(self)


class Context(Handle):
    """A cache of keys and values for one or more sequences, and the buffers to compute with.

    Every sequence has its own part of the cache (it is never "unified"), of ``n_ctx_seq``
    positions.  That size is also what libllama chooses a model's RoPE factors by, once for the
    whole context: the long factors when it is greater than the model's original context length
    (``rope.scaling.original_context_length``), the short ones otherwise.  How long a sequence
    really is does not matter.  The size it compares is the one rounded up to a multiple of 256, so
    compare ``n_ctx_seq`` of the finished context, not what was asked for.
    (llama-model.cpp, ``get_rope_factors``; llama-context.cpp, the constructor.)
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams,
        abort_flag: AbortFlag | None = None,
        observer: ProductObserver | None = None,
    ) -> None:
        """Allocate a context.

        Args:
            model: whose weights it computes with.
            params: sizes and types.
            abort_flag: stops a decode while it is set.
            observer: is shown the inputs of matrix products; call its ``raise_failure`` after
                each decode.

        Raises:
            NativeError: the library refuses the parameters, or there is not enough memory.
        """
        library = model.library
        native = params.native(library.lib)
        if abort_flag is not None:
            native.abort_callback = abort_flag.callback
            native.abort_callback_data = abort_flag.data
        if observer is not None:
            native.cb_eval = observer.callback
        with library.log.errors() as lines:
            pointer = library.lib.llama_init_from_model(model.pointer, native)
        if pointer == library.ffi.NULL:
            raise NativeError("llama_init_from_model", detail="; ".join(lines))
        super().__init__(library, pointer, "llama_context")
        self.model = model
        self.params = params
        self._callees = (abort_flag, observer)  # the library holds their addresses
        self._adapters: tuple[Adapter, ...] = ()
        self._has_logits = np.zeros(0, np.bool_)
        model._contexts.append(self)

    @property
    def n_ctx_seq(self) -> int:
        """Positions for each sequence, as the library rounded them up."""
        return int(self.library.lib.llama_n_ctx_seq(self.pointer))

    def decode(self, batch: Batch) -> None:
        """Compute a batch, and add its keys and values to the cache.

        If this fails, the cache holds what it held before.

        Raises:
            Cancelled: the abort flag was set.
            NativeError: the batch is too large or does not continue what the cache holds, there is
                no room for it, or the library fails.
        """
        self._check(batch)
        self._has_logits = np.zeros(0, np.bool_)
        native, arrays = batch.native(self.library.ffi)
        with self.library.log.errors() as lines:
            status = self.library.lib.llama_decode(self.pointer, native)
        del arrays
        if status == 0:
            self._has_logits = batch.wants_logits.copy()
            return
        if status not in (_REFUSED, _NO_SLOT):
            self._forget(batch)
        if status == _ABORTED:
            raise Cancelled(f"a decode of {batch.n_rows} rows was stopped")
        if status == _NO_SLOT:
            lines = [f"no room for {batch.n_rows} rows in {self.n_ctx_seq} positions per sequence"]
        raise NativeError("llama_decode", status, "; ".join(lines))

    def logits(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Logits of rows of the last batch, (n, n_vocab) float32, copied.

        Args:
            rows: indices into the batch; each row must have asked for logits.

        Raises:
            NativeError: a row has no logits.
        """
        out = np.empty((len(rows), self.model.n_vocab), np.float32)
        for i, row in enumerate(rows):
            if not (0 <= row < len(self._has_logits) and self._has_logits[row]):
                raise NativeError("llama_get_logits_ith", detail=f"row {row} asked for no logits")
            source = self.library.lib.llama_get_logits_ith(self.pointer, row)
            self.library.ffi.memmove(self.library.ffi.from_buffer(out[i]), source, out[i].nbytes)
        return out

    def set_adapters(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Replace the set of adapters; an empty one restores the bare model.

        The set applies to every row of every later decode.  What the cache holds was computed with
        the set before, and is not recomputed.

        Args:
            adapters: each with a factor on its own scale (alpha / rank).

        Raises:
            NativeError: an adapter is closed, belongs to another model, or is given twice.
        """
        chosen = tuple(adapter for adapter, _ in adapters)
        if len(set(chosen)) != len(chosen):
            raise NativeError("llama_set_adapters_lora", detail="an adapter is given twice")
        if any(adapter.model is not self.model for adapter in chosen):
            raise NativeError("llama_set_adapters_lora", detail="an adapter is of another model")
        ffi = self.library.ffi
        pointers = ffi.new("struct llama_adapter_lora *[]", [a.pointer for a in chosen])
        scales = ffi.new("float[]", [scale for _, scale in adapters])
        status = self.library.lib.llama_set_adapters_lora(
            self.pointer, pointers, len(chosen), scales
        )
        if status != 0:
            raise NativeError("llama_set_adapters_lora", status)
        self._hold(chosen)

    def kv_length(self, seq_id: int) -> int:
        """The position after the last one the cache holds for a sequence; 0 if it is empty."""
        return int(self.library.lib.llama_memory_seq_pos_max(self._memory, self._seq(seq_id))) + 1

    def kv_remove(self, seq_id: int, start: int = 0, stop: int = -1) -> None:
        """Forget positions ``start`` to ``stop`` (exclusive; -1 for the end) of a sequence."""
        lib = self.library.lib
        if not lib.llama_memory_seq_rm(self._memory, self._seq(seq_id), start, stop):
            raise NativeError("llama_memory_seq_rm", detail=f"cannot remove {start} to {stop}")

    def kv_copy(self, source: int, target: int) -> None:
        """Make a sequence's cache equal to another's.

        ``llama_memory_seq_cp`` is not used: between sequences with caches of their own it only
        notes the copy, makes it in the next decode, and copies unused positions too.
        """
        if self._seq(source) != self._seq(target):
            self.state_set(target, self.state_get(source))

    def state_get(self, seq_id: int) -> bytearray:
        """The cache of a sequence, for ``state_set``."""
        lib, ffi = self.library.lib, self.library.ffi
        size = lib.llama_state_seq_get_size(self.pointer, self._seq(seq_id))
        state = bytearray(size)
        written = lib.llama_state_seq_get_data(self.pointer, ffi.from_buffer(state), size, seq_id)
        if size == 0 or written != size:
            raise NativeError("llama_state_seq_get_data", detail=f"wrote {written} of {size} bytes")
        return state

    def state_set(self, seq_id: int, state: bytes | bytearray) -> None:
        """Replace the cache of a sequence.

        Args:
            seq_id: the sequence; it may be another than the state was taken from.
            state: from ``state_get`` of a context of the same model and parameters.  The adapters
                must be the same as well, which nothing checks.

        Raises:
            NativeError: the state does not fit; the sequence is then empty.
        """
        self.kv_remove(seq_id)  # a state without positions would leave what was there
        with self.library.log.errors() as lines:
            read = self.library.lib.llama_state_seq_set_data(
                self.pointer, self.library.ffi.from_buffer(state), len(state), seq_id
            )
        if read == 0 or read != len(state):
            self.kv_remove(seq_id)
            detail = "; ".join(lines) or f"read {read} of {len(state)} bytes"
            raise NativeError("llama_state_seq_set_data", detail=detail)

    def synchronize(self) -> None:
        """Wait until the devices have finished what ``decode`` began."""
        self.library.lib.llama_synchronize(self.pointer)

    @property
    def _memory(self) -> Any:
        return self.library.lib.llama_get_memory(self.pointer)

    def _seq(self, seq_id: int) -> int:
        """The id, if the context has such a sequence; the library would abort the process."""
        if not 0 <= seq_id < self.params.n_seq_max:
            last = self.params.n_seq_max - 1
            raise NativeError(self._name, detail=f"sequence {seq_id} is not in 0 to {last}")
        return seq_id

    def _check(self, batch: Batch) -> None:
        """Refuse what the library would read past, or abort the process for."""
        for n, most, what in (
            (batch.n_rows, self.params.n_batch, "rows"),
            (batch.n_outputs, self.params.n_outputs_max, "rows that want logits"),
        ):
            if n > most:
                raise NativeError("llama_decode", detail=f"{n} {what}, expected at most {most}")
        n_embd = self.model.n_embd
        if batch.width not in (None, n_embd):
            detail = f"embeddings of width {batch.width}, expected {n_embd}"
            raise NativeError("llama_decode", detail=detail)

    def _forget(self, batch: Batch) -> None:
        """Remove the pieces of a batch that were computed before it failed."""
        for seq_id, start in batch.starts().items():
            self.kv_remove(seq_id, start)

    def _hold(self, adapters: tuple[Adapter, ...]) -> None:
        previous, self._adapters = self._adapters, adapters
        for adapter in adapters:
            adapter._retain()
        for adapter in previous:
            adapter._release()

    def _free(self, pointer: Any) -> None:
        self.library.lib.llama_free(pointer)
        self._hold(())
        self.model._contexts.remove(self)


def model_params(library: Library, offload: Offload) -> tuple[Any, Any]:
    """A ``llama_model_params``, and the list of devices it points to, to be kept alive.

    Raises:
        InputError: there is no such device, or layers are wanted on a GPU and there is none.
    """
    lib, ffi = library.lib, library.ffi
    if offload.n_gpu_layers > 0 and not lib.llama_supports_gpu_offload():
        raise no_accelerator(offload.n_gpu_layers, library)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = offload.n_gpu_layers
    names = offload.decoder_devices(library)
    if names is None:
        return params, None
    handles = [device_handle(library, name) for name in names]
    devices = ffi.new("ggml_backend_dev_t[]", [*handles, ffi.NULL])
    params.devices = devices
    return params, devices
