/* Compute buffers of a member in memory that the other members of its host read (sheaf_comm_alloc):
 * a product is summed where it was computed. For devices that compute in any host memory. */
#include "backend/host_memory.h"
#include "meta/meta_impl.h"

static struct meta_shared *owner(sheaf_backend_buffer_t buffer) { return buffer->buft->context; }

static void free_buffer(sheaf_backend_buffer_t buffer) {
    sheaf_comm_dealloc(owner(buffer)->comm, owner(buffer)->member, buffer->context);
}

static const struct sheaf_backend_buffer_i buffer_iface = {
    .free_buffer = free_buffer,
    .get_base = sheaf__host_get_base,
    .memset_tensor = sheaf__host_memset_tensor,
    .set_tensor = sheaf__host_set_tensor,
    .get_tensor = sheaf__host_get_tensor,
    .clear = sheaf__host_clear,
};

static const char *buft_name(sheaf_backend_buffer_type_t buft) {
    return sheaf_backend_buft_name(((struct meta_shared *)buft->context)->plain);
}
static size_t buft_alignment(sheaf_backend_buffer_type_t buft) {
    return sheaf_backend_buft_get_alignment(((struct meta_shared *)buft->context)->plain);
}
static bool buft_is_host(sheaf_backend_buffer_type_t buft) {
    (void)buft;
    return true;
}
/* Memory that cannot be shared is no error: the sum then copies it. */
static enum sheaf_status buft_alloc(sheaf_backend_buffer_type_t buft, size_t size,
                                    sheaf_backend_buffer_t *out) {
    struct meta_shared *s = buft->context;
    void *memory = NULL;
    if (sheaf_comm_alloc(s->comm, s->member, size, &memory))
        return sheaf_backend_buft_alloc_buffer(s->plain, size, out);
    *out = sheaf_backend_buffer_init(buft, &buffer_iface, memory, size);
    if (*out) return SHEAF_STATUS_SUCCESS;
    sheaf_comm_dealloc(s->comm, s->member, memory);
    return SHEAF_STATUS_ALLOC_FAILED;
}

static const struct sheaf_backend_buffer_type_i buft_iface = {
    .get_name = buft_name,
    .alloc_buffer = buft_alloc,
    .get_alignment = buft_alignment,
    .is_host = buft_is_host,
};

sheaf_backend_buffer_type_t sheaf__meta_shared_buft(struct meta_shared *s, struct sheaf_comm *comm,
                                                    int member, sheaf_backend_dev_t device) {
    struct sheaf_comm_level level;
    sheaf_comm_get_level(comm, SHEAF_COMM_LEVEL_SHARED, &level);
    s->comm = comm;
    s->member = member;
    s->plain = sheaf_backend_dev_buffer_type(device);
    s->buft = (struct sheaf_backend_buffer_type){&buft_iface, device, s};
    const bool fits = level.link.n > 1 && sheaf_backend_buft_is_host(s->plain) &&
                      sheaf_backend_dev_supports_buft(device, &s->buft);
    return fits ? &s->buft : s->plain;
}
