"""C declarations of the ggml functions and types this package calls.

The types and functions below are the same in the ggml of every supported carrier.  Types come first
because the declarations of libllama refer to them.
"""

from __future__ import annotations

CDEF = """
enum ggml_type {
    GGML_TYPE_F32     = 0,
    GGML_TYPE_F16     = 1,
    GGML_TYPE_Q4_0    = 2,
    GGML_TYPE_Q4_1    = 3,
    GGML_TYPE_Q5_0    = 6,
    GGML_TYPE_Q5_1    = 7,
    GGML_TYPE_Q8_0    = 8,
    GGML_TYPE_Q8_1    = 9,
    GGML_TYPE_Q2_K    = 10,
    GGML_TYPE_Q3_K    = 11,
    GGML_TYPE_Q4_K    = 12,
    GGML_TYPE_Q5_K    = 13,
    GGML_TYPE_Q6_K    = 14,
    GGML_TYPE_Q8_K    = 15,
    GGML_TYPE_IQ2_XXS = 16,
    GGML_TYPE_IQ2_XS  = 17,
    GGML_TYPE_IQ3_XXS = 18,
    GGML_TYPE_IQ1_S   = 19,
    GGML_TYPE_IQ4_NL  = 20,
    GGML_TYPE_IQ3_S   = 21,
    GGML_TYPE_IQ2_S   = 22,
    GGML_TYPE_IQ4_XS  = 23,
    GGML_TYPE_I8      = 24,
    GGML_TYPE_I16     = 25,
    GGML_TYPE_I32     = 26,
    GGML_TYPE_I64     = 27,
    GGML_TYPE_F64     = 28,
    GGML_TYPE_IQ1_M   = 29,
    GGML_TYPE_BF16    = 30,
    GGML_TYPE_TQ1_0   = 34,
    GGML_TYPE_TQ2_0   = 35,
    GGML_TYPE_MXFP4   = 39,
    GGML_TYPE_NVFP4   = 40,
    GGML_TYPE_Q1_0    = 41,
    GGML_TYPE_Q2_0    = 42,
    GGML_TYPE_COUNT   = 43
};

enum ggml_log_level {
    GGML_LOG_LEVEL_NONE  = 0,
    GGML_LOG_LEVEL_DEBUG = 1,
    GGML_LOG_LEVEL_INFO  = 2,
    GGML_LOG_LEVEL_WARN  = 3,
    GGML_LOG_LEVEL_ERROR = 4,
    GGML_LOG_LEVEL_CONT  = 5
};

enum ggml_status {
    GGML_STATUS_ALLOC_FAILED = -2,
    GGML_STATUS_FAILED       = -1,
    GGML_STATUS_SUCCESS      = 0,
    GGML_STATUS_ABORTED      = 1
};

enum ggml_prec {
    GGML_PREC_F32 = 10
};

enum ggml_backend_dev_type {
    GGML_BACKEND_DEVICE_TYPE_CPU,
    GGML_BACKEND_DEVICE_TYPE_GPU,
    GGML_BACKEND_DEVICE_TYPE_IGPU,
    GGML_BACKEND_DEVICE_TYPE_ACCEL,
    GGML_BACKEND_DEVICE_TYPE_META
};

/* Up to its sources: tensors are made and freed by ggml, and nothing behind those is read. */
struct ggml_tensor {
    enum ggml_type               type;
    struct ggml_backend_buffer * buffer;
    int64_t                      ne[4];
    size_t                       nb[4];
    int                          op;
    int32_t                      op_params[16];
    int32_t                      flags;
    struct ggml_tensor         * src[10];
};
struct ggml_type_traits {
    const char * type_name;
    int64_t      blck_size;
    int64_t      blck_size_interleave;
    size_t       type_size;
    bool         is_quantized;
    void      (* to_float)(const void * x, float * y, int64_t k);
    void      (* from_float_ref)(const float * x, void * y, int64_t k);
};
struct ggml_context;
struct ggml_cgraph;
struct ggml_gallocr;
typedef struct ggml_backend_buffer_type * ggml_backend_buffer_type_t;
typedef struct ggml_backend_buffer      * ggml_backend_buffer_t;
typedef struct ggml_backend             * ggml_backend_t;
typedef struct ggml_backend_reg         * ggml_backend_reg_t;
typedef struct ggml_backend_device      * ggml_backend_dev_t;

typedef void (*ggml_log_callback)(enum ggml_log_level level, const char * text, void * user_data);
typedef bool (*ggml_abort_callback)(void * data);
typedef void (*ggml_backend_set_n_threads_t)(ggml_backend_t backend, int n_threads);
typedef void (*ggml_backend_set_abort_callback_t)(ggml_backend_t backend,
                                                  ggml_abort_callback abort_callback,
                                                  void * abort_callback_data);
typedef void (*ggml_custom_op_t)(struct ggml_tensor * dst, int ith, int nth, void * userdata);
typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor * t, bool ask,
                                                 void * user_data);

struct ggml_init_params {
    size_t mem_size;
    void * mem_buffer;
    bool   no_alloc;
};

const char * ggml_version(void);
const char * ggml_commit(void);
size_t       ggml_type_size(enum ggml_type type);
int64_t      ggml_blck_size(enum ggml_type type);
const char * ggml_type_name(enum ggml_type type);
const struct ggml_type_traits * ggml_get_type_traits(enum ggml_type type);
size_t       ggml_quantize_chunk(enum ggml_type type, const float * src, void * dst, int64_t start,
                                 int64_t nrows, int64_t n_per_row, const float * imatrix);
bool         ggml_validate_row_data(enum ggml_type type, const void * data, size_t nbytes);

struct ggml_context * ggml_init(struct ggml_init_params params);
void                  ggml_free(struct ggml_context * ctx);
bool                  ggml_get_no_alloc(struct ggml_context * ctx);
void                  ggml_set_no_alloc(struct ggml_context * ctx, bool no_alloc);
size_t                ggml_tensor_overhead(void);
size_t                ggml_graph_overhead(void);
struct ggml_tensor *  ggml_new_tensor_2d(struct ggml_context * ctx, enum ggml_type type,
                                         int64_t ne0, int64_t ne1);
struct ggml_tensor *  ggml_mul_mat(struct ggml_context * ctx, struct ggml_tensor * a,
                                   struct ggml_tensor * b);
struct ggml_cgraph *  ggml_new_graph(struct ggml_context * ctx);
size_t                ggml_graph_overhead_custom(size_t size, bool grads);
struct ggml_cgraph *  ggml_new_graph_custom(struct ggml_context * ctx, size_t size, bool grads);
void                  ggml_build_forward_expand(struct ggml_cgraph * cgraph,
                                                struct ggml_tensor * tensor);
struct ggml_tensor *  ggml_new_tensor_4d(struct ggml_context * ctx, enum ggml_type type,
                                         int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
void                  ggml_set_input(struct ggml_tensor * tensor);
void                  ggml_set_output(struct ggml_tensor * tensor);
bool                  ggml_is_contiguous(const struct ggml_tensor * tensor);
size_t                ggml_nbytes(const struct ggml_tensor * tensor);
void *                ggml_get_data(const struct ggml_tensor * tensor);
const char *          ggml_op_desc(const struct ggml_tensor * tensor);
const char *          ggml_get_name(const struct ggml_tensor * tensor);
bool                  ggml_prec_set_acc(struct ggml_tensor * a, enum ggml_prec prec);

struct ggml_tensor * ggml_add(struct ggml_context * ctx, struct ggml_tensor * a,
                              struct ggml_tensor * b);
struct ggml_tensor * ggml_mul(struct ggml_context * ctx, struct ggml_tensor * a,
                              struct ggml_tensor * b);
struct ggml_tensor * ggml_div(struct ggml_context * ctx, struct ggml_tensor * a,
                              struct ggml_tensor * b);
struct ggml_tensor * ggml_sqr(struct ggml_context * ctx, struct ggml_tensor * a);
struct ggml_tensor * ggml_scale_bias(struct ggml_context * ctx, struct ggml_tensor * a, float s,
                                     float b);
struct ggml_tensor * ggml_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
struct ggml_tensor * ggml_relu(struct ggml_context * ctx, struct ggml_tensor * a);
struct ggml_tensor * ggml_silu(struct ggml_context * ctx, struct ggml_tensor * a);
struct ggml_tensor * ggml_gelu_erf(struct ggml_context * ctx, struct ggml_tensor * a);
struct ggml_tensor * ggml_swiglu_swapped(struct ggml_context * ctx, struct ggml_tensor * a);
struct ggml_tensor * ggml_soft_max_ext(struct ggml_context * ctx, struct ggml_tensor * a,
                                       struct ggml_tensor * mask, float scale, float max_bias);
struct ggml_tensor * ggml_flash_attn_ext(struct ggml_context * ctx, struct ggml_tensor * q,
                                         struct ggml_tensor * k, struct ggml_tensor * v,
                                         struct ggml_tensor * mask, float scale, float max_bias,
                                         float logit_softcap);
struct ggml_tensor * ggml_permute(struct ggml_context * ctx, struct ggml_tensor * a, int axis0,
                                  int axis1, int axis2, int axis3);
struct ggml_tensor * ggml_cont(struct ggml_context * ctx, struct ggml_tensor * a);
struct ggml_tensor * ggml_reshape_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
                                     int64_t ne1, int64_t ne2, int64_t ne3);
struct ggml_tensor * ggml_view_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
                                  int64_t ne1, int64_t ne2, int64_t ne3, size_t nb1, size_t nb2,
                                  size_t nb3, size_t offset);
struct ggml_tensor * ggml_pad(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1,
                              int p2, int p3);
struct ggml_tensor * ggml_conv_2d_dw_direct(struct ggml_context * ctx, struct ggml_tensor * a,
                                            struct ggml_tensor * b, int stride0, int stride1,
                                            int pad0, int pad1, int dilation0, int dilation1);

struct ggml_tensor * ggml_custom_4d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0,
                                    int64_t ne1, int64_t ne2, int64_t ne3,
                                    struct ggml_tensor ** args, int n_args, ggml_custom_op_t fun,
                                    int n_tasks, void * userdata);

struct ggml_gallocr * ggml_gallocr_new(ggml_backend_buffer_type_t buft);
void                  ggml_gallocr_free(struct ggml_gallocr * galloc);
bool                  ggml_gallocr_reserve(struct ggml_gallocr * galloc,
                                           struct ggml_cgraph * graph);
bool                  ggml_gallocr_alloc_graph(struct ggml_gallocr * galloc,
                                               struct ggml_cgraph * graph);
size_t                ggml_gallocr_get_buffer_size(struct ggml_gallocr * galloc, int buffer_id);

size_t                     ggml_backend_reg_count(void);
size_t                     ggml_backend_dev_count(void);
ggml_backend_dev_t         ggml_backend_dev_get(size_t index);
ggml_backend_dev_t         ggml_backend_dev_by_name(const char * name);
const char *               ggml_backend_dev_name(ggml_backend_dev_t device);
const char *               ggml_backend_dev_description(ggml_backend_dev_t device);
void                       ggml_backend_dev_memory(ggml_backend_dev_t device, size_t * free,
                                                   size_t * total);
enum ggml_backend_dev_type ggml_backend_dev_type(ggml_backend_dev_t device);
void                       ggml_backend_load_all_from_path(const char * dir_path);
ggml_backend_t             ggml_backend_init_by_type(enum ggml_backend_dev_type type,
                                                     const char * params);
void                       ggml_backend_free(ggml_backend_t backend);
ggml_backend_buffer_t      ggml_backend_alloc_ctx_tensors(struct ggml_context * ctx,
                                                          ggml_backend_t backend);
ggml_backend_dev_t         ggml_backend_dev_by_type(enum ggml_backend_dev_type type);
ggml_backend_t             ggml_backend_dev_init(ggml_backend_dev_t device, const char * params);
bool                       ggml_backend_dev_supports_op(ggml_backend_dev_t device,
                                                        const struct ggml_tensor * op);
ggml_backend_buffer_t      ggml_backend_cpu_buffer_from_ptr(void * ptr, size_t size);
ggml_backend_reg_t         ggml_backend_dev_backend_reg(ggml_backend_dev_t device);
void *                     ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg,
                                                             const char * name);
ggml_backend_buffer_type_t ggml_backend_get_default_buffer_type(ggml_backend_t backend);
enum ggml_status           ggml_backend_tensor_alloc(ggml_backend_buffer_t buffer,
                                                     struct ggml_tensor * tensor, void * addr);
void                       ggml_backend_buffer_free(ggml_backend_buffer_t buffer);
void                       ggml_backend_tensor_set(struct ggml_tensor * tensor, const void * data,
                                                   size_t offset, size_t size);
void                       ggml_backend_tensor_get(const struct ggml_tensor * tensor, void * data,
                                                   size_t offset, size_t size);
enum ggml_status           ggml_backend_graph_compute(ggml_backend_t backend,
                                                      struct ggml_cgraph * cgraph);
"""
