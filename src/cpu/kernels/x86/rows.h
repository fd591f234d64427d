/* A part of table.h, in the same terms: rows of floats, element by element (activations, conversions, what
 * attention, norms and activation functions do with a row). */

/* ---- activations ---- */

/* Largest magnitude by comparing bits, which puts NaN above infinity. */
INLINE __m256i max_abs_bits(__m256i max, __m256 x) {
    return _mm256_max_epi32(
        max, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)));
}
INLINE float hmax_bits(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_unpackhi_epi64(m, m));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

/* 32 floats times id, to nearest even, as bytes. */
INLINE __m256i round_32(const float *x, float id) {
    const __m256 f = _mm256_set1_ps(id);
    __m256i q[4];
    UNROLL for (int j = 0; j < 4; j++) q[j] =
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * j), f));
    return pack_bytes(q);
}

/* ---- conversions: the bits of quant/quants.c ---- */

static void f16_to_f32(const void *px, float *y, int64_t n) {
    const uint16_t *x = px;
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_load_f16(x + i));
    for (; i < n; i++) y[i] = f16(x[i]);
}

static void f32_to_f16(const float *x, void *py, int64_t n) {
    uint16_t *y = py;
    int64_t i = 0;
    for (; i + 4 * VW <= n; i += 4 * VW) {
        UNROLL for (int j = 0; j < 4; j++) v_store_f16(y + i + j * VW, v_load(x + i + j * VW));
    }
    for (; i + VW <= n; i += VW) v_store_f16(y + i, v_load(x + i));
    for (; i < n; i++) y[i] = sheaf__f32_to_f16(x[i]);
}

static void bf16_to_f32(const void *px, float *y, int64_t n) {
    const uint16_t *x = px;
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_load_bf16(x + i));
    for (; i < n; i++) y[i] = sheaf__bf16_to_f32(x[i]);
}

static void f32_to_bf16(const float *x, void *py, int64_t n) {
    uint16_t *y = py;
    for (int64_t i = 0; i < n; i++) y[i] = sheaf__f32_to_bf16(x[i]); /* compilers vectorise it */
}

static void q8_0_to_f32(const void *px, float *y, int64_t n) {
    const struct sheaf__block_q8_0 *x = px;
    for (int64_t b = 0; b < n / 32; b++, y += 32) {
        v_f d = v_set1(f16(x[b].d));
        for (int j = 0; j < 32; j += VW) v_store(y + j, v_mul(d, v_load_i8(x[b].qs + j)));
    }
}

static void f32_to_q8_0(const float *x, void *py, int64_t n) {
    struct sheaf__block_q8_0 *y = py;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t b = 0; b < n / 32; b++, x += 32, y++) {
        __m256 max = _mm256_setzero_ps();
        for (int j = 0; j < 32; j += 8) /* the second operand if the first is NaN */
            max = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + j)), max);
        float lane[8], m = 0;
        _mm256_storeu_ps(lane, max);
        for (int j = 0; j < 8; j++) m = lane[j] > m ? lane[j] : m;
        const float id = sheaf__q8_0_scale(m, &y->d);
        __m256i q = round_32(x, id);
        _mm256_storeu_si256((__m256i *)y->qs, _mm256_max_epi8(q, _mm256_set1_epi8(-127)));
    }
}

/* ---- rows ---- */

static double sum(int64_t n, const float *x) {
    double lanes[SHEAF__LANES];
    v_d acc = v_zeros();
    int64_t i = 0;
    for (; i + SHEAF__LANES <= n; i += SHEAF__LANES) acc = v_add_8(acc, x + i);
    v_lanes(lanes, acc);
    for (int j = 0; i < n; i++, j++) lanes[j] += (double)x[i];
    return sheaf__lanes_sum(lanes);
}

static double sum_sq(int64_t n, const float *x) {
    double lanes[SHEAF__LANES];
    v_d acc = v_zeros();
    int64_t i = 0;
    for (; i + SHEAF__LANES <= n; i += SHEAF__LANES) acc = v_add_sq_8(acc, x + i);
    v_lanes(lanes, acc);
    for (int j = 0; i < n; i++, j++) lanes[j] += (double)x[i] * (double)x[i];
    return sheaf__lanes_sum(lanes);
}

static void rotate(int64_t n, bool side_by_side, const float *x, const float *cos, const float *sin,
                   float *y) {
    int64_t i = 0;
    if (side_by_side) {
        for (; i + VW / 2 <= n; i += VW / 2) {
            v_f v = v_load(x + 2 * i), c = v_twice(cos + i), s = v_twice(sin + i);
            v_store(y + 2 * i, v_add(v_mul(v, c), v_turn(v_mul(v_swap(v), s))));
        }
    } else {
        for (; i + VW <= n; i += VW) {
            v_f x0 = v_load(x + i), x1 = v_load(x + n + i), c = v_load(cos + i);
            v_f s = v_load(sin + i);
            v_store(y + i, v_sub(v_mul(x0, c), v_mul(x1, s)));
            v_store(y + n + i, v_add(v_mul(x0, s), v_mul(x1, c)));
        }
    }
    sheaf__rotate(i, n, side_by_side, x, cos, sin, y);
}

static float max_f32(int64_t n, const float *x) {
    enum { CHAINS = 4 }; /* of maxima, each of which waits for the one before */
    v_f max[CHAINS];
    UNROLL for (int c = 0; c < CHAINS; c++) max[c] = v_set1(-INFINITY);
    int64_t i = 0;
    for (; i + CHAINS * VW <= n; i += CHAINS * VW) {
        UNROLL for (int c = 0; c < CHAINS; c++) max[c] = v_max(v_load(x + i + c * VW), max[c]);
    }
    for (; i + VW <= n; i += VW) max[0] = v_max(v_load(x + i), max[0]);
    float m = v_largest(v_max(v_max(max[0], max[1]), v_max(max[2], max[3])));
    for (; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

/* Takes a vector to what shows whether all of them were finite: 0 times what is not is NaN. */
INLINE v_f finite_so_far(v_f acc, v_f x) { return v_fma(x, v_set1(0.0f), acc); }

static bool finite_f32(int64_t n, const float *x) {
    v_f acc = v_set1(0.0f);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) acc = finite_so_far(acc, v_load(x + i));
    if (i < n) acc = finite_so_far(acc, v_load_n(x + i, n - i));
    return v_sum(acc) == 0.0f;
}

static void scale_f32(int64_t n, float a, const float *x, float *y) {
    v_f va = v_set1(a);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_mul(va, v_load(x + i)));
    for (; i < n; i++) y[i] = a * x[i];
}

/* exp(x) = 2^n exp(r), |r| <= ln(2) / 2; exp(r) = 1 + r + r^2 q(r), q of degree 4 through five
 * Chebyshev points, to 1e-8, its terms by twos so that few wait for each other. Adding 1.5 * 2^23
 * rounds to an integer. ln(2) is split so that n times the first part is exact in the fma. `near`: |x| is
 * at most EXP_NEAR, so 2^n and the result are normal numbers. */
#define EXP_NEAR 86.0f
INLINE v_f v_exp_of(v_f x, bool near) {
    const v_f magic = v_set1(0x1.8p23f);
    const v_f t = v_fma(x, v_set1(1.44269504f), magic), n = v_sub(t, magic);
    v_f r = v_fnma(n, v_set1(0x1.62e4p-1f), x);
    r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), r);
    const v_f r2 = v_mul(r, r);
    const v_f low = v_fma(v_set1(0x1.5554dep-3f), r, v_set1(0.5f));
    v_f q = v_fma(v_set1(0x1.120b62p-7f), r, v_set1(0x1.55551ap-5f));
    q = v_fma(v_fma(v_set1(0x1.6d10fcp-10f), r2, q), r2, low);
    const v_f p = v_add(v_fma(q, r2, r), v_set1(1.0f));
    return near ? v_ldexp_near(p, t) : v_ldexp(p, n);
}

/* NaN passes: v_min and v_max return their second operand then. */
INLINE v_f v_exp(v_f x) {
    if (V_LDEXP_COSTS && v_all_within(x, EXP_NEAR)) return v_exp_of(x, true);
    return v_exp_of(v_max(v_set1(-104.5f), v_min(v_set1(89.0f), x)), false);
}

static float exp_f32(int64_t n, const float *x, float max, float *y) {
    v_f acc = v_set1(0.0f), vm = v_set1(max);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) {
        v_f e = v_exp(v_sub(v_load(x + i), vm));
        v_store(y + i, e);
        acc = v_add(acc, e);
    }
    if (i < n) {
        v_store_n(y + i, v_exp(v_sub(v_load_n(x + i, n - i), vm)), n - i);
        acc = v_add(acc, v_load_n(y + i, n - i));
    }
    return v_sum(acc);
}

INLINE v_f v_silu(v_f x) {
    v_f one = v_set1(1.0f);
    return v_div(x, v_add(one, v_exp(v_sub(v_set1(0.0f), x))));
}

/* 0.5 x (1 + tanh u) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE v_f v_gelu(v_f x) {
    v_f one = v_set1(1.0f);
    v_f t = v_fma(v_mul(x, x), v_set1(0.044715f), one);
    v_f u = v_mul(v_mul(x, v_set1(-2.0f * 0.7978845608f)), t);
    return v_div(x, v_add(one, v_exp(u)));
}

static void silu_f32(int64_t n, const float *x, float *y) {
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_silu(v_load(x + i)));
    if (i < n) v_store_n(y + i, v_silu(v_load_n(x + i, n - i)), n - i);
}

static void gelu_f32(int64_t n, const float *x, float *y) {
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_gelu(v_load(x + i)));
    if (i < n) v_store_n(y + i, v_gelu(v_load_n(x + i, n - i)), n - i);
}

static void swiglu_f32(int64_t n, const float *a, const float *b, float *y) {
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_mul(v_silu(v_load(a + i)), v_load(b + i)));
    if (i < n)
        v_store_n(y + i, v_mul(v_silu(v_load_n(a + i, n - i)), v_load_n(b + i, n - i)), n - i);
}

/* Four taps of so few tokens that vectors lie along channels: four rows are turned. The order of sums
 * is that of conv_rows. */
static void conv_channels(int64_t n_t, int64_t rows, const float *x, int64_t x_stride,
                          const float *w, int64_t w_stride, float *y, int64_t y_stride) {
    for (int64_t c = 0; c < rows; c += 4, x += 4 * x_stride, w += 4 * w_stride) {
        __m128 w0 = _mm_loadu_ps(w), w1 = _mm_loadu_ps(w + w_stride);
        __m128 w2 = _mm_loadu_ps(w + 2 * w_stride), w3 = _mm_loadu_ps(w + 3 * w_stride);
        _MM_TRANSPOSE4_PS(w0, w1, w2, w3);
        for (int64_t t = 0; t < n_t; t++) {
            const float *from = x + t;
            __m128 x0 = _mm_loadu_ps(from), x1 = _mm_loadu_ps(from + x_stride);
            __m128 x2 = _mm_loadu_ps(from + 2 * x_stride), x3 = _mm_loadu_ps(from + 3 * x_stride);
            _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
            __m128 sum = _mm_add_ps(_mm_setzero_ps(), _mm_mul_ps(x0, w0));
            sum = _mm_add_ps(sum, _mm_mul_ps(x1, w1));
            sum = _mm_add_ps(sum, _mm_mul_ps(x2, w2));
            _mm_storeu_ps(y + t * y_stride + c, _mm_add_ps(sum, _mm_mul_ps(x3, w3)));
        }
    }
}

static void conv_few(int64_t n_t, int64_t rows, int64_t taps, const float *x, int64_t x_stride,
                     const float *w, int64_t w_stride, float *y, int64_t y_stride) {
    const int64_t by_4 = taps == 4 && n_t < STATE_LANES ? rows - rows % 4 : 0;
    conv_channels(n_t, by_4, x, x_stride, w, w_stride, y, y_stride);
    conv_rows(n_t, rows - by_4, taps, x + by_4 * x_stride, x_stride, w + by_4 * w_stride, w_stride,
              y + by_4, y_stride);
}
