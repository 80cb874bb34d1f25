"""Stock llama.cpp's own encoding of a picture, by the C interface that its programs use.

``python stock_projector.py LIBRARY MMPROJ PICTURE OUT`` writes embeddings, (n_tokens, n_embd).
A process of its own: the library takes over the log, and a file that it refuses may end it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cffi
import gguf
import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Written for the build that the tests' carrier holds (b11549).
DECLARATIONS = """
typedef struct mtmd_context mtmd_context;
typedef struct mtmd_bitmap mtmd_bitmap;
typedef struct mtmd_input_chunk mtmd_input_chunk;
typedef struct mtmd_input_chunks mtmd_input_chunks;
struct mtmd_input_text { const char * text; size_t text_len; bool add_special, parse_special; };
struct mtmd_context_params {
    bool use_gpu; void * device; bool print_timings; int n_threads;
    const char * image_marker, * media_marker; int flash_attn_type; bool warmup;
    int image_min_tokens, image_max_tokens; void * cb_eval, * cb_eval_user_data;
    int32_t batch_max_tokens; void * progress_callback, * progress_callback_user_data;
};
struct mtmd_context_params mtmd_context_params_default(void);
const char * mtmd_default_marker(void);
mtmd_context * mtmd_init_from_file(const char *, const void *, struct mtmd_context_params);
mtmd_bitmap * mtmd_bitmap_init(uint32_t nx, uint32_t ny, const unsigned char * data);
mtmd_input_chunks * mtmd_input_chunks_init(void);
const mtmd_input_chunk * mtmd_input_chunks_get(const mtmd_input_chunks *, size_t);
size_t mtmd_input_chunks_size(const mtmd_input_chunks *);
size_t mtmd_input_chunk_get_n_tokens(const mtmd_input_chunk *);
int32_t mtmd_tokenize(const mtmd_context *, mtmd_input_chunks *, const struct mtmd_input_text *,
    const mtmd_bitmap * const *, size_t);
int32_t mtmd_encode_chunk(mtmd_context *, const mtmd_input_chunk *);
float * mtmd_get_output_embd(mtmd_context *);
"""


def encode(library: Path, mmproj: Path, picture: Path) -> NDArray[np.float32]:
    """Embeddings of a picture, (n_tokens, n_embd), computed in a process of its own."""
    out = picture.with_suffix(".npy")
    subprocess.run(
        [sys.executable, __file__, library, mmproj, picture, out], check=True, timeout=600
    )
    return np.asarray(np.load(out), np.float32)


def _encode(library: str, mmproj: str, picture: str, out: str) -> None:
    ffi = cffi.FFI()
    ffi.cdef(DECLARATIONS)
    lib = ffi.dlopen(library)
    params = lib.mtmd_context_params_default()
    params.use_gpu, params.warmup, params.n_threads = False, False, 1
    context = lib.mtmd_init_from_file(mmproj.encode(), ffi.NULL, params)
    assert context != ffi.NULL
    with Image.open(picture) as image:
        pixels = np.ascontiguousarray(np.asarray(image.convert("RGB")))
    height, width, _ = pixels.shape
    bitmaps = ffi.new("mtmd_bitmap *[]", [
        lib.mtmd_bitmap_init(width, height, ffi.from_buffer(pixels))
    ])  # fmt: skip
    marker = ffi.string(lib.mtmd_default_marker())
    words = ffi.new("char[]", marker)
    text = ffi.new("struct mtmd_input_text *", {"text": words, "text_len": len(marker)})
    chunks = lib.mtmd_input_chunks_init()
    assert lib.mtmd_tokenize(context, chunks, text, bitmaps, 1) == 0
    assert lib.mtmd_input_chunks_size(chunks) == 1
    chunk = lib.mtmd_input_chunks_get(chunks, 0)
    assert lib.mtmd_encode_chunk(context, chunk) == 0
    n_tokens = lib.mtmd_input_chunk_get_n_tokens(chunk)
    field = gguf.GGUFReader(mmproj).fields["clip.vision.projection_dim"]
    n_embd = int(field.contents())
    data = ffi.buffer(lib.mtmd_get_output_embd(context), 4 * n_tokens * n_embd)
    np.save(out, np.frombuffer(data, np.float32).reshape(n_tokens, n_embd))


if __name__ == "__main__":
    _encode(*sys.argv[1:])
