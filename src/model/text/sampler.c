/* Sampling; see sampler.h.
 *
 * Probabilities stay unnormalised weights exp(logit - max); only comparisons and one product with
 * the total are needed, so no logarithm and no library exp is. */
#include "sheaf/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/sized.h"
#include "model/text/exp.h"

struct sheaf_sampler {
    struct sheaf_sampler_params params;
    int32_t n_vocab;
    uint64_t state[4];
};

struct sheaf_sampler_params sheaf_sampler_default_params(void) {
    return (struct sheaf_sampler_params){
        .size = sizeof(struct sheaf_sampler_params),
        .temperature = 0.8f,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .top_k = 40,
    };
}

/* ---- random numbers ---- */

void sheaf_sampler_reset(struct sheaf_sampler *s, uint64_t seed) {
    for (int i = 0; i < 4; i++) s->state[i] = sheaf__random(&seed);
}

static uint64_t rotl(uint64_t x, int k) { return x << k | x >> (64 - k); }

static uint64_t next_u64(uint64_t s[4]) {
    uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

/* Uniform in [0, 1), 53 bits. */
static double next_uniform(uint64_t s[4]) { return (double)(next_u64(s) >> 11) * 0x1p-53; }

/* ---- the sampler ---- */

enum sheaf_status sheaf_sampler_new(const struct sheaf_sampler_params *params, int32_t n_vocab,
                                    struct sheaf_sampler **out) {
    struct sheaf_sampler_params p = {.size = sizeof p};
    *out = NULL;
    const enum sheaf_status st = sheaf__sized_take(params, &p, sizeof p, "sheaf_sampler_params");
    if (st) return st;
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"temperature", (double)p.temperature, 0, 1000},
        {"top-p", (double)p.top_p, 0, 1},
        {"min-p", (double)p.min_p, 0, 1},
        {"top-k", (double)p.top_k, 0, INT32_MAX},
        {"vocabulary", (double)n_vocab, 1, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return sheaf_set_error(SHEAF_STATUS_INVALID, "sampler: %s is %g; %g to %g is possible",
                                   ranges[i].name, ranges[i].value, ranges[i].low, ranges[i].high);
    struct sheaf_sampler *s = malloc(sizeof *s);
    if (!s) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "sampler: out of memory");
    *s = (struct sheaf_sampler){.params = p, .n_vocab = n_vocab};
    sheaf_sampler_reset(s, p.seed);
    *out = s;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf_sampler_free(struct sheaf_sampler *s) { free(s); }

static bool greedy(const struct sheaf_sampler *s) {
    return s->params.temperature == 0.0f || s->params.top_k == 1;
}

size_t sheaf_sampler_n_candidates(const struct sheaf_sampler *s) {
    if (greedy(s)) return 1;
    int32_t k = s->params.top_k;
    return (size_t)(k > 0 && k < s->n_vocab ? k : s->n_vocab);
}

bool sheaf_sampler_needs_sum(const struct sheaf_sampler *s) {
    return !greedy(s) && s->params.top_k == 0 && s->params.top_p < 1.0f;
}

/* Unnormalised probability of candidate i at a temperature. */
static double weight(const struct sheaf_candidates *c, size_t i, double temperature) {
    return sheaf__exp_negative(((double)c->data[i].logit - (double)c->data[0].logit) / temperature);
}

size_t sheaf_sampler_n_kept(const struct sheaf_sampler *s, const struct sheaf_candidates *c) {
    size_t n = c->n;
    if (n == 0 || greedy(s)) return n ? 1 : 0;
    if (s->params.top_k > 0 && (size_t)s->params.top_k < n) n = (size_t)s->params.top_k;
    if (s->params.top_p < 1.0f) {
        /* The list begins with the best of all, so c->sum_exp is relative to its logit. */
        double total = 0, reached = 0;
        if (s->params.top_k == 0)
            total = c->sum_exp;
        else
            for (size_t i = 0; i < n; i++) total += weight(c, i, 1);
        double wanted = (double)s->params.top_p * total;
        for (size_t i = 0; i < n; i++) {
            reached += weight(c, i, 1);
            if (reached >= wanted) n = i + 1;
        }
    }
    if (s->params.min_p > 0.0f)
        while (n > 1 && weight(c, n - 1, 1) < (double)s->params.min_p) n--;
    return n;
}

enum sheaf_status sheaf_sampler_sample(struct sheaf_sampler *s, const struct sheaf_candidates *c,
                                       int32_t *id) {
    size_t n = sheaf_sampler_n_kept(s, c);
    if (n == 0 || c->data[0].logit == -INFINITY)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "sampler: none of the %zu logits belongs to a possible token",
                               c->n_seen);
    if (sheaf_sampler_needs_sum(s) && !(c->sum_exp > 0))
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "sampler: top-p needs the sum over the vocabulary, but the "
                               "candidates were selected without it");
    *id = c->data[0].id;
    if (n == 1) return SHEAF_STATUS_SUCCESS;

    double temperature = (double)s->params.temperature, total = 0;
    for (size_t i = 0; i < n; i++) total += weight(c, i, temperature);
    double drawn = next_uniform(s->state) * total, sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += weight(c, i, temperature);
        *id = c->data[i].id;
        if (sum > drawn) break;
    }
    return SHEAF_STATUS_SUCCESS;
}
