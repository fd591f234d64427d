/* What sheaf-info prints of links and of a model. Rank 0 prints. */
#ifndef SHEAF_TOOLS_INFO_MODEL_H
#define SHEAF_TOOLS_INFO_MODEL_H

#include "model/run/session.h"

/* Collective. */
enum sheaf_status links_print(void);

/* Hyperparameters; `name`: the file or the preset. */
void model_print(const struct sheaf__weights *model, const char *name);
/* The cut of every tensor, in natural order of the names. */
enum sheaf_status model_print_tensors(const struct sheaf__weights *model,
                                      struct sheaf__policy *policy);
/* A model that has no file: of a known shape, its matrices of types that `mix` gives. */
enum sheaf_status model_preset(const char *name, const char *mix, struct sheaf__weights **out);

#endif
