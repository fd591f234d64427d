/* Which ops all members of a meta device can run. */
#ifndef SHEAF_META_SUPPORT_H
#define SHEAF_META_SUPPORT_H

#include "sheaf/backend.h"

struct meta_support;

/* members [n] with their ranks. Collective: may list the devices of the job. */
enum sheaf_status sheaf__meta_support_new(const sheaf_backend_dev_t *members, const int *rank,
                                          int n, struct meta_support **out);
void sheaf__meta_support_free(struct meta_support *s); /* accepts NULL */
/* The same answer on every rank. Collective if it asks all. */
bool sheaf__meta_supports(struct meta_support *s, const struct sheaf_tensor *op);
/* Has a rank no device of some member's kind? */
bool sheaf__meta_asks_all(const struct meta_support *s);

/* Devices of one kind give the same bits for the same op ("CUDA0", "CUDA1@2"; not "CPU0"). */
bool sheaf__meta_same_kind(sheaf_backend_dev_t a, sheaf_backend_dev_t b);

#endif
