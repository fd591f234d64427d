/* Phrases that the texts about plans share. */
#ifndef SHEAF_SPLIT_EXPLAIN_H
#define SHEAF_SPLIT_EXPLAIN_H

#include "base/text.h"
#include "split/match.h"

/* A name to call the tensor by: its own, or that of its op. */
const char *sheaf__name_of(const struct sheaf_tensor *t);
/* "wq [4096 8] " */
void sheaf__put_tensor(struct sheaf__text *t, const struct sheaf_tensor *x);
/* "S0 {2048,2048}": elements of each member, which are easier to compare than units. */
void sheaf__put_state(struct sheaf__text *t, struct sheaf__st st, int n_members);
void sheaf__put_bytes(struct sheaf__text *t, int64_t bytes);
/* The expression, and which of its letters are summed or whole. */
void sheaf__put_rule(struct sheaf__text *t, const struct sheaf__rule *rule, const char *expr);

#endif
