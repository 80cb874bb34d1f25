"""C declarations of libllama, one set for each llama.cpp build whose structs differ.

They follow the declarations of ``ggml_cdef``.  libllama has no stable binary interface: fields
appear in the middle of its parameter structs from one build to the next, so every set names the
carriers it was read from and is checked against the library before it is used (``check``).
"""

from __future__ import annotations

from dataclasses import dataclass

_BEFORE = """
typedef int32_t  llama_pos;
typedef int32_t  llama_token;
typedef int32_t  llama_seq_id;
typedef struct llama_memory_i * llama_memory_t;

struct llama_vocab;
struct llama_model;
struct llama_context;
struct llama_adapter_lora;

enum llama_rope_scaling_type {
    LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED = -1,
    LLAMA_ROPE_SCALING_TYPE_NONE        = 0,
    LLAMA_ROPE_SCALING_TYPE_LINEAR      = 1,
    LLAMA_ROPE_SCALING_TYPE_YARN        = 2,
    LLAMA_ROPE_SCALING_TYPE_LONGROPE    = 3
};
enum llama_pooling_type {
    LLAMA_POOLING_TYPE_UNSPECIFIED = -1,
    LLAMA_POOLING_TYPE_NONE        = 0
};
enum llama_attention_type {
    LLAMA_ATTENTION_TYPE_UNSPECIFIED = -1,
    LLAMA_ATTENTION_TYPE_CAUSAL      = 0,
    LLAMA_ATTENTION_TYPE_NON_CAUSAL  = 1
};
enum llama_flash_attn_type {
    LLAMA_FLASH_ATTN_TYPE_AUTO     = -1,
    LLAMA_FLASH_ATTN_TYPE_DISABLED = 0,
    LLAMA_FLASH_ATTN_TYPE_ENABLED  = 1
};
enum llama_split_mode {
    LLAMA_SPLIT_MODE_NONE  = 0,
    LLAMA_SPLIT_MODE_LAYER = 1,
    LLAMA_SPLIT_MODE_ROW   = 2
};
enum llama_load_mode {
    LLAMA_LOAD_MODE_AUTO       = -1,
    LLAMA_LOAD_MODE_NONE       = 0,
    LLAMA_LOAD_MODE_MMAP       = 1,
    LLAMA_LOAD_MODE_MLOCK      = 2,
    LLAMA_LOAD_MODE_MMAP_MLOCK = 3,
    LLAMA_LOAD_MODE_DIRECT_IO  = 4
};
enum llama_lazy_mode {
    LLAMA_LAZY_MODE_OFF  = 0,
    LLAMA_LAZY_MODE_AUTO = 1,
    LLAMA_LAZY_MODE_ON   = 2
};
enum llama_context_type {
    LLAMA_CONTEXT_TYPE_DEFAULT = 0,
    LLAMA_CONTEXT_TYPE_MTP     = 1
};

typedef bool (*llama_progress_callback)(float progress, void * user_data);

struct llama_batch {
    int32_t         n_tokens;
    llama_token   * token;
    float         * embd;
    llama_pos     * pos;
    int32_t       * n_seq_id;
    llama_seq_id ** seq_id;
    int8_t        * logits;
};

struct llama_model_params {
    ggml_backend_dev_t * devices;
    const void         * tensor_buft_overrides;
    int32_t              n_gpu_layers;
    enum llama_split_mode split_mode;
    enum llama_load_mode  load_mode;
    enum llama_lazy_mode  lazy_mode;
    int32_t              main_gpu;
    const float        * tensor_split;
    llama_progress_callback progress_callback;
    void               * progress_callback_user_data;
    const void         * kv_overrides;
    bool                 vocab_only;
    bool                 check_tensors;
    bool                 use_extra_bufts;
    bool                 no_host;
    bool                 no_alloc;
    bool                 load_mtp;
};
"""

# {inserted} is what a build added in the middle.
_CONTEXT_PARAMS = """
struct llama_context_params {{
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_ubatch;
    uint32_t n_seq_max;
    uint32_t n_rs_seq;
    uint32_t n_outputs_max;
    uint32_t n_outputs_max_per_seq;
    int32_t  n_threads;
    int32_t  n_threads_batch;
    enum llama_context_type      ctx_type;
    enum llama_rope_scaling_type rope_scaling_type;
    enum llama_pooling_type      pooling_type;
    enum llama_attention_type    attention_type;
    enum llama_flash_attn_type   flash_attn_type;
    float    rope_freq_base;
    float    rope_freq_scale;
    float    yarn_ext_factor;
    float    yarn_attn_factor;
    float    yarn_beta_fast;
    float    yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    float    defrag_thold;
    ggml_backend_sched_eval_callback cb_eval;
    void   * cb_eval_user_data;
    enum ggml_type type_k;
    enum ggml_type type_v;
    {inserted}
    ggml_abort_callback abort_callback;
    void   * abort_callback_data;
    bool     embeddings;
    bool     offload_kqv;
    bool     no_perf;
    bool     op_offload;
    bool     swa_full;
    bool     kv_unified;
    void   * samplers;
    size_t   n_samplers;
    struct llama_context * ctx_other;
}};
"""

_AFTER = """
const char * llama_version(void);
void         llama_log_set(ggml_log_callback log_callback, void * user_data);
void         llama_backend_init(void);
bool         llama_supports_gpu_offload(void);

struct llama_model_params   llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);

struct llama_model * llama_model_load_from_file(const char * path_model,
                                                struct llama_model_params params);
void                 llama_model_free(struct llama_model * model);
const struct llama_vocab * llama_model_get_vocab(const struct llama_model * model);
int32_t              llama_vocab_n_tokens(const struct llama_vocab * vocab);
int32_t              llama_model_n_ctx_train(const struct llama_model * model);
int32_t              llama_model_n_embd_inp(const struct llama_model * model);
int32_t              llama_model_n_layer(const struct llama_model * model);
int32_t              llama_model_desc(const struct llama_model * model, char * buf,
                                      size_t buf_size);

struct llama_adapter_lora * llama_adapter_lora_init(struct llama_model * model,
                                                    const char * path_lora);
void                 llama_adapter_lora_free(struct llama_adapter_lora * adapter);
int32_t              llama_set_adapters_lora(struct llama_context * ctx,
                                             struct llama_adapter_lora ** adapters,
                                             size_t n_adapters, float * scales);

struct llama_context * llama_init_from_model(struct llama_model * model,
                                             struct llama_context_params params);
void                 llama_free(struct llama_context * ctx);
uint32_t             llama_n_ctx_seq(const struct llama_context * ctx);
int32_t              llama_decode(struct llama_context * ctx, struct llama_batch batch);
float *              llama_get_logits_ith(struct llama_context * ctx, int32_t i);
void                 llama_synchronize(struct llama_context * ctx);

llama_memory_t       llama_get_memory(const struct llama_context * ctx);
bool                 llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0,
                                         llama_pos p1);
llama_pos            llama_memory_seq_pos_max(llama_memory_t mem, llama_seq_id seq_id);

size_t               llama_state_seq_get_size(struct llama_context * ctx, llama_seq_id seq_id);
size_t               llama_state_seq_get_data(struct llama_context * ctx, uint8_t * dst,
                                              size_t size, llama_seq_id seq_id);
size_t               llama_state_seq_set_data(struct llama_context * ctx, const uint8_t * src,
                                              size_t size, llama_seq_id dest_seq_id);

"""


@dataclass(frozen=True, slots=True)
class Declarations:
    """One set of declarations and the carrier it was read from.

    Attributes:
        build: the llama.cpp build, as its authors name it.
        package: the distribution that carries this build.
        version: the version of that distribution.
        cdef: C declarations, to follow those of ggml.
    """

    build: str
    package: str
    version: str
    cdef: str


def _declare(build: str, package: str, version: str, *, inserted: str) -> Declarations:
    context_params = _CONTEXT_PARAMS.format(inserted=inserted)
    return Declarations(build, package, version, _BEFORE + context_params + _AFTER)


DECLARATIONS: tuple[Declarations, ...] = (
    _declare("b11549", "xllamacpp", "2026.10.11549", inserted="size_t moe_cache_size;"),
    _declare("0c1e570", "llama-cpp-python", "0.3.36", inserted=""),
)
