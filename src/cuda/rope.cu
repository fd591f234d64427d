/* ROPE and ROPE_BACK: pairs of a row turned by an angle that grows with the position, or back; also
 * the heads of q and of k together, with the norm of the heads before it and the writes into the K
 * and the V cache behind it.
 *
 * As on the CPU the angle is kept in double until it is reduced. The host computes the powers of the
 * frequencies, since a power in double takes longer than all else here. A thread turns the same pair
 * of HEADS heads, so that sine and cosine are taken once for all of them. dst may be a's memory: a
 * thread reads a pair before it writes it. YaRN: Peng et al., arXiv 2309.00071. */
#include "cuda/device.h"
#include "tensor/rope.h"

enum {
    THREADS = 128,
    HEADS = 4,
    POWERS = 128, /* from the host */
    AT_ONCE = 4,  /* pairs or values that a thread loads before it uses the first */
    PIECE = THREADS * AT_ONCE,
};
static_assert(THREADS == 32 * HEADS, "turn_kernel has a warp for each head");

struct Rope {
    struct sheaf__rope_shape shape;
    double log2_step; /* power of a pair: 2^(exponent * log2_step) */
    double freq_scale, ext_factor, low, high;
    float magnitude, sign; /* of the angle */
    bool early;            /* the factors are weights, which no kernel writes, or there are none */
    double power[POWERS];  /* of the first pairs */
};

/* How pair i turns: its angle per position, and where its position is in pos. */
struct Wave {
    double frequency;
    int64_t at; /* of token 0 */
};

/* factors: F32 [pairs], or data NULL */
HD Wave wave_of(const Rope &r, const View &factors, int64_t i, int64_t n) {
    int64_t exponent;
    Wave w;
    w.at = sheaf__rope_position(&r.shape, i, &exponent) * n;
    double extrapolated = i < POWERS ? r.power[i] : exp2((double)exponent * r.log2_step);
    if (factors.data)
        extrapolated /= (double)*(const float *)(void *)(factors.data + (size_t)i * factors.nb[0]);
    w.frequency = r.freq_scale * extrapolated;
    if (r.ext_factor == 0.0) return w;
    const double ramp = ((double)i - r.low) / fmax(0.001, r.high - r.low);
    const double mix = (1.0 - fmin(1.0, fmax(0.0, ramp))) * r.ext_factor;
    w.frequency = w.frequency * (1.0 - mix) + extrapolated * mix;
    return w;
}

static __device__ __forceinline__ const int *position_at(const View &pos, const Wave &w, int64_t i2) {
    return (const int *)(const void *)(pos.data + (size_t)(w.at + i2) * pos.nb[0]);
}

/* Sine and cosine of an angle, which is reduced in double. */
HD void turn_of(const Rope &r, const Wave &w, int position, float *s, float *c) {
    const double t = (double)position * w.frequency, turns = rint(t * 0.15915494309189533577);
    const float x = (float)((t - turns * 6.28318530717958623200) - turns * 2.4492935982947064e-16);
    sincosf(x, s, c);
    *s *= r.sign * r.magnitude;
    *c *= r.magnitude;
}

/* dst, a [d, h, n, s], pos I32 [n] or [4 n], factors F32 [pairs] or data NULL. grid: x pairs and what is
 * not turned, y groups of heads, z positions and sequences */
static __global__ void rope_kernel(View dst, View a, View pos, View factors, Rope r) {
    next_may_start();
    if (!r.early) previous_done();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const bool turn = i < r.shape.n_pairs;
    Wave wave = {0.0, 0};
    if (turn) wave = wave_of(r, factors, i, dst.ne[2]);
    if (r.early) previous_done();
    if (i >= dst.ne[0] - r.shape.n_pairs) return;
    const struct sheaf__rope_pair e = sheaf__rope_pair(&r.shape, i);
    const int64_t e0 = e.e0, e1 = e.e1;
    for (int64_t z = blockIdx.z; z < dst.ne[2] * dst.ne[3]; z += gridDim.z) {
        const Divided place = divided(z, dst.ne[2]);
        const int64_t i2 = place.rest, i3 = place.quotient;
        float s = 0.0f, c = 0.0f;
        if (turn) turn_of(r, wave, *position_at(pos, wave, i2), &s, &c);
        for (int64_t h0 = (int64_t)blockIdx.y * HEADS; h0 < dst.ne[1];
             h0 += (int64_t)gridDim.y * HEADS) {
            for (int64_t h = h0; h < h0 + HEADS && h < dst.ne[1]; h++) {
                const Row at = {h, i2, i3};
                const char *x = row_data(a, at);
                char *y = row_data(dst, at);
                const float x0 = load_plain(a.type, x + (size_t)e0 * a.nb[0]);
                const float x1 = load_plain(a.type, x + (size_t)e1 * a.nb[0]);
                store_plain(dst.type, turn ? x0 * c - x1 * s : x0, y + (size_t)e0 * dst.nb[0]);
                if (turn) store_plain(dst.type, x0 * s + x1 * c, y + (size_t)e1 * dst.nb[0]);
            }
        }
    }
}

/* The dimension whose wave turns n_rot times over n_ctx_orig positions. */
static double correction_dim(int n_dims, int n_ctx_orig, double n_rot, double base) {
    return n_dims * log(n_ctx_orig / (n_rot * 6.28318530717958647693)) / (2.0 * log(base));
}

static Rope rope_of(const struct sheaf_tensor *dst) {
    const int n_dims = dst->op_params[0], n_ctx_orig = dst->op_params[2];
    const double base = (double)sheaf__param_f32(dst, 3);
    Rope r;
    memset(&r, 0, sizeof r);
    r.shape = sheaf__rope_shape(dst);
    r.sign = dst->op == SHEAF_OP_ROPE_BACK ? -1.0f : 1.0f;
    r.log2_step = -log2(base) / (double)r.shape.half;
    r.freq_scale = (double)sheaf__param_f32(dst, 4);
    r.ext_factor = (double)sheaf__param_f32(dst, 5);
    double magnitude = (double)sheaf__param_f32(dst, 6);
    if (r.ext_factor != 0.0) {
        const double fast = (double)sheaf__param_f32(dst, 7),
                     slow = (double)sheaf__param_f32(dst, 8);
        r.low = fmax(0.0, floor(correction_dim(n_dims, n_ctx_orig, fast, base)));
        r.high = fmin(n_dims - 1.0, ceil(correction_dim(n_dims, n_ctx_orig, slow, base)));
        magnitude *= 1.0 + 0.1 * log(1.0 / r.freq_scale);
    }
    r.magnitude = (float)magnitude;
    r.early = !dst->src[2] || sheaf__cuda_is_weight(dst->src[2]);
    for (int64_t i = 0; i < POWERS && i < r.shape.n_pairs; i++) {
        int64_t exponent;
        sheaf__rope_position(&r.shape, i, &exponent);
        r.power[i] = exp2((double)exponent * r.log2_step);
    }
    return r;
}

static enum sheaf_status launch_rope(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *a = dst->src[0], *factors = dst->src[2];
    const Rope r = rope_of(dst);
    View f = sheaf__cuda_view(factors ? factors : a);
    if (!factors) f.data = NULL;
    const dim3 grid(sheaf__cuda_blocks(dst->ne[0] - r.shape.n_pairs, THREADS),
                    sheaf__cuda_blocks_y((dst->ne[1] + HEADS - 1) / HEADS),
                    sheaf__cuda_blocks_y(dst->ne[2] * dst->ne[3]));
    CUDA_LAUNCH_AHEAD(q->ahead, rope_kernel, grid, THREADS, 0, q->stream, sheaf__cuda_view(dst),
                      sheaf__cuda_view(a), sheaf__cuda_view(dst->src[1]), f, r);
    return sheaf__cuda_launched(q, dst);
}

/* ---- q and k: norm and rotation; K and V: into the cache; in one ---- */

/* Rows [d, h, n] of F32, each dense. */
struct Heads {
    char *data;
    size_t nb1, nb2;
};
HD float *head_at(const Heads &heads, int64_t h, int64_t i2) {
    return (float *)(void *)(heads.data + (size_t)h * heads.nb1 + (size_t)i2 * heads.nb2);
}

/* Rows of a plain type, each of which has all that a position keeps. */
struct Cache {
    char *data; /* NULL: none */
    size_t nb0, nb1;
    int type;
};

/* The heads of q, or of k. */
struct Turned {
    int64_t h;
    Heads a, norm, mul, dst; /* norm without data: a is turned as it is */
    const float *w;
    float eps;
    unsigned norm_threads; /* of the kernel of RMS_NORM alone */
    Cache cache;
};

struct Turn {
    int64_t d, n;                 /* elements of a head; positions */
    unsigned part1_at, values_at; /* where their blocks begin in y of the grid */
    Turned part[2];
    Heads values; /* F32 [n_values, 1, n] */
    int64_t n_values;
    Cache cache; /* of the values */
    View ids;
    int64_t n_rows; /* of both caches */
    uint64_t node;  /* the SET_ROWS of k */
    Fault *fault;
    View pos, factors;
    Rope rope;
};

/* The sum of squares of a row by one warp, in the order of rms_norm_kernel with `threads`: one warp of that after
 * another, then the tree of their sums. */
static __device__ __forceinline__ float sum_of_squares(const float *x, int n, unsigned threads) {
    const unsigned lane = threadIdx.x % 32;
    const bool wide = ((uintptr_t)x / sizeof(float) | (unsigned)n) % 4 == 0;
    float of_warp = 0.0f;
    for (unsigned w = 0; w < threads / 32; w++) {
        float sum = 0.0f;
        for (int i = 4 * (int)(w * 32 + lane); i < n; i += 4 * (int)threads)
            sum = add_squares(sum, load_four(x, i, n, wide));
        sum = warp_sum(sum);
        if (lane == w) of_warp = sum;
    }
    return warp_sum(of_warp);
}

/* Row `id` of the caches, for position i2. */
static __device__ __forceinline__ bool is_given_up(const Turn &t, int64_t i2, int64_t id) {
    const Row at = {i2, 0, 0};
    return is_given_up(t.ids, at, t.n, id, t.n_rows, t.fault, t.node);
}

/* A piece of the values of position i2 into their cache, by a block. */
static __device__ __forceinline__ void write_values(const Turn &t, int64_t piece, int64_t i2) {
    const float *from = head_at(t.values, 0, i2);
    const int64_t first = piece * PIECE + threadIdx.x;
    const int64_t id = load_id(t.ids, i2, 0, 0);
    float x[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
        x[k] = first + k * THREADS < t.n_values ? from[first + k * THREADS] : 0.0f;
    if (__syncthreads_or(is_given_up(t, i2, id))) return; /* later positions were seen, of the values */
    char *to = t.cache.data + (size_t)id * t.cache.nb1;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
        const int64_t i = first + k * THREADS;
        if (i < t.n_values) store_plain(t.cache.type, x[k], to + (size_t)i * t.cache.nb0);
    }
}

/* Pairs i, i + 32, ... of a head; from n_pairs to `end` elements that are copied. */
struct Pairs {
    float x0[AT_ONCE], x1[AT_ONCE];
};
static __device__ __forceinline__ Pairs load_pairs(const Rope &r, const float *x, int64_t i,
                                                   int64_t end) {
    Pairs p;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++, i += 32) {
        const struct sheaf__rope_pair e = sheaf__rope_pair(&r.shape, i);
        p.x0[k] = i < end ? x[e.e0] : 0.0f;
        p.x1[k] = i < end ? x[e.e1] : 0.0f;
    }
    return p;
}

/* Where a head of a position is written. */
struct Results {
    float *norm, *mul, *y;
    char *row; /* of the cache; NULL: none */
};
/* Pair i of a head, or an element behind the pairs: its norm and that times w, if part p has them, then turned. */
static __device__ __forceinline__ void write_pair(const Rope &r, const Turned &p, const Results &to,
                                                  int64_t i, float x0, float x1, float scale,
                                                  float2 angle) {
    const bool turn = i < r.shape.n_pairs;
    const struct sheaf__rope_pair e = sheaf__rope_pair(&r.shape, i);
    if (p.norm.data) {
        x0 *= scale;
        x1 *= scale;
        to.norm[e.e0] = x0;
        if (turn) to.norm[e.e1] = x1;
        x0 *= p.w[e.e0];
        x1 *= p.w[e.e1];
        to.mul[e.e0] = x0;
        if (turn) to.mul[e.e1] = x1;
    }
    const float s = angle.x, c = angle.y;
    const float y0 = turn ? x0 * c - x1 * s : x0, y1 = x0 * s + x1 * c;
    to.y[e.e0] = y0;
    if (turn) to.y[e.e1] = y1;
    if (to.row) store_plain(p.cache.type, y0, to.row + (size_t)e.e0 * p.cache.nb0);
    if (to.row && turn) store_plain(p.cache.type, y1, to.row + (size_t)e.e1 * p.cache.nb0);
}

/* grid: x positions, y groups of heads of both parts, then pieces of the values; shared: sine and
 * cosine of the pairs */
static __global__ void turn_kernel(Turn t) {
    CUDA_DYNAMIC_SHARED(float2, angle);
    const Rope &r = t.rope;
    const int64_t i2 = blockIdx.x, n_pairs = r.shape.n_pairs, end = t.d - n_pairs;
    const Turned &p = t.part[blockIdx.y >= t.part1_at];
    const int64_t group = blockIdx.y - (blockIdx.y >= t.part1_at ? t.part1_at : 0);
    Wave wave = {0.0, 0};
    next_may_start();
    if (!r.early) previous_done();
    if (threadIdx.x < n_pairs) wave = wave_of(r, t.factors, threadIdx.x, t.n);
    /* The positions mostly are there long before: the angle is taken early, and again if another is read later. */
    const bool guesses = r.early && threadIdx.x < n_pairs;
    const int guess = guesses ? guess_of(position_at(t.pos, wave, i2)) : 0;
    float2 guessed = {0.0f, 0.0f};
    if (guesses) turn_of(r, wave, guess, &guessed.x, &guessed.y);
    if (threadIdx.x == 0) {
        if (t.ids.data) look_up(t.ids.data);
        if (blockIdx.y < t.values_at) {
            look_up(head_at(p.a, 0, i2));
            look_up(head_at(p.dst, 0, i2));
        } else {
            look_up(head_at(t.values, 0, i2));
        }
    }
    if (r.early) previous_done();
    if (blockIdx.y >= t.values_at) {
        write_values(t, blockIdx.y - t.values_at, i2);
        return;
    }
    const int64_t h = group * HEADS + threadIdx.x / 32;
    const int64_t own = h < p.h ? threadIdx.x % 32 : end; /* the first pair of the lane */
    const float *x = head_at(p.a, h, i2);
    /* all that is read is under way before the first of it is used */
    Pairs pairs = load_pairs(r, x, own, end);
    const int position = threadIdx.x < n_pairs ? *position_at(t.pos, wave, i2) : 0;
    const int64_t id = p.cache.data ? load_id(t.ids, i2, 0, 0) : -1;
    float scale = 0.0f;
    if (p.norm.data && h < p.h)
        scale = 1.0f / sqrtf(sum_of_squares(x, (int)t.d, p.norm_threads) / (float)t.d + p.eps);
    for (int64_t i = threadIdx.x; i < n_pairs; i += THREADS) {
        float2 turn = guessed;
        if (i >= THREADS) wave = wave_of(r, t.factors, i, t.n);
        if (!guesses || i >= THREADS || position != guess)
            turn_of(r, wave, i < THREADS ? position : *position_at(t.pos, wave, i2), &turn.x,
                    &turn.y);
        angle[i] = turn;
    }
    const bool elsewhere = !p.cache.data || is_given_up(t, i2, id);
    const bool keep = !__syncthreads_or(elsewhere); /* the angles are there, and later positions were seen */
    Results to = {head_at(p.norm, h, i2), head_at(p.mul, h, i2), head_at(p.dst, h, i2), NULL};
    if (keep) to.row = p.cache.data + (size_t)id * p.cache.nb1 + (size_t)(h * t.d) * p.cache.nb0;
    for (int64_t first = own; first < end; first += 32 * AT_ONCE) {
        if (first != own) pairs = load_pairs(r, x, first, end);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int64_t i = first + 32 * k;
            if (i >= end) break;
            const float2 none = {0.0f, 0.0f};
            write_pair(r, p, to, i, pairs.x0[k], pairs.x1[k], scale, i < n_pairs ? angle[i] : none);
        }
    }
}

/* Nodes of q, or of k, that follow one another. */
struct Nodes {
    const struct sheaf_tensor *norm, *mul, *rope, *set; /* only rope is always there */
    int n;
};

/* The SET_ROWS that writes all heads of a position as one row. */
static bool caches(const struct sheaf_tensor *set, const struct sheaf_tensor *rope) {
    if (set->op != SHEAF_OP_SET_ROWS || !sheaf__cuda_is_plain(set)) return false;
    const struct sheaf_tensor *b = set->src[1];
    return (b == rope || b->view_src == rope) && b->data == rope->data && b->type == rope->type &&
           sheaf_is_contiguous(b) && sheaf_is_contiguous(rope) &&
           b->ne[0] == rope->ne[0] * rope->ne[1] && b->ne[1] == rope->ne[2] && b->ne[2] == 1 &&
           b->ne[3] == 1;
}

static const struct sheaf_tensor *input_of(const Nodes &p) {
    return (p.norm ? p.norm : p.rope)->src[0];
}

enum { INPUTS = 5, OUTPUTS = 4 };
/* What the nodes read and write; NULL: nothing. */
static void memory_of(const Nodes &p, const struct sheaf_tensor *in[INPUTS],
                      const struct sheaf_tensor *out[OUTPUTS]) {
    in[0] = input_of(p);
    in[1] = p.rope->src[1];
    in[2] = p.rope->src[2];
    in[3] = p.mul ? p.mul->src[1] : NULL;
    in[4] = p.set ? p.set->src[2] : NULL;
    out[0] = p.norm;
    out[1] = p.mul;
    out[2] = p.rope;
    out[3] = p.set;
}

/* false: they do not begin with nodes of one head after another, or their memory overlaps. */
static bool take_nodes(const struct sheaf_tensor *const *next, int n, Nodes *p) {
    const struct sheaf_tensor *in[INPUTS], *out[OUTPUTS];
    memset(p, 0, sizeof *p);
    if (n > 2 && next[0]->op == SHEAF_OP_RMS_NORM && sheaf__cuda_is_weighted(next[1], next[0]) &&
        next[2]->src[0] == next[1]) {
        p->norm = next[p->n++];
        p->mul = next[p->n++];
    }
    if (p->n >= n || next[p->n]->op != SHEAF_OP_ROPE) return false;
    p->rope = next[p->n++];
    if (p->n < n && caches(next[p->n], p->rope)) p->set = next[p->n++];
    const struct sheaf_tensor *rope = p->rope, *a = input_of(*p);
    if (!sheaf__cuda_plain_rows(rope, a) || !sheaf__cuda_plain_rows(a, a) || rope->ne[3] != 1 ||
        rope->ne[0] > 1 << 30 || rope->ne[2] > 0x7fffffff || rope->ne[1] > 30000 * HEADS)
        return false;
    if (p->norm && !sheaf__cuda_plain_rows(p->norm, a)) return false;
    if (sheaf__rope_shape(rope).n_pairs * (int64_t)sizeof(float2) > 32 * 1024) return false;
    memory_of(*p, in, out);
    for (int j = 0; j < OUTPUTS; j++) {
        for (int i = 0; i < INPUTS && out[j]; i++)
            if (in[i] && !sheaf__cuda_apart(out[j], in[i])) return false;
        for (int i = 0; i < j && out[j]; i++)
            if (out[i] && !sheaf__cuda_apart(out[j], out[i])) return false;
    }
    return true;
}

/* Is there no byte that `out` has and the others have, too? */
static bool is_free(const struct sheaf_tensor *out, const struct sheaf_tensor *const *others,
                    int n) {
    for (int i = 0; i < n && out; i++)
        if (others[i] && !sheaf__cuda_disjoint(out, others[i])) return false;
    return true;
}

/* May the nodes of k run together with those of q, before them? They turn alike, and their blocks write
 * nothing that blocks of the others read or write. */
static bool go_together(const Nodes &q, const Nodes &k) {
    const struct sheaf_tensor *in[2][INPUTS], *out[2][OUTPUTS];
    if (q.set || q.rope->src[1] != k.rope->src[1] || q.rope->src[2] != k.rope->src[2] ||
        q.rope->ne[0] != k.rope->ne[0] || q.rope->ne[2] != k.rope->ne[2] ||
        memcmp(q.rope->op_params, k.rope->op_params, sizeof q.rope->op_params))
        return false;
    memory_of(q, in[0], out[0]);
    memory_of(k, in[1], out[1]);
    for (int j = 0; j < OUTPUTS; j++) {
        if (!is_free(out[0][j], in[1], INPUTS) || !is_free(out[0][j], out[1], OUTPUTS) ||
            !is_free(out[1][j], in[0], INPUTS))
            return false;
    }
    return true;
}

/* May the SET_ROWS `v` run together with all of them? It writes the same rows of another cache. */
static bool joins_as_values(const struct sheaf_tensor *v, const Nodes *part, int n_parts) {
    const struct sheaf_tensor *set = part[n_parts - 1].set;
    if (!set || v->op != SHEAF_OP_SET_ROWS || !sheaf__cuda_is_plain(v)) return false;
    const struct sheaf_tensor *b = v->src[1];
    if (v->src[2] != set->src[2] || v->ne[1] != set->ne[1] || b->type != SHEAF_TYPE_F32 ||
        !sheaf__cuda_is_dense(b) || b->ne[1] != set->src[1]->ne[1] || b->ne[2] != 1 ||
        b->ne[3] != 1 || b->ne[0] > 4096 * PIECE || !sheaf__cuda_disjoint(v, b) ||
        !sheaf__cuda_disjoint(v, v->src[2]))
        return false;
    for (int i = 0; i < n_parts; i++) {
        const struct sheaf_tensor *in[INPUTS], *out[OUTPUTS];
        memory_of(part[i], in, out);
        if (!is_free(v, in, INPUTS) || !is_free(v, out, OUTPUTS) || !is_free(b, out, OUTPUTS))
            return false;
    }
    return true;
}

static Heads heads_of(const struct sheaf_tensor *t) {
    const Heads heads = {t ? (char *)t->data : NULL, t ? t->nb[1] : 0, t ? t->nb[2] : 0};
    return heads;
}

static Cache cache_of(const struct sheaf_tensor *set) {
    const Cache cache = {(char *)set->data, set->nb[0], set->nb[1], set->type};
    return cache;
}

static Turned turned_of(const Nodes &nodes) {
    Turned p;
    memset(&p, 0, sizeof p);
    p.a = heads_of(input_of(nodes));
    p.dst = heads_of(nodes.rope);
    p.h = nodes.rope->ne[1];
    if (nodes.set) p.cache = cache_of(nodes.set);
    if (!nodes.norm) return p;
    p.norm = heads_of(nodes.norm);
    p.mul = heads_of(nodes.mul);
    p.w = (const float *)nodes.mul->src[1]->data;
    p.eps = sheaf__param_f32(nodes.norm, 0);
    p.norm_threads = sheaf__cuda_row_threads(nodes.norm->ne[0]);
    return p;
}

int sheaf__cuda_launch_turn(struct sheaf__cuda_queue *q, const struct sheaf_tensor *const *next,
                            int n, enum sheaf_status *st) {
    Nodes part[2];
    const struct sheaf_tensor *v = NULL;
    int n_parts = 1;
    if (!take_nodes(next, n, &part[0])) return 0;
    int used = part[0].n;
    if (take_nodes(next + used, n - used, &part[1]) && go_together(part[0], part[1])) {
        used += part[1].n;
        n_parts = 2;
    }
    if (used < n && joins_as_values(next[used], part, n_parts)) v = next[used++];
    if (used == 1) return 0;
    const struct sheaf_tensor *rope = part[0].rope, *set = part[n_parts - 1].set;
    Turn t;
    memset(&t, 0, sizeof t);
    t.rope = rope_of(rope);
    t.d = rope->ne[0];
    t.n = rope->ne[2];
    unsigned blocks = 0;
    for (int i = 0; i < n_parts; i++) {
        t.part[i] = turned_of(part[i]);
        if (i == 1) t.part1_at = blocks;
        blocks += (unsigned)((t.part[i].h + HEADS - 1) / HEADS);
    }
    t.values_at = blocks;
    if (n_parts == 1) t.part1_at = blocks;
    t.pos = sheaf__cuda_view(rope->src[1]);
    if (rope->src[2]) t.factors = sheaf__cuda_view(rope->src[2]);
    if (set) {
        t.ids = sheaf__cuda_view(set->src[2]);
        t.n_rows = set->ne[1];
        t.node = (uint64_t)(uintptr_t)set;
        t.fault = q->fault;
    }
    if (v) {
        t.cache = cache_of(v);
        t.values = heads_of(v->src[1]);
        t.values.nb2 = t.values.nb1; /* a position has one row */
        t.n_values = v->src[1]->ne[0];
        blocks += sheaf__cuda_blocks(t.n_values, PIECE);
    }
    const dim3 grid((unsigned)t.n, blocks);
    CUDA_LAUNCH_AHEAD(q->ahead, turn_kernel, grid, THREADS,
                      (size_t)t.rope.shape.n_pairs * sizeof(float2), q->stream, t);
    *st = sheaf__cuda_launched(q, rope);
    return used;
}

SHEAF__CUDA_OP(ROPE) = {launch_rope, NULL};
SHEAF__CUDA_OP(ROPE_BACK) = {launch_rope, NULL};
