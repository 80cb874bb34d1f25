"""How much memory a model and its contexts would take, without taking it.

libllama says the sizes in its log.  Weights: a load that is called off once the buffers are there,
before anything is read into them.  Computing: a model loaded without its weights, whose contexts
reserve their graphs as usual.  No model is known here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from phi4mm.errors import NativeError
from phi4mm.native.ggml import Backend
from phi4mm.native.handle import Handle
from phi4mm.native.library import load
from phi4mm.native.log import logger
from phi4mm.native.params import ContextParams

_SIZE: Final = re.compile(r"(\S+)\s+(model|compute) buffer size = +([0-9.]+) MiB")
_MAPPED: Final = "_Mapped"


class DryBackend(Backend):
    """A backend that plans the memory of graphs and computes nothing.

    Results hold whatever is in memory.
    """

    def compute(self, graph: Any) -> None:
        """Do nothing."""


class DryModel(Handle):
    """A model without its weights.

    Args:
        path: a GGUF file that has been checked.

    Raises:
        NativeError: the library does not accept the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        library = load()
        params = library.lib.llama_model_default_params()
        params.load_mode = library.lib.LLAMA_LOAD_MODE_NONE
        params.n_gpu_layers = 0
        params.no_alloc = True
        with library.log.errors() as lines:
            pointer = library.lib.llama_model_load_from_file(os.fsencode(path), params)
        if pointer == library.ffi.NULL:
            raise NativeError("llama_model_load_from_file", detail="; ".join(lines))
        super().__init__(library, pointer, "llama_model")

    def compute_bytes(self, params: ContextParams) -> int:
        """Bytes of the buffer that a context of these sizes computes in.

        Raises:
            NativeError: the library refuses the parameters.
        """
        lib, log = self.library.lib, self.library.log
        with log.errors() as errors, _buffer_sizes("compute") as sizes:
            context = lib.llama_init_from_model(self.pointer, params.native(lib))
        if context == self.library.ffi.NULL:
            raise NativeError("llama_init_from_model", detail="; ".join(errors))
        lib.llama_free(context)
        return _total(sizes, "llama_init_from_model")

    def _free(self, pointer: Any) -> None:
        self.library.lib.llama_model_free(pointer)


def weight_bytes(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Bytes of a model's weights on the CPU: those that stay in the mapped file, and the others.

    The others are those that the library lays out anew for its kernels.

    Raises:
        NativeError: the library does not say.
    """
    library = load()
    call_off = library.ffi.callback("llama_progress_callback", lambda _progress, _data: False)
    params = library.lib.llama_model_default_params()
    params.load_mode = library.lib.LLAMA_LOAD_MODE_MMAP
    params.n_gpu_layers = 0
    params.progress_callback = call_off
    with _buffer_sizes("model") as sizes:
        pointer = library.lib.llama_model_load_from_file(os.fsencode(path), params)
    if pointer != library.ffi.NULL:
        library.lib.llama_model_free(pointer)
    total = _total(sizes, "llama_model_load_from_file")
    mapped = sum(n for name, n in sizes.items() if name.endswith(_MAPPED))
    return mapped, total - mapped


def _total(sizes: Mapping[str, int], call: str) -> int:
    if not sizes:
        raise NativeError(call, detail="the library's log does not tell the sizes of its buffers")
    return sum(sizes.values())


@contextmanager
def _buffer_sizes(kind: str) -> Iterator[dict[str, int]]:
    """Bytes of the buffers of a kind that the library's log tells of inside the block, by name."""
    sizes: dict[str, int] = {}

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = _SIZE.search(record.getMessage())
            if found is not None and found[2] == kind:
                sizes[found[1]] = sizes.get(found[1], 0) + round(float(found[3]) * (1 << 20))

    reader, level, propagate = Reader(), logger.level, logger.propagate
    logger.addHandler(reader)
    logger.setLevel(logging.DEBUG)
    # lines below the application's level would otherwise reach its handlers
    logger.propagate = propagate and logging.getLogger().isEnabledFor(logging.DEBUG)
    try:
        yield sizes
    finally:
        logger.removeHandler(reader)
        logger.setLevel(level)
        logger.propagate = propagate
