/* Opening a model whose files only some ranks can read. */
#ifndef SHEAF_MODEL_SHARE_H
#define SHEAF_MODEL_SHARE_H

#include "model/file/weights.h"

/* As sheaf__weights_open, on all ranks: the first rank that can read the files becomes the sender and
 * gives the metadata to ranks that cannot (status IO), which a warning names. Files that are damaged or
 * cut off on some rank are an error of all ranks with the name of that rank. Collective. */
enum sheaf_status sheaf__weights_open_on_ranks(const char *path, struct sheaf__weights **out);

#endif
