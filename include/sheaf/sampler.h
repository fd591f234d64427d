/* The choice of the next token from candidates.
 *
 * Steps, in this order, each working on what the one before has left: top-k, top-p, min-p,
 * temperature, draw. Temperature comes last, as in llama.cpp, so top-p and min-p ask about the
 * model's own probabilities, and the normaliser of the vocabulary at temperature 1 is all that is
 * needed from ranks that hold other parts of it. Where top-k is off, top-p measures against that
 * normaliser, so a list that was cut for transport gives the same result as long as it holds the
 * wanted share.
 *
 * Generator: xoshiro256** seeded by splitmix64 (Blackman and Vigna, 2018). The same seed and
 * candidates give the same tokens on every machine. A sampler belongs to one thread at a time.
 * sheaf_sampler_sample does not allocate. */
#ifndef SHEAF_SAMPLER_H
#define SHEAF_SAMPLER_H

#include "sheaf/candidates.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sheaf_sampler_params {
    size_t size;       /* sizeof(struct sheaf_sampler_params) */
    uint64_t seed;     /* any value */
    float temperature; /* 0: greedy, the best token always */
    float top_p;       /* the best tokens that together reach this share; 1: off */
    float min_p;       /* tokens at least this fraction as likely as the best; 0: off */
    int32_t top_k;     /* the best k; 0: off */
};

/* temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, seed 0 */
struct sheaf_sampler_params sheaf_sampler_default_params(void);

struct sheaf_sampler;

/* INVALID names the parameter that is out of range. */
enum sheaf_status sheaf_sampler_new(const struct sheaf_sampler_params *params, int32_t n_vocab,
                                    struct sheaf_sampler **out);
void sheaf_sampler_free(struct sheaf_sampler *s); /* accepts NULL */

/* How many candidates the lists must hold so that the result is exact (1 for greedy, top-k, else
 * the vocabulary), and whether they need the normaliser. */
size_t sheaf_sampler_n_candidates(const struct sheaf_sampler *s);
bool sheaf_sampler_needs_sum(const struct sheaf_sampler *s);

/* How many of the candidates top-k, top-p and min-p keep: the first n of the list, at least 1 if
 * there is any. */
size_t sheaf_sampler_n_kept(const struct sheaf_sampler *s, const struct sheaf_candidates *c);

/* The chosen token. INVALID if no candidate is possible. */
enum sheaf_status sheaf_sampler_sample(struct sheaf_sampler *s, const struct sheaf_candidates *c,
                                       int32_t *id);

/* Starts the random sequence afresh. */
void sheaf_sampler_reset(struct sheaf_sampler *s, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
