"""Does the library that was opened have the structs, types and arithmetic we declared?

libllama has no stable binary interface, and a field inserted in a struct shows as nonsense far from
its cause.  Its default parameters are known, so reading each at the place where we believe its
field to be tells whether the declarations fit.
"""

from __future__ import annotations

from typing import Any

from phi4mm.errors import NativeError

# The structs are returned by value.  A buffer larger than any of them is declared as the result,
# so that a struct which is longer than we believe is not written past the end of ours.
CDEF = "struct phi4mm_oversized { uint64_t words[128]; };"

# Field by field, as llama_model_default_params() and llama_context_default_params() set them.  A
# pointer is expected to be null where the value is None.
_DEFAULTS: dict[str, dict[str, int | float | bool | None]] = {
    "llama_model_params": {
        "devices": None,
        "tensor_buft_overrides": None,
        "n_gpu_layers": -1,
        "split_mode": 1,
        "load_mode": -1,
        "lazy_mode": 1,
        "main_gpu": 0,
        "tensor_split": None,
        "progress_callback": None,
        "progress_callback_user_data": None,
        "kv_overrides": None,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_host": False,
        "no_alloc": False,
        "load_mtp": False,
    },
    "llama_context_params": {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_rs_seq": 0,
        "n_outputs_max": 0,
        "n_outputs_max_per_seq": 1,
        "n_threads": 4,
        "n_threads_batch": 4,
        "ctx_type": 0,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "attention_type": -1,
        "flash_attn_type": -1,
        "rope_freq_base": 0.0,
        "rope_freq_scale": 0.0,
        "yarn_ext_factor": -1.0,
        "yarn_attn_factor": -1.0,
        "yarn_beta_fast": -1.0,
        "yarn_beta_slow": -1.0,
        "yarn_orig_ctx": 0,
        "defrag_thold": -1.0,
        "cb_eval": None,
        "cb_eval_user_data": None,
        "type_k": 1,
        "type_v": 1,
        "abort_callback": None,
        "abort_callback_data": None,
        "embeddings": False,
        "offload_kqv": True,
        "no_perf": True,
        "op_offload": True,
        "swa_full": True,
        "kv_unified": False,
        "samplers": None,
        "n_samplers": 0,
        "ctx_other": None,
    },
}

# ggml type -> (bytes of a block, elements of a block).
_BLOCKS = {
    "F32": (4, 1),
    "F16": (2, 1),
    "BF16": (2, 1),
    "I32": (4, 1),
    "Q8_0": (34, 32),
    "Q4_0": (18, 32),
    "Q4_K": (144, 256),
    "Q6_K": (210, 256),
}


def layout_mismatch(ffi: Any, lib: Any) -> str | None:
    """The first thing in which the library differs from the declarations, or None."""
    return _missing_symbol(lib) or _params_mismatch(ffi, lib) or _types_mismatch(lib)


def _missing_symbol(lib: Any) -> str | None:
    for name in dir(lib):
        try:
            getattr(lib, name)
        except AttributeError as error:
            return str(error)
    return None


def _params_mismatch(ffi: Any, lib: Any) -> str | None:
    for struct, defaults in _DEFAULTS.items():
        function = getattr(lib, struct.replace("_params", "_default_params"))
        raw = ffi.cast("struct phi4mm_oversized (*)(void)", function)()
        params = ffi.cast(f"struct {struct} *", ffi.addressof(raw))
        for field, expected in defaults.items():
            found = _read(ffi, params, field)
            if found != expected:
                return f"{struct}.{field} is {found} by default, expected {expected}"
    return None


def _read(ffi: Any, params: Any, field: str) -> int | float | None:
    declared = dict(ffi.typeof(params[0]).fields)[field]
    if declared.type.kind in ("pointer", "function"):
        address = int(ffi.cast("uintptr_t", getattr(params, field)))
        return address or None
    if declared.type.cname == "_Bool":
        # As a byte: cffi refuses to read a bool that is neither 0 nor 1.
        return int(ffi.cast("uint8_t *", params)[declared.offset])
    value: int | float = getattr(params, field)
    return value


def _types_mismatch(lib: Any) -> str | None:
    for name, expected in _BLOCKS.items():
        type_id = getattr(lib, f"GGML_TYPE_{name}")
        found = (lib.ggml_type_size(type_id), lib.ggml_blck_size(type_id))
        if found != expected:
            return f"ggml type {name} has (bytes, elements) {found}, expected {expected}"
    return None


def compute(ffi: Any, lib: Any, library: str) -> None:
    """Multiply two matrices on the CPU and compare.

    Raises:
        NativeError: the library has no CPU backend, or the product is wrong.
    """
    backend = lib.ggml_backend_init_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU, ffi.NULL)
    if backend == ffi.NULL:
        raise NativeError("ggml_backend_init_by_type", detail=f"{library} has no CPU backend")
    params = ffi.new("struct ggml_init_params *")
    params.mem_size = 8 * lib.ggml_tensor_overhead() + lib.ggml_graph_overhead()
    params.no_alloc = True
    context = lib.ggml_init(params[0])
    try:
        product = _product(ffi, lib, backend, context)
    finally:
        lib.ggml_free(context)
        lib.ggml_backend_free(backend)
    expected = [17.0, 39.0, 23.0, 53.0]
    if product != expected:
        raise NativeError(
            "ggml_mul_mat", detail=f"{library} computes {product}, expected {expected}"
        )


def _product(ffi: Any, lib: Any, backend: Any, context: Any) -> list[float]:
    """[[5, 6], [7, 8]] times the transpose of [[1, 2], [3, 4]], row by row."""
    left, right = (lib.ggml_new_tensor_2d(context, lib.GGML_TYPE_F32, 2, 2) for _ in range(2))
    result = lib.ggml_mul_mat(context, left, right)
    graph = lib.ggml_new_graph(context)
    lib.ggml_build_forward_expand(graph, result)
    buffer = lib.ggml_backend_alloc_ctx_tensors(context, backend)
    out = ffi.new("float[4]")
    try:
        lib.ggml_backend_tensor_set(left, ffi.new("float[4]", [1, 2, 3, 4]), 0, 16)
        lib.ggml_backend_tensor_set(right, ffi.new("float[4]", [5, 6, 7, 8]), 0, 16)
        lib.ggml_backend_graph_compute(backend, graph)
        lib.ggml_backend_tensor_get(result, out, 0, 16)
    finally:
        lib.ggml_backend_buffer_free(buffer)
    return list(out)
