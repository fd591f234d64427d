/* Layers with a state: SSM_CONV, SSM_SCAN, GATED_DELTA_NET, RWKV_WKV6, RWKV_WKV7 and
 * GATED_LINEAR_ATTN. A warp takes a row (of RWKV 6 and linear attention, a column) of the state of
 * one head and sequence into registers, goes through the tokens, and writes what they read and the
 * state that they leave. Sums are over the lanes of a warp. */
#include "cuda/device.h"

enum { STATE_MOST = 8, WARPS = 4 }; /* elements of a row that a lane has; warps of a block */
enum StateKind { STATE_SCAN, STATE_DELTA, STATE_WKV6, STATE_WKV7, STATE_GLA };

struct State {
    View src[7];
    float *y, *states;
    int64_t n, rows, heads, tokens, seqs, kept;
    float scale;
    Fault *fault;
    uint64_t node;
};

static __device__ __forceinline__ float f32_at(const View &v, int64_t i0, int64_t i1, int64_t i2,
                                               int64_t i3) {
    return *(const float *)(v.data + (size_t)i0 * v.nb[0] + (size_t)i1 * v.nb[1] +
                            (size_t)i2 * v.nb[2] + (size_t)i3 * v.nb[3]);
}

/* Where a warp is. */
struct StateAt {
    int64_t r, h, s, t; /* t: of the token in its tensors */
};

/* One element: its decay, or all of its new value, and what a first sum over the row needs. */
template <int KIND>
static __device__ __forceinline__ float state_had(const State &a, const StateAt &p, int64_t i,
                                                  float *st) {
    if (KIND == STATE_DELTA) {
        const View &k = a.src[1], &gate = a.src[3];
        *st *= expf(f32_at(gate, gate.ne[0] == 1 ? 0 : i, p.h, p.t, p.s));
        return *st * f32_at(k, i, p.h % k.ne[1], p.t, p.s);
    }
    return *st * f32_at(a.src[4], i, p.h, p.t, 0); /* RWKV 7 */
}

template <int KIND>
static __device__ __forceinline__ float state_step(const State &a, const StateAt &p, int64_t i,
                                                   float had, float v, float dt, float *st) {
    if (KIND == STATE_SCAN) {
        const int64_t g = p.h / (a.heads / a.src[4].ne[1]);
        const float decay = expf(dt * f32_at(a.src[3], a.src[3].ne[0] == 1 ? 0 : i, p.h, 0, 0));
        *st = *st * decay + f32_at(a.src[4], i, g, p.t, p.s) * v;
        return *st * f32_at(a.src[5], i, g, p.t, p.s);
    }
    if (KIND == STATE_DELTA) {
        const int64_t g = p.h % a.src[1].ne[1];
        *st += (v - had) * f32_at(a.src[4], 0, p.h, p.t, p.s) * f32_at(a.src[1], i, g, p.t, p.s);
        return *st * f32_at(a.src[0], i, g, p.t, p.s) * a.scale;
    }
    if (KIND == STATE_WKV7) {
        *st = *st * f32_at(a.src[1], i, p.h, p.t, 0) + v * f32_at(a.src[2], i, p.h, p.t, 0) +
              had * f32_at(a.src[5], i, p.h, p.t, 0);
        return *st * f32_at(a.src[0], i, p.h, p.t, 0);
    }
    const float kv = f32_at(a.src[0], i, p.h, p.t, 0) * v, r = f32_at(a.src[2], i, p.h, p.t, 0);
    const float before = *st;
    if (KIND == STATE_WKV6) {
        *st = before * f32_at(a.src[4], i, p.h, p.t, 0) + kv;
        return r * (f32_at(a.src[3], i, p.h, 0, 0) * kv + before);
    }
    *st = before * f32_at(a.src[3], i, p.h, p.t, 0) + kv;
    return r * *st * a.scale;
}

/* The value that the row meets with the token; of a scan times dt. */
template <int KIND>
static __device__ __forceinline__ float state_value(const State &a, const StateAt &p, float *dt) {
    if (KIND == STATE_SCAN) {
        const float x = f32_at(a.src[2], p.h, p.t, p.s, 0);
        *dt = x > 20.0f ? x : logf(1.0f + expf(x));
        return f32_at(a.src[1], p.r, p.h, p.t, p.s) * *dt;
    }
    if (KIND == STATE_DELTA) return f32_at(a.src[2], p.r, p.h, p.t, p.s);
    return f32_at(a.src[KIND == STATE_WKV7 ? 3 : 1], p.r, p.h, p.t, 0);
}

/* The first state of the row, elements *step floats apart; NULL: a bad id, which is reported. */
template <int KIND>
static __device__ __forceinline__ const float *state_first(const State &a, const StateAt &p,
                                                           int64_t *step) {
    *step = 1;
    if (KIND == STATE_SCAN) {
        const int64_t id = load_id(a.src[6], p.s, 0, 0);
        const View &s = a.src[0];
        if (id < 0 || id >= s.ne[3]) {
            if (threadIdx.x % 32 == 0) report(a.fault, a.node, id);
            return NULL;
        }
        return (const float *)(s.data + (size_t)id * s.nb[3]) + (p.h * a.rows + p.r) * a.n;
    }
    if (KIND == STATE_DELTA) {
        const View &s = a.src[5];
        return (const float *)(s.data + (size_t)p.s * s.nb[3]) + (p.h * a.rows + p.r) * a.n;
    }
    const View &s = a.src[KIND == STATE_WKV7 ? 6 : KIND == STATE_WKV6 ? 5 : 4];
    const float *head = (const float *)(s.data + (size_t)p.s * s.nb[1]) + p.h * a.n * a.n;
    if (KIND == STATE_WKV7) return head + p.r * a.n;
    *step = a.n;
    return head + p.r;
}

template <int KIND> static __global__ void state_kernel(State a) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t all = a.seqs * a.heads * a.rows;
    for (int64_t u = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32; u < all;
         u += gridDim.x * (int64_t)WARPS) {
        StateAt p = {u % a.rows, u / a.rows % a.heads, u / a.rows / a.heads, 0};
        int64_t step;
        const float *from = state_first<KIND>(a, p, &step);
        /* where the row's state goes: as `from` lies in its head */
        float *to = a.states + (p.s * a.heads + p.h) * a.rows * a.n + (step == 1 ? p.r * a.n : p.r);
        const int64_t kept_stride = a.seqs * a.heads * a.rows * a.n;
        float st[STATE_MOST];
#pragma unroll
        for (int e = 0; e < STATE_MOST; e++) {
            const int64_t i = lane + 32 * e;
            st[e] = from && i < a.n ? from[i * step] : 0.0f;
        }
        for (int64_t t = 0; t < a.tokens; t++) {
            const bool by_seq = KIND == STATE_SCAN || KIND == STATE_DELTA;
            p.t = by_seq ? t : p.s * a.tokens + t;
            float had = 0.0f, y = 0.0f, dt = 0.0f;
            const float v = state_value<KIND>(a, p, &dt);
            if (KIND == STATE_DELTA || KIND == STATE_WKV7) {
#pragma unroll
                for (int e = 0; e < STATE_MOST; e++)
                    if (lane + 32 * e < a.n) had += state_had<KIND>(a, p, lane + 32 * e, &st[e]);
                had = warp_sum(had);
            }
#pragma unroll
            for (int e = 0; e < STATE_MOST; e++)
                if (lane + 32 * e < a.n)
                    y += state_step<KIND>(a, p, lane + 32 * e, had, v, dt, &st[e]);
            y = warp_sum(y);
            if (lane == 0) a.y[((p.s * a.tokens + t) * a.heads + p.h) * a.rows + p.r] = y;
            const int64_t slot = a.tokens - 1 - t;
            if (slot >= a.kept) continue;
#pragma unroll
            for (int e = 0; e < STATE_MOST; e++)
                if (lane + 32 * e < a.n) to[slot * kept_stride + (lane + 32 * e) * step] = st[e];
        }
        for (int64_t slot = a.tokens; slot < a.kept; slot++) { /* states before the first token */
#pragma unroll
            for (int e = 0; e < STATE_MOST; e++)
                if (lane + 32 * e < a.n)
                    to[slot * kept_stride + (lane + 32 * e) * step] = slot == 0 ? st[e] : 0.0f;
        }
    }
}

static State state_of(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst, int64_t n,
                      int64_t rows, int64_t heads, int64_t tokens, int64_t seqs) {
    State a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 7 && dst->src[i]; i++) a.src[i] = sheaf__cuda_view(dst->src[i]);
    a.n = n;
    a.rows = rows;
    a.heads = heads;
    a.tokens = tokens;
    a.seqs = seqs;
    a.kept = 1;
    a.scale = 1.0f;
    a.fault = q->fault;
    a.node = (uint64_t)(uintptr_t)dst;
    a.y = (float *)dst->data;
    a.states = a.y + seqs * tokens * heads * rows;
    return a;
}

#define LAUNCH_STATE(kind, a)                                                                      \
    CUDA_LAUNCH(state_kernel<kind>, sheaf__cuda_blocks((a).seqs *(a).heads *(a).rows, WARPS),      \
                32 * WARPS, 0, q->stream, a)

static enum sheaf_status launch_scan(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *s = dst->src[0], *x = dst->src[1];
    State a = state_of(q, dst, s->ne[0], x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
    a.kept = dst->op_params[0];
    LAUNCH_STATE(STATE_SCAN, a);
    return sheaf__cuda_launched(q, dst);
}

static enum sheaf_status launch_delta(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const struct sheaf_tensor *v = dst->src[2];
    State a = state_of(q, dst, v->ne[0], v->ne[0], v->ne[1], v->ne[2], v->ne[3]);
    a.kept = dst->op_params[0];
    a.scale = 1.0f / sqrtf((float)a.n);
    LAUNCH_STATE(STATE_DELTA, a);
    return sheaf__cuda_launched(q, dst);
}

static State heads_of(const struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst,
                      const struct sheaf_tensor *state) {
    const int64_t *ne = dst->src[0]->ne, seqs = state->ne[1];
    return state_of(q, dst, ne[0], ne[0], ne[1], seqs ? ne[2] / seqs : 0, seqs);
}
static enum sheaf_status launch_wkv6(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const State a = heads_of(q, dst, dst->src[5]);
    LAUNCH_STATE(STATE_WKV6, a);
    return sheaf__cuda_launched(q, dst);
}
static enum sheaf_status launch_wkv7(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    const State a = heads_of(q, dst, dst->src[6]);
    LAUNCH_STATE(STATE_WKV7, a);
    return sheaf__cuda_launched(q, dst);
}
static enum sheaf_status launch_gla(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    State a = heads_of(q, dst, dst->src[4]);
    a.scale = sheaf__param_f32(dst, 0);
    LAUNCH_STATE(STATE_GLA, a);
    return sheaf__cuda_launched(q, dst);
}

/* sx [t + k - 1, c, s], w [k, c] -> dst [c, t, s]: a thread an element */
static __global__ void conv_kernel(View dst, View x, View w) {
    const int64_t n = dst.ne[0] * dst.ne[1] * dst.ne[2];
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += gridDim.x * (int64_t)blockDim.x) {
        const int64_t c = i % dst.ne[0], t = i / dst.ne[0] % dst.ne[1],
                      s = i / dst.ne[0] / dst.ne[1];
        float sum = 0.0f;
        for (int64_t k = 0; k < w.ne[0]; k++)
            sum += f32_at(x, t + k, c, s, 0) * f32_at(w, k, c, 0, 0);
        *(float *)(void *)(dst.data + (size_t)c * dst.nb[0] + (size_t)t * dst.nb[1] +
                           (size_t)s * dst.nb[2]) = sum;
    }
}

static enum sheaf_status launch_conv(struct sheaf__cuda_queue *q, const struct sheaf_tensor *dst) {
    CUDA_LAUNCH_PLAIN(conv_kernel, sheaf__cuda_blocks(sheaf_nelements(dst), 256), 256, 0, q->stream,
                      sheaf__cuda_view(dst), sheaf__cuda_view(dst->src[0]),
                      sheaf__cuda_view(dst->src[1]));
    return sheaf__cuda_launched(q, dst);
}

bool sheaf__cuda_state_fits(const struct sheaf_tensor *op) {
    switch (op->op) {
    case SHEAF_OP_GATED_DELTA_NET:
        return op->src[2]->ne[0] <= 32 * STATE_MOST;
    case SHEAF_OP_SSM_SCAN:
    case SHEAF_OP_RWKV_WKV6:
    case SHEAF_OP_RWKV_WKV7:
    case SHEAF_OP_GATED_LINEAR_ATTN:
        return op->src[0]->ne[0] <= 32 * STATE_MOST;
    default:
        return true;
    }
}

SHEAF__CUDA_OP(SSM_CONV) = {launch_conv, NULL};
SHEAF__CUDA_OP(SSM_SCAN) = {launch_scan, NULL};
SHEAF__CUDA_OP(GATED_DELTA_NET) = {launch_delta, NULL};
SHEAF__CUDA_OP(RWKV_WKV6) = {launch_wkv6, NULL};
SHEAF__CUDA_OP(RWKV_WKV7) = {launch_wkv7, NULL};
SHEAF__CUDA_OP(GATED_LINEAR_ATTN) = {launch_gla, NULL};
