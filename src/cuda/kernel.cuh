/* What kernels share: how they are launched, tensors as they see them, elements of every type.
 *
 * Kernels are built twice: by nvcc for the module, and by the host compiler against tests/emulators/cuda,
 * which runs the same functions on the CPU. So kernels keep to what both know: HD functions,
 * CUDA_LAUNCH, CUDA_DYNAMIC_SHARED and the handful of intrinsics that the emulation has.
 *
 * Everything is compiled without contraction of products (-fmad=false): a conversion gives the bits
 * that the library gives on the host. Where a fused product is wanted it is written, fmaf. */
#ifndef SHEAF_CUDA_KERNEL_CUH
#define SHEAF_CUDA_KERNEL_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/sum.h"
#include "quant/blocks.h"
#include "sheaf/tensor.h"

#define HD static __host__ __device__ __forceinline__
/* For long functions: nvcc compiles them once instead of at every call. */
#ifdef SHEAF_CUDA_EMULATED
#define HD_CALLED static __attribute__((noinline))
#else
#define HD_CALLED static __host__ __device__ __noinline__
#endif

#ifndef SHEAF_CUDA_EMULATED
/* PLAIN: the kernel has no barrier, shuffle or shared memory. */
#define CUDA_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
    do {                                                                                           \
        auto fn_ = kernel;                                                                         \
        fn_<<<grid, block, shared, stream>>>(__VA_ARGS__);                                         \
    } while (0)
#define CUDA_LAUNCH_PLAIN CUDA_LAUNCH
/* Of a kernel that calls previous_done before it touches what the kernel before it writes or reads:
 * with `ahead` (capability 9.0 on) its blocks may start while that one's last blocks run. */
#define CUDA_LAUNCH_AHEAD(ahead, kernel, grid, block, shared, on, ...)                             \
    do {                                                                                           \
        cudaLaunchAttribute early_;                                                                \
        cudaLaunchConfig_t config_;                                                                \
        memset((void *)&early_, 0, sizeof early_);                                                 \
        memset((void *)&config_, 0, sizeof config_);                                               \
        early_.id = cudaLaunchAttributeProgrammaticStreamSerialization;                            \
        early_.val.programmaticStreamSerializationAllowed = 1;                                     \
        config_.gridDim = grid;                                                                    \
        config_.blockDim = block;                                                                  \
        config_.dynamicSmemBytes = shared;                                                         \
        config_.stream = on;                                                                       \
        config_.attrs = &early_;                                                                   \
        config_.numAttrs = (ahead) ? 1 : 0;                                                        \
        auto fn_ = kernel;                                                                         \
        cudaLaunchKernelEx(&config_, fn_, __VA_ARGS__);                                            \
    } while (0)
#define CUDA_LAUNCH_AHEAD_PLAIN CUDA_LAUNCH_AHEAD
#define CUDA_DYNAMIC_SHARED(type, name)                                                            \
    extern __shared__ __align__(128) unsigned char dynamic_shared_[];                              \
    type *name = (type *)dynamic_shared_
#endif

/* ---- starting ahead ----
 *
 * A kernel launched ahead waits in previous_done until the one before it is done with all its
 * memory; every block that touches memory which kernels write calls it. As that one waited
 * likewise, or was launched as usual, all before it are done, too. Before the call, weights may be
 * read.
 *
 * A kernel lets the next one start before it waits itself: the next one's blocks start only when all of
 * this one's have, so none is kept out, and its wait ends only when this one, hence all before it, are
 * done. So several kernels stand ready, and the next product fetches its weights while they run. */

static __device__ __forceinline__ void previous_done() {
#ifdef SHEAF_CUDA_EMULATED
    emu_previous_done();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The next kernel's blocks may start as soon as all of this one's have said so. */
static __device__ __forceinline__ void next_may_start() {
#if !defined(SHEAF_CUDA_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/* Bytes that a kernel is about to read, to the L2 cache; p and bytes multiples of 16, at most 128. On
 * 9.0 a single request brings all of them; before, one may bring a sector of 32 bytes. */
static __device__ __forceinline__ void prefetch(const void *p, unsigned bytes) {
#if defined(SHEAF_CUDA_EMULATED)
    emu_prefetch(p, bytes);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#else
    for (unsigned i = 0; i < bytes; i += 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)p + i));
#endif
}

/* The 32 bytes at p, a multiple of 32, to the L2 cache: a request of each lane, where a warp's requests
 * by `prefetch` go one after another. Reads that follow see a value that is written there later. */
static __device__ __forceinline__ void prefetch_sector(const void *p) {
#ifdef SHEAF_CUDA_EMULATED
    prefetch(p, 1); /* a row may end before its sector */
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

/* Before previous_done, memory that is read or written behind it: its address is translated by then. */
static __device__ __forceinline__ void look_up(const void *p) { prefetch_sector(p); }

/* Before previous_done, a word that a kernel before this one may write: it is read again behind that call. */
static __device__ __forceinline__ int guess_of(const int *p) {
#ifdef SHEAF_CUDA_EMULATED
    return emu_guess(p);
#else
    return *(const volatile int *)p; /* the later read is one of its own */
#endif
}

/* ---- copies to shared memory that run on ---- */

/* An address in shared memory, to which bytes may be added: on the device 32 bits. */
#ifdef SHEAF_CUDA_EMULATED
typedef char *SharedAt;
HD SharedAt shared_at(void *p) { return (SharedAt)p; }
#else
typedef unsigned SharedAt;
static __device__ __forceinline__ SharedAt shared_at(void *p) {
    return (SharedAt)__cvta_generic_to_shared(p);
}
#endif

/* BYTES (4, 8 or 16), both addresses multiples of them. */
template <int BYTES>
static __device__ __forceinline__ void copy_ahead(SharedAt to, const void *global) {
#ifdef SHEAF_CUDA_EMULATED
    emu_copy_ahead(to, global, BYTES);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 /* no copies that run on: at once */
    char *shared = (char *)__cvta_shared_to_generic(to);
    if (BYTES == 16) {
        *(uint4 *)shared = *(const uint4 *)global;
    } else {
        for (int i = 0; i < BYTES; i += 4)
            *(uint32_t *)(shared + i) = *(const uint32_t *)((const char *)global + i);
    }
#else
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(BYTES)
                     : "memory");
    }
#endif
}
template <int BYTES>
static __device__ __forceinline__ void copy_ahead(void *shared, const void *global) {
    copy_ahead<BYTES>(shared_at(shared), global);
}
/* 16 bytes, if they are there: without a branch, around which the compiler would make addresses anew. */
static __device__ __forceinline__ void copy_ahead_if(bool there, SharedAt to, const void *global) {
#if !defined(SHEAF_CUDA_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %2, 0;\n"
                 "@there cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(to),
                 "l"(global), "r"((int)there)
                 : "memory");
#else
    if (there) copy_ahead<16>(to, global);
#endif
}
/* The thread's copies since the last call are a group, which may be empty. */
static __device__ __forceinline__ void copies_begun() {
#ifdef SHEAF_CUDA_EMULATED
    emu_copies_begun();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* All groups but the last RUNNING are there, for the thread that copied. */
template <int RUNNING> static __device__ __forceinline__ void copies_done() {
#ifdef SHEAF_CUDA_EMULATED
    emu_copies_done(RUNNING);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(RUNNING) : "memory");
#endif
}

/* ---- tensors ---- */

struct View {
    char *data;
    int64_t ne[4];
    size_t nb[4];
    int type;
};

HD bool is_dense(const View &v) {
    return v.ne[0] <= 1 || v.nb[0] == (v.type == SHEAF_TYPE_F32 ? sizeof(float) : sizeof(short));
}

/* Do all rows begin at a multiple of 16 bytes? */
HD bool in_sixteens(const View &v) {
    return ((uintptr_t)v.data | v.nb[1] | v.nb[2] | v.nb[3]) % 16 == 0;
}

/* n, not negative, by a divisor. A number below it needs no division, which takes long, and neither does one by 1:
 * decode has rows, columns and matrices of which there is one, and what is repeated often is one element. */
struct Divided {
    int64_t quotient, rest;
};
HD Divided divided(int64_t n, int64_t by) {
    Divided d = {0, n};
    if (n >= by) {
        d.quotient = by == 1 ? n : n / by;
        d.rest = n - d.quotient * by;
    }
    return d;
}

struct Row {
    int64_t i1, i2, i3;
};
HD Row row_at(const int64_t *ne, int64_t row) {
    const Divided matrix = divided(row, ne[1]), s = divided(matrix.quotient, ne[2]);
    const Row r = {matrix.rest, s.rest, s.quotient};
    return r;
}
HD char *row_data(const View &v, const Row &r) {
    return v.data + (size_t)r.i1 * v.nb[1] + (size_t)r.i2 * v.nb[2] + (size_t)r.i3 * v.nb[3];
}
/* The row of v that repeats onto row r of a larger tensor. */
HD char *row_repeat(const View &v, const Row &r) {
    const Row at = {divided(r.i1, v.ne[1]).rest, divided(r.i2, v.ne[2]).rest,
                    divided(r.i3, v.ne[3]).rest};
    return row_data(v, at);
}
HD int64_t n_rows(const View &v) { return v.ne[1] * v.ne[2] * v.ne[3]; }

/* The rows of a tensor in pieces of `size` elements, of which a block takes one after the other. */
struct Pieces {
    int64_t per_row, n;
};
static inline Pieces pieces_of(const View &v, int size) {
    Pieces p;
    p.per_row = (v.ne[0] + size - 1) / size;
    p.n = p.per_row * n_rows(v);
    return p;
}
/* Where piece i lies: its row, and the thread's first element of it. */
struct Piece {
    Row row;
    int64_t first;
};
static __device__ __forceinline__ Piece piece_at(const View &v, const Pieces &pieces, int size,
                                                 int64_t i) {
    const Divided at = divided(i, pieces.per_row);
    const Piece p = {row_at(v.ne, at.quotient), at.rest * size + threadIdx.x};
    return p;
}

/* ---- one value ---- */

HD float f16_to_f32(uint16_t h) {
#ifdef SHEAF_CUDA_EMULATED
    return sheaf__f16_to_f32(h);
#else
    return __half2float(__ushort_as_half(h));
#endif
}
HD uint16_t f32_to_f16(float f) {
#ifdef SHEAF_CUDA_EMULATED
    return sheaf__f32_to_f16(f);
#else
    return __half_as_ushort(__float2half_rn(f));
#endif
}
/* Where F16 cannot hold f, its largest number: an infinity would spoil a whole row of a result. */
HD uint16_t clamped_half(float f) {
    return f32_to_f16(f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f);
}
/* F32, F16 or BF16 at p. */
HD float load_plain(int type, const void *p) {
    if (type == SHEAF_TYPE_F32) return *(const float *)p;
    uint16_t h = *(const uint16_t *)p;
    return type == SHEAF_TYPE_F16 ? f16_to_f32(h) : sheaf__bf16_to_f32(h);
}
HD void store_plain(int type, float f, void *p) {
    if (type == SHEAF_TYPE_F32) {
        *(float *)p = f;
    } else {
        *(uint16_t *)p = type == SHEAF_TYPE_F16 ? f32_to_f16(f) : sheaf__f32_to_bf16(f);
    }
}

/* ---- blocks as words, which lie in shared memory as they did in a row ---- */

/* The 32 bits of high:low that begin `shift` bits, less than 32, from the low end. */
HD uint32_t word_between(uint32_t low, uint32_t high, uint32_t shift) {
#ifdef __CUDA_ARCH__
    return __funnelshift_r(low, high, shift);
#else
    return (uint32_t)(((uint64_t)high << 32 | low) >> shift);
#endif
}
/* sum and four bytes of a, without a sign, times four of b, with one. */
static __device__ __forceinline__ int dp4a_of_bytes(uint32_t a, int b, int sum) {
#ifdef SHEAF_CUDA_EMULATED
    for (int i = 0; i < 4; i++) sum += (int)(a >> 8 * i & 255u) * (int)(int8_t)(b >> 8 * i);
    return sum;
#else
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
#endif
}
/* Words at any byte offset of an array of words, whose lanes take the same path; the last one looks at one word
 * more. */
struct Words {
    const uint32_t *w;
    uint32_t shift;
};
HD Words words_at(const uint32_t *w, int offset) {
    const Words x = {w + ((unsigned)offset >> 2), ((unsigned)offset & 3u) * 8u};
    return x;
}
/* The same, from `bits` of the first byte on, -7 to 7: what is shifted in comes from the bytes beside. */
HD Words bits_at(const uint32_t *w, int offset, int bits) {
    const int first = (int)((unsigned)offset & 3u) * 8 + bits;
    const Words x = {w + ((unsigned)offset >> 2) + (first < 0 ? -1 : 0), (unsigned)first & 31u};
    return x;
}
HD uint32_t word_of(const Words &x, int i) { return word_between(x.w[i], x.w[i + 1], x.shift); }
HD uint32_t word_at(const uint32_t *w, int offset) { return word_of(words_at(w, offset), 0); }
/* The half at an even offset. */
HD float half_at(const uint32_t *w, int offset) {
    return f16_to_f32((uint16_t)(w[(unsigned)offset >> 2] >> ((unsigned)offset & 3u) * 8u));
}

/* ---- blocks: element j of a block, as src/quant/quants.c computes it ---- */

HD int nibble(const uint8_t *qs, int j) { return j < 16 ? qs[j] & 15 : qs[j - 16] >> 4; }
HD int fifth(const uint8_t *qh, int j) { return (qh[j / 8] >> (j % 8) & 1) << 4; }

HD float element(const sheaf__block_q4_0 *b, int j) {
    return f16_to_f32(b->d) * (float)(nibble(b->qs, j) - 8);
}
HD float element(const sheaf__block_q4_1 *b, int j) {
    return f16_to_f32(b->d) * (float)nibble(b->qs, j) + f16_to_f32(b->m);
}
HD float element(const sheaf__block_q5_0 *b, int j) {
    return f16_to_f32(b->d) * (float)((nibble(b->qs, j) | fifth(b->qh, j)) - 16);
}
HD float element(const sheaf__block_q5_1 *b, int j) {
    return f16_to_f32(b->d) * (float)(nibble(b->qs, j) | fifth(b->qh, j)) + f16_to_f32(b->m);
}
HD float element(const sheaf__block_q8_0 *b, int j) { return f16_to_f32(b->d) * (float)b->qs[j]; }
HD float element(const sheaf__block_q4_k *b, int j) {
    int s = j / 32;
    uint8_t scale, min;
    sheaf__k_scale_min(b->scales, s, &scale, &min);
    float ds = f16_to_f32(b->d) * (float)scale, ms = f16_to_f32(b->dmin) * (float)min;
    return ds * (float)(b->qs[s / 2 * 32 + j % 32] >> (s % 2 * 4) & 15) - ms;
}
HD float element(const sheaf__block_q5_k *b, int j) {
    int s = j / 32, l = j % 32;
    uint8_t scale, min;
    sheaf__k_scale_min(b->scales, s, &scale, &min);
    float ds = f16_to_f32(b->d) * (float)scale, ms = f16_to_f32(b->dmin) * (float)min;
    int q = (b->qs[s / 2 * 32 + l] >> (s % 2 * 4) & 15) | (b->qh[l] >> s & 1) << 4;
    return ds * (float)q - ms;
}
HD float element(const sheaf__block_q6_k *b, int j) {
    int t = j / 32, l = j % 32;
    int ql = b->ql[t / 4 * 64 + t % 2 * 32 + l], qh = b->qh[t / 4 * 32 + l];
    int q = (ql >> (t % 4 / 2 * 4) & 15) | (qh >> (t % 4 * 2) & 3) << 4;
    return f16_to_f32(b->d) * (float)b->scales[2 * t + l / 16] * (float)(q - 32);
}

HD float element(const sheaf__block_q2_k *b, int j) {
    const int s = j / 16;
    const float ds = f16_to_f32(b->d) * (float)(b->scales[s] & 15);
    const float ms = f16_to_f32(b->dmin) * (float)(b->scales[s] >> 4);
    return ds * (float)(b->qs[j / 128 * 32 + j % 32] >> (j / 32 % 4 * 2) & 3) - ms;
}
HD float element(const sheaf__block_q3_k *b, int j) {
    const float ds = f16_to_f32(b->d) * (float)sheaf__q3_k_scale(b->scales, j / 16);
    const int q = b->qs[j / 128 * 32 + j % 32] >> (j / 32 % 4 * 2) & 3;
    return ds * (float)(q - (b->hmask[j % 32] >> (j / 32) & 1 ? 0 : 4));
}

/* Sixteen levels as four words of bytes: what a lane keeps in registers. */
struct Levels {
    uint32_t word[4];
};
HD Levels levels_of(bool fp4) {
    const Levels iq4 = {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
    const Levels e2m1 = {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}};
    return fp4 ? e2m1 : iq4;
}
constexpr uint32_t four_levels(const int8_t *l) {
    return (uint32_t)(uint8_t)l[0] | (uint32_t)(uint8_t)l[1] << 8 | (uint32_t)(uint8_t)l[2] << 16 |
           (uint32_t)(uint8_t)l[3] << 24;
}
constexpr int8_t iq4_levels[16] = SHEAF__IQ4_LEVELS, fp4_levels[16] = SHEAF__FP4_LEVELS;
static_assert(
    four_levels(iq4_levels) == 0xbfad9881u && four_levels(iq4_levels + 4) == 0xf6eaddcfu &&
        four_levels(iq4_levels + 8) == 0x26190d01u && four_levels(iq4_levels + 12) == 0x71594535u &&
        four_levels(fp4_levels) == 0x03020100u && four_levels(fp4_levels + 4) == 0x0c080604u &&
        four_levels(fp4_levels + 8) == 0xfdfeff00u && four_levels(fp4_levels + 12) == 0xf4f8fafcu,
    "levels_of holds the tables of quant/quants.h");

HD float level(bool fp4, int i) {
    const Levels l = levels_of(fp4);
    const uint32_t word = i < 8 ? i < 4 ? l.word[0] : l.word[1] : i < 12 ? l.word[2] : l.word[3];
    return (float)(int8_t)(word >> (i % 4 * 8));
}
HD float element(const sheaf__block_iq4_nl *b, int j) {
    return f16_to_f32(b->d) * level(false, nibble(b->qs, j));
}
HD float element(const sheaf__block_iq4_xs *b, int j) {
    const float ds = f16_to_f32(b->d) * (float)sheaf__iq4_xs_scale(b, j / 32);
    return ds * level(false, nibble(b->qs + j / 32 * 16, j % 32));
}
HD float element(const sheaf__block_mxfp4 *b, int j) {
    return sheaf__mxfp4_scale(b->e) * level(true, nibble(b->qs, j));
}

#include "cuda/iq.cuh"

#define BLOCKS_OF(n, name)                                                                         \
    element((const sheaf__block_##name *)(const void *)row + i / (n), (int)(i % (n)))
#define BLOCKS(name)   BLOCKS_OF(SHEAF__QK, name)
#define BLOCKS_K(name) BLOCKS_OF(SHEAF__QK_K, name)

/* Of the types of iq.cuh: a function of its own, or every kernel would have it many times over. */
#ifdef SHEAF_CUDA_EMULATED
static __attribute__((noinline)) float
#else
static __device__ __noinline__ float
#endif
load_by_elements(int type, const char *row, int64_t i) {
    switch (type) {
    case SHEAF_TYPE_NVFP4:
        return BLOCKS_OF(SHEAF__QK_NVFP4, nvfp4);
    case SHEAF_TYPE_Q1_0:
        return BLOCKS_OF(SHEAF__QK1, q1_0);
    case SHEAF_TYPE_Q2_0:
        return BLOCKS_OF(SHEAF__QK2, q2_0);
    case SHEAF_TYPE_TQ1_0:
        return BLOCKS_K(tq1_0);
    case SHEAF_TYPE_TQ2_0:
        return BLOCKS_K(tq2_0);
    case SHEAF_TYPE_IQ2_XXS:
        return BLOCKS_K(iq2_xxs);
    case SHEAF_TYPE_IQ2_XS:
        return BLOCKS_K(iq2_xs);
    case SHEAF_TYPE_IQ2_S:
        return BLOCKS_K(iq2_s);
    case SHEAF_TYPE_IQ3_XXS:
        return BLOCKS_K(iq3_xxs);
    case SHEAF_TYPE_IQ3_S:
        return BLOCKS_K(iq3_s);
    case SHEAF_TYPE_IQ1_S:
        return BLOCKS_K(iq1_s);
    case SHEAF_TYPE_IQ1_M:
        return BLOCKS_K(iq1_m);
    default:
        return 0.0f;
    }
}

/* Element i of a row whose blocks (elements of plain types) lie side by side. */
static __device__ __forceinline__ float load_dense(int type, const char *row, int64_t i) {
    switch (type) {
    case SHEAF_TYPE_F32:
        return ((const float *)(const void *)row)[i];
    case SHEAF_TYPE_F16:
        return f16_to_f32(((const uint16_t *)(const void *)row)[i]);
    case SHEAF_TYPE_BF16:
        return sheaf__bf16_to_f32(((const uint16_t *)(const void *)row)[i]);
    case SHEAF_TYPE_Q4_0:
        return BLOCKS(q4_0);
    case SHEAF_TYPE_Q4_1:
        return BLOCKS(q4_1);
    case SHEAF_TYPE_Q5_0:
        return BLOCKS(q5_0);
    case SHEAF_TYPE_Q5_1:
        return BLOCKS(q5_1);
    case SHEAF_TYPE_Q8_0:
        return BLOCKS(q8_0);
    case SHEAF_TYPE_Q4_K:
        return BLOCKS_K(q4_k);
    case SHEAF_TYPE_Q5_K:
        return BLOCKS_K(q5_k);
    case SHEAF_TYPE_Q6_K:
        return BLOCKS_K(q6_k);
    case SHEAF_TYPE_Q2_K:
        return BLOCKS_K(q2_k);
    case SHEAF_TYPE_Q3_K:
        return BLOCKS_K(q3_k);
    case SHEAF_TYPE_IQ4_NL:
        return BLOCKS(iq4_nl);
    case SHEAF_TYPE_IQ4_XS:
        return BLOCKS_K(iq4_xs);
    case SHEAF_TYPE_MXFP4:
        return BLOCKS(mxfp4);
    default:
        return load_by_elements(type, row, i);
    }
#undef BLOCKS
#undef BLOCKS_K
#undef BLOCKS_OF
}

HD bool is_block_type(int type) {
    return type != SHEAF_TYPE_F32 && type != SHEAF_TYPE_F16 && type != SHEAF_TYPE_BF16;
}

/* Element i of a row of any float or block type; plain types may be strided. */
static __device__ __forceinline__ float load_any(int type, const char *row, size_t nb0, int64_t i) {
    return is_block_type(type) ? load_dense(type, row, i) : load_plain(type, row + (size_t)i * nb0);
}

/* ---- indices: ids of rows and experts come from the model's input and are checked ---- */

/* Where a kernel reports a bad id: the first wins. Pinned host memory, read after the queue. */
struct Fault {
    unsigned long long node; /* the sheaf_tensor whose id it was; 0: none */
    long long id;
};

static __device__ __forceinline__ void report(Fault *fault, uint64_t node, int64_t id) {
    if (atomicCAS(&fault->node, 0ull, (unsigned long long)node) == 0ull)
        *(volatile long long *)&fault->id = id;
}
/* The row that an id names, of the `held` from `base` on of `limit`: -1 if it is not held here. Thread 0 reports an id
 * that names none. */
static __device__ __forceinline__ int64_t held_row(int64_t id, int64_t limit, int64_t base,
                                                   int64_t held, Fault *fault, uint64_t node) {
    const bool bad = id < 0 || id >= limit;
    if (bad && threadIdx.x == 0) report(fault, node, id);
    id -= base;
    return bad || id < 0 || id >= held ? -1 : id;
}

static __device__ __forceinline__ int64_t load_id(const View &ids, int64_t i0, int64_t i1,
                                                  int64_t i2) {
    const char *p =
        ids.data + (size_t)i0 * ids.nb[0] + (size_t)i1 * ids.nb[1] + (size_t)i2 * ids.nb[2];
    return ids.type == SHEAF_TYPE_I64 ? *(const int64_t *)(const void *)p
                                      : *(const int32_t *)(const void *)p;
}

/* Of rows with the same id the last is written. Is the row of id `at`, of n, given up, because a later id is the same
 * or because the id names none of `limit` rows (which thread 0 reports)? Each thread of the block looks at some of the
 * later ids, so the block joins the answers by __syncthreads_or. */
static __device__ __forceinline__ bool is_given_up(const View &ids, const Row &at, int64_t n, int64_t id, int64_t limit,
                                                   Fault *fault, uint64_t node) {
    bool given_up = id < 0 || id >= limit;
    if (given_up && threadIdx.x == 0) report(fault, node, id);
    for (int64_t j = at.i1 + 1 + threadIdx.x; j < n; j += blockDim.x)
        if (load_id(ids, j, at.i2, at.i3) == id) given_up = true;
    return given_up;
}

/* ---- sums over a warp and a block ---- */

#define FULL_WARP 0xffffffffu

static __device__ __forceinline__ float warp_sum(float x) {
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(FULL_WARP, x, d);
    return x;
}
static __device__ __forceinline__ float warp_max(float x) {
    for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, d));
    return x;
}

/* Of integers, each in one instruction from 8.0 on. */
static __device__ __forceinline__ uint32_t warp_or(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_or_sync(FULL_WARP, x);
#else
    for (int d = 16; d > 0; d /= 2) x |= (uint32_t)__shfl_xor_sync(FULL_WARP, (int)x, d);
    return x;
#endif
}
static __device__ __forceinline__ int warp_sum_of(int x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_add_sync(FULL_WARP, x);
#else
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(FULL_WARP, x, d);
    return x;
#endif
}
/* The largest of numbers that are not negative, by their bits, which have the same order; NaN is above all. */
static __device__ __forceinline__ float warp_max_of_sizes(float x) {
    uint32_t bits = sheaf__f32_bits(x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bits = __reduce_max_sync(FULL_WARP, bits);
#else
    for (int d = 16; d > 0; d /= 2) {
        const uint32_t other = (uint32_t)__shfl_xor_sync(FULL_WARP, (int)bits, d);
        bits = other > bits ? other : bits;
    }
#endif
    return sheaf__bits_f32(bits);
}

/* Over all threads of the block (a multiple of 32), the same for each; scratch [32] shared. The
 * order is fixed by the size of the block. */
static __device__ __forceinline__ float block_sum(float x, float *scratch) {
    x = warp_sum(x);
    __syncthreads(); /* scratch may still be read from the call before */
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads(); /* the sums of all warps are there */
    float sum = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
    return warp_sum(sum);
}
static __device__ __forceinline__ float block_max(float x, float *scratch) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads(); /* the largest of all warps are there */
    float max = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : -INFINITY;
    return warp_max(max);
}

/* ---- four elements of a row of floats at a time ---- */

struct Four {
    float v[4];
};

/* Elements i to i + 3 of a row of n; those behind the last are 0, and are not stored. wide: the row begins at a
 * multiple of 16 bytes and has a multiple of four elements. */
HD Four load_four(const float *x, int i, int n, bool wide) {
    Four f = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (wide && i < n) {
        const float4 v = *(const float4 *)(const void *)(x + i);
        f.v[0] = v.x;
        f.v[1] = v.y;
        f.v[2] = v.z;
        f.v[3] = v.w;
    }
    for (int j = 0; !wide && j < 4; j++)
        if (i + j < n) f.v[j] = x[i + j];
    return f;
}
HD void store_four(float *x, int i, int n, bool wide, const Four &f) {
    if (wide && i < n) {
        float4 v;
        v.x = f.v[0];
        v.y = f.v[1];
        v.z = f.v[2];
        v.w = f.v[3];
        *(float4 *)(void *)(x + i) = v;
    }
    for (int j = 0; !wide && j < 4; j++)
        if (i + j < n) x[i + j] = f.v[j];
}

/* A row of floats; WIDE: rows lie one step of less than 4 GB apart, which takes one multiplication. */
template <bool WIDE> HD float *row_of(const View &v, int64_t row) {
    if (WIDE) return (float *)(void *)(v.data + (size_t)(uint32_t)row * (size_t)(uint32_t)v.nb[1]);
    return (float *)(void *)row_data(v, row_at(v.ne, row));
}

/* The order in which every kernel adds the squares of a row: of T threads, thread t takes elements 4 t to 4 t + 3 by
 * add_squares, then the four that begin 4 T behind, and so on; block_sum adds what the threads have. */
HD float add_squares(float sum, const Four &f) {
    for (int j = 0; j < 4; j++) sum = fmaf(f.v[j], f.v[j], sum);
    return sum;
}

/* Element i of a sum of blocks. */
static __device__ __forceinline__ float sum_at(const sheaf__sum &s, size_t i) {
    float total = 0.0f, host = 0.0f;
    bool first_host = true, first = true;
    for (int k = 0; k < s.n_blocks; k++) {
        const float v = s.block[k][i];
        host = first ? v : host + v;
        first = s.ends_host[k];
        if (!first) continue;
        total = first_host ? host : total + host;
        first_host = false;
    }
    return total;
}

/* ALiBi slope of head h of n_head: see sheaf__cpu_alibi_slope. */
HD float alibi_slope(float max_bias, int64_t h, int64_t n_head) {
    if (max_bias <= 0.0f) return 1.0f;
    int64_t n = 1;
    while (n * 2 <= n_head) n *= 2;
    if (h < n) return powf(powf(2.0f, -max_bias / (float)n), (float)(h + 1));
    return powf(powf(2.0f, -max_bias / 2.0f / (float)n), (float)(2 * (h - n) + 1));
}

#endif
