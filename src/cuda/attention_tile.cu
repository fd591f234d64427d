/* FLASH_ATTN_EXT with tensor cores: F16 keys and values, heads of 64 or 128, many queries.
 *
 * A block takes ROWS rows of one K/V head: row m is head m % group of its group, query m / group,
 * so that the heads of a group share what is loaded. It meets the keys in tiles of KEYS. Each of
 * its warps has 16 rows: scores = q k^T by tensor cores into shared memory, two lanes a row turn
 * them into probabilities, and these times v are added up in fragments. The fragments are scaled
 * down, through shared memory, only when a row has met a larger score.
 *
 * Tiles in which no key is seen by any row are skipped. A key that no row of the block sees has its
 * value set to zero: the cell behind it may hold anything, also NaN. */
#include <mma.h>

#include "cuda/attention.h"

using namespace nvcuda;

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = 16 * WARPS, KEYS = 32, LEAST_ROWS = 32 };
enum { MANY_QUERIES = 16 };

/* Shared memory; every part begins at a multiple of 32 bytes, as do the tiles in it, and rows are
 * a little longer than they need be, so that lanes meet in fewer banks. */
template <int D> struct Shared {
    enum { LD = D + 8, LD_S = KEYS + 4, LD_P = KEYS + 8, LD_O = D + 4 };
    uint16_t q[ROWS * LD], k[KEYS * LD], v[KEYS * LD], p[ROWS * LD_P];
    float s[ROWS * LD_S], o[ROWS * LD_O], inv[ROWS];
    int open[WARPS][KEYS];
};

HD uint16_t clamped_half(float f) {
    return f32_to_f16(f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f);
}

static __device__ __forceinline__ const half *halves(const uint16_t *p) {
    return (const half *)(const void *)p;
}

/* Which keys of the tile some of the warp's rows see. Lane: key. */
static __device__ __forceinline__ bool sees(const Attention &at, int64_t m0, int64_t n_rows,
                                            int64_t first, int64_t group, int64_t s, int64_t key) {
    if (key >= at.k.ne[1]) return false;
    if (!at.mask.data) return m0 < n_rows;
    for (int64_t m = m0; m < m0 + 16 && m < n_rows; m++) {
        const Row from = {m / group, (first + m % group) % at.mask.ne[2], s % at.mask.ne[3]};
        const char *p = row_data(at.mask, from) + (size_t)key * at.mask.nb[0];
        if (load_plain(at.mask.type, p) != -INFINITY) return true;
    }
    return false;
}

/* grid: x tiles of rows, y K/V heads, z sequences */
template <int D> static __global__ void attention_tile_kernel(Attention at) {
    typedef Shared<D> S;
    CUDA_DYNAMIC_SHARED(S, sh);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t hk = blockIdx.y, s = blockIdx.z, t = at.k.ne[1];
    const int64_t first = first_head(at, hk), group = first_head(at, hk + 1) - first;
    const int64_t n_rows_all = at.q.ne[1] * group, m0 = (int64_t)blockIdx.x * ROWS,
                  mw = m0 + warp * 16;
    const Row kv = {0, hk, s};
    const char *k_head = row_data(at.k, kv), *v_head = row_data(at.v, kv);
    uint16_t *q_mine = sh->q + warp * 16 * S::LD, *p_mine = sh->p + warp * 16 * S::LD_P;
    float *s_mine = sh->s + warp * 16 * S::LD_S, *o_mine = sh->o + warp * 16 * S::LD_O;

    for (int r = 0; r < 16; r++) {
        const int64_t m = mw + r;
        const Row from = {m / group, first + m % group, s};
        const char *x = row_data(at.q, from);
        for (int i = lane; i < D; i += 32)
            q_mine[r * S::LD + i] =
                m < n_rows_all
                    ? clamped_half(load_plain(SHEAF_TYPE_F32, x + (size_t)i * at.q.nb[0]))
                    : 0;
    }

    /* the row of this lane (with its neighbour) */
    const int r = lane / 2, side = lane % 2 * (KEYS / 2);
    const int64_t m = mw + r, head = first + m % group, query = m / group;
    const float slope = alibi_slope(at.max_bias, at.base + head, at.n_head);
    const char *mask = NULL;
    if (at.mask.data && m < n_rows_all) {
        const Row from = {query, head % at.mask.ne[2], s % at.mask.ne[3]};
        mask = row_data(at.mask, from);
    }
    float max = -INFINITY, sum = 0.0f;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> out[D / 16];
#pragma unroll
    for (int i = 0; i < D / 16; i++) wmma::fill_fragment(out[i], 0.0f);

    for (int64_t t0 = 0; t0 < t; t0 += KEYS) {
        __syncthreads(); /* the tile before has been used */
        sh->open[warp][lane] = sees(at, mw, n_rows_all, first, group, s, t0 + lane);
        __syncthreads(); /* it is known which keys are seen */
        bool open = false;
        for (int w = 0; w < WARPS; w++) open = open || sh->open[w][lane];
        if (warp_max(open ? 1.0f : 0.0f) == 0.0f) continue; /* the same for every warp */
        for (int i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
            const int row = i / (D / 8), piece = i % (D / 8);
            uint4 x = {0, 0, 0, 0}, y = {0, 0, 0, 0};
            bool wanted = false;
            for (int w = 0; w < WARPS; w++) wanted = wanted || sh->open[w][row];
            if (wanted) { /* then it is a key of the head */
                x = ((const uint4 *)(const void *)(k_head +
                                                   (size_t)(t0 + row) * at.k.nb[1]))[piece];
                y = ((const uint4 *)(const void *)(v_head +
                                                   (size_t)(t0 + row) * at.v.nb[1]))[piece];
            }
            *(uint4 *)(void *)(sh->k + row * S::LD + piece * 8) = x;
            *(uint4 *)(void *)(sh->v + row * S::LD + piece * 8) = y;
        }
        __syncthreads(); /* the tile is there */

        wmma::fragment<wmma::accumulator, 16, 16, 16, float> scores[KEYS / 16];
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) wmma::fill_fragment(scores[j], 0.0f);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
            wmma::load_matrix_sync(a, halves(q_mine + i * 16), S::LD);
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
                wmma::load_matrix_sync(b, halves(sh->k + j * 16 * S::LD + i * 16), S::LD);
                wmma::mma_sync(scores[j], a, b, scores[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++)
            wmma::store_matrix_sync(s_mine + j * 16, scores[j], S::LD_S, wmma::mem_row_major);
        __syncwarp(); /* the scores are there */

        float x[KEYS / 2], best = -INFINITY;
#pragma unroll
        for (int j = 0; j < KEYS / 2; j++) {
            const int64_t key = t0 + side + j;
            float v = s_mine[r * S::LD_S + side + j] * at.scale;
            if (at.softcap != 0.0f) v = at.softcap * tanhf(v / at.softcap);
            if (key >= t || m >= n_rows_all) {
                v = -INFINITY;
            } else if (mask) {
                const float b = load_plain(at.mask.type, mask + (size_t)key * at.mask.nb[0]);
                v = b == -INFINITY ? -INFINITY : v + slope * b;
            }
            x[j] = v;
            best = fmaxf(best, v);
        }
        best = fmaxf(best, __shfl_xor_sync(FULL_WARP, best, 1));
        float shrink = 1.0f, add = 0.0f;
        if (best > max) {
            shrink = expf(max - best); /* 0 at first */
            max = best;
        }
        const float from = max == -INFINITY ? 0.0f : max;
#pragma unroll
        for (int j = 0; j < KEYS / 2; j++) {
            const float e = expf(x[j] - from);
            add += e;
            p_mine[r * S::LD_P + side + j] = f32_to_f16(e);
        }
        sum = fmaf(sum, shrink, add + __shfl_xor_sync(FULL_WARP, add, 1));

        if (warp_max(shrink != 1.0f ? 1.0f : 0.0f) != 0.0f) {
#pragma unroll
            for (int i = 0; i < D / 16; i++)
                wmma::store_matrix_sync(o_mine + i * 16, out[i], S::LD_O, wmma::mem_row_major);
            __syncwarp();
            for (int i = lane % 2; i < D; i += 2) o_mine[r * S::LD_O + i] *= shrink;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < D / 16; i++)
                wmma::load_matrix_sync(out[i], o_mine + i * 16, S::LD_O, wmma::mem_row_major);
        }
        __syncwarp(); /* p is whole */
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
            wmma::load_matrix_sync(a, halves(p_mine + j * 16), S::LD_P);
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
                wmma::load_matrix_sync(b, halves(sh->v + j * 16 * S::LD + i * 16), S::LD);
                wmma::mma_sync(out[i], a, b, out[i]);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wmma::store_matrix_sync(o_mine + i * 16, out[i], S::LD_O, wmma::mem_row_major);
    if (lane % 2 == 0 && m < n_rows_all)
        sh->inv[warp * 16 + r] = attention_factor(at, head, max, sum);
    __syncwarp();
    for (int i = 0; i < 16 && mw + i < n_rows_all; i++) {
        const Row to = {first + (mw + i) % group, (mw + i) / group, s};
        float *y = (float *)(void *)row_data(at.dst, to);
        for (int j = lane; j < D; j += 32) y[j] = o_mine[i * S::LD_O + j] * sh->inv[warp * 16 + i];
    }
}

/* ---- launch ---- */

static bool in_sixteens(const View &v) {
    return ((uintptr_t)v.data | v.nb[1] | v.nb[2] | v.nb[3]) % 16 == 0;
}

template <int D> static bool launch(struct sheaf__cuda_queue *q, const struct Attention *at) {
    const int64_t rows = at->q.ne[1] * at->group;
    const dim3 grid(sheaf__cuda_blocks(rows, ROWS), (unsigned)at->k.ne[2], (unsigned)at->q.ne[3]);
    /* more than the 48 KiB that need no asking; every device from 8.0 on has 99 */
    if (cudaFuncSetAttribute(attention_tile_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(Shared<D>))) {
        cudaGetLastError();
        return false;
    }
    CUDA_LAUNCH((attention_tile_kernel<D>), grid, THREADS, sizeof(Shared<D>), q->stream, *at);
    return true;
}

bool sheaf__cuda_attention_tiles(struct sheaf__cuda_queue *q, const struct Attention *at) {
    const View &k = at->k, &v = at->v;
    if (k.type != SHEAF_TYPE_F16 || v.type != SHEAF_TYPE_F16 || k.ne[0] != v.ne[0]) return false;
    if (k.ne[2] < 1 || k.ne[2] > 65535 || at->q.ne[3] > 65535) return false;
    const int64_t rows = at->q.ne[1] * at->group;
    const int64_t blocks = (rows + ROWS - 1) / ROWS * k.ne[2] * at->q.ne[3];
    if (rows < LEAST_ROWS) return false;
    /* a block has all keys: with fewer blocks than the device wants, parts of the keys are faster */
    if (at->q.ne[1] < MANY_QUERIES && blocks * 2 < q->device->n_sm) return false;
    if (!in_sixteens(k) || !in_sixteens(v)) return false;
    return k.ne[0] == 64 ? launch<64>(q, at) : k.ne[0] == 128 ? launch<128>(q, at) : false;
}
