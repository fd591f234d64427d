/* Every member has all of every weight and cache. */
#include "ggml/cut.h"

enum sheaf_status gg_choose_cuts(const struct gg_encoder *e, sheaf_backend_dev_t device,
                                 struct sheaf_split_state **states) {
    const int n_members = (int)sheaf_backend_meta_dev_n_members(device);
    for (size_t i = 0; i < e->n_unbound; i++) {
        states[i] = sheaf_split_state_mirrored(n_members);
        if (!states[i])
            return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "split states: out of memory");
    }
    return SHEAF_STATUS_SUCCESS;
}
