/* This process's place among the ranks of its host. */
#include "backend/locality.h"

static int local_rank = 0, local_size = 1;
static bool is_set;

void sheaf__set_locality(int rank, int size) {
    local_rank = rank;
    local_size = size;
    is_set = true;
}

bool sheaf__get_locality(int *rank, int *size) {
    *rank = local_rank;
    *size = local_size;
    return is_set;
}
