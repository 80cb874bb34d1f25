// Products of float32 rows with float32 weights, computed in 16-bit integers.
//
// Both are quantised by row and block of BLOCK along the row: weights to 12 bits, so that each keeps
// more than the 8 bits of a Q8_0 weight, and activations to 14.  A sum of BLOCK products then stays
// below 128 * 8191 * 2047 < 2^31.  The instruction that multiplies pairs and adds them (VNNI) does
// twice the work of a float32 one in the same time; without it there is nothing to gain.

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DOT _mm256_dpwssd_epi32
#elif defined(__AVXVNNI__)
#define DOT _mm256_dpwssd_avx_epi32
#else
#error "this processor has no VNNI instructions"
#endif

#define BLOCK 128       // of a row; a multiple of STEP
#define STEP 16         // rows are padded with zeros to a multiple of it
#define X_MOST 8191.0f  // of a quantised activation
#define W_MOST 2047.0f
#define TILE_ROWS 6     // rows and columns of the result that stay in registers
#define TILE_COLUMNS 16
#define ROWS_AT_ONCE 96 // stay in the second cache while all weights pass

static int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The scale of a block, whose numbers divided by it are at most `most`.
static float block_scale(const float *x, int64_t n, float most) {
    __m256 largest = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + i)));
    float lanes[8], result = 0;
    _mm256_storeu_ps(lanes, largest);
    for (; i < n; i++) result = __builtin_fmaxf(result, __builtin_fabsf(x[i]));
    for (int lane = 0; lane < 8; lane++) result = __builtin_fmaxf(result, lanes[lane]);
    return result / most;
}

// 16 numbers from x, of which n are there and the others 0, as integers.
static __m256i quantised_step(const float *x, int64_t n, __m256 inverse) {
    float last[STEP] = {0};
    if (n < STEP) {
        memcpy(last, x, (size_t)n * sizeof(float));
        x = last;
    }
    __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
}

static __m256 inverse_of(float scale) { return _mm256_set1_ps(scale > 0 ? 1 / scale : 0); }

// Rows of activations: q is [n_rows rounded up to TILE_ROWS][n_in rounded up to STEP], zeroed before;
// scales is [the same rows][blocks].
void phi4mm_quantise_rows(const float *x, int64_t n_rows, int64_t n_in, int16_t *q, float *scales) {
    int64_t length = rounded_up(n_in, STEP), n_blocks = (n_in + BLOCK - 1) / BLOCK;
    for (int64_t row = 0; row < n_rows; row++, x += n_in, q += length)
        for (int64_t block = 0; block < n_blocks; block++) {
            int64_t start = block * BLOCK, stop = start + BLOCK < n_in ? start + BLOCK : n_in;
            float scale = block_scale(x + start, stop - start, X_MOST);
            scales[row * n_blocks + block] = scale;
            for (int64_t i = start; i < stop; i += STEP)
                _mm256_storeu_si256((__m256i *)(q + i), quantised_step(x + i, stop - i, inverse_of(scale)));
        }
}

// A column of a panel: pairs of the weight's row lie TILE_COLUMNS pairs apart.
static void pack_column(const float *w, int64_t n_in, int32_t *pairs, float *scales) {
    for (int64_t start = 0; start < n_in; start += BLOCK, scales += TILE_COLUMNS) {
        int64_t stop = start + BLOCK < n_in ? start + BLOCK : n_in;
        float scale = *scales = block_scale(w + start, stop - start, W_MOST);
        for (int64_t i = start; i < stop; i += STEP) {
            int32_t step[STEP / 2];
            _mm256_storeu_si256((__m256i *)step, quantised_step(w + i, stop - i, inverse_of(scale)));
            for (int pair = 0; pair < STEP / 2; pair++, pairs += TILE_COLUMNS) *pairs = step[pair];
        }
    }
}

static void tile(const int16_t *x, const float *x_scales, const int16_t *w, const float *w_scales,
                 int64_t length, int64_t n_blocks, __m256 result[TILE_ROWS][2]) {
    for (int row = 0; row < TILE_ROWS; row++) result[row][0] = result[row][1] = _mm256_setzero_ps();
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t start = block * BLOCK, stop = start + BLOCK < length ? start + BLOCK : length;
        __m256i sums[TILE_ROWS][2];
#pragma GCC unroll 6
        for (int row = 0; row < TILE_ROWS; row++) sums[row][0] = sums[row][1] = _mm256_setzero_si256();
        for (int64_t i = start; i < stop; i += 2, w += 2 * TILE_COLUMNS) {
            __m256i low = _mm256_loadu_si256((const __m256i *)w);
            __m256i high = _mm256_loadu_si256((const __m256i *)(w + TILE_COLUMNS));
#pragma GCC unroll 6
            for (int row = 0; row < TILE_ROWS; row++) {
                int32_t pair;
                memcpy(&pair, x + row * length + i, sizeof pair);
                sums[row][0] = DOT(sums[row][0], _mm256_set1_epi32(pair), low);
                sums[row][1] = DOT(sums[row][1], _mm256_set1_epi32(pair), high);
            }
        }
        __m256 low = _mm256_loadu_ps(w_scales + block * TILE_COLUMNS);
        __m256 high = _mm256_loadu_ps(w_scales + block * TILE_COLUMNS + 8);
#pragma GCC unroll 6
        for (int row = 0; row < TILE_ROWS; row++) {
            __m256 scale = _mm256_set1_ps(x_scales[row * n_blocks + block]);
            result[row][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[row][0]), _mm256_mul_ps(low, scale), result[row][0]);
            result[row][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[row][1]), _mm256_mul_ps(high, scale), result[row][1]);
        }
    }
}

// out[row][column] = sum of x[row] times w[column], for quantised rows and n_out weights of n_in
// numbers that lie `stride` apart.  Scratch: panels is [n_out rounded up to TILE_COLUMNS][n_in rounded
// up to STEP], panel_scales [the same columns][blocks].
void phi4mm_multiply(const int16_t *x, const float *x_scales, int64_t n_rows, int64_t n_in, const float *w,
                     int64_t stride, int64_t n_out, float *out, int64_t out_stride, int16_t *panels,
                     float *panel_scales) {
    int64_t length = rounded_up(n_in, STEP), n_blocks = (n_in + BLOCK - 1) / BLOCK;
    int64_t n_columns = rounded_up(n_out, TILE_COLUMNS);
    for (int64_t column = 0; column < n_columns; column++) {
        int64_t panel = column / TILE_COLUMNS, place = column % TILE_COLUMNS;
        int32_t *pairs = (int32_t *)(panels + panel * TILE_COLUMNS * length) + place;
        float *scales = panel_scales + panel * TILE_COLUMNS * n_blocks + place;
        if (column < n_out) pack_column(w + column * stride, n_in, pairs, scales);
        else
            for (int64_t block = 0; block < n_blocks; block++) scales[block * TILE_COLUMNS] = 0;
    }
    for (int64_t first = 0; first < n_rows; first += ROWS_AT_ONCE) {
        int64_t last = first + ROWS_AT_ONCE < n_rows ? first + ROWS_AT_ONCE : n_rows;
        for (int64_t column = 0; column < n_out; column += TILE_COLUMNS)
            for (int64_t row = first; row < last; row += TILE_ROWS) {
                __m256 result[TILE_ROWS][2];
                tile(x + row * length, x_scales + row * n_blocks, panels + column * length,
                     panel_scales + column * n_blocks, length, n_blocks, result);
                int64_t n = n_out - column < TILE_COLUMNS ? n_out - column : TILE_COLUMNS;
                for (int64_t r = row; r < last && r < row + TILE_ROWS; r++)
                    memcpy(out + r * out_stride + column, result[r - row], (size_t)n * sizeof(float));
            }
    }
}
