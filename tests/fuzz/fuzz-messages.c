/* The headers of control messages and of collectives between hosts, as another rank may send them:
 * a message is taken only if it is the one that this rank waits for. */
#include "fuzz.h"

#define post         post_control
#define MAGIC        MAGIC_OF_CONTROL
#define H_MAGIC      H_MAGIC_OF_CONTROL
#define H_KIND       H_KIND_OF_CONTROL
#define H_SEQ        H_SEQ_OF_CONTROL
#define H_SIZE       H_SIZE_OF_CONTROL
#define FRAME_BYTES  CONTROL_BYTES
#define write_header write_control_header
#include "comm/world/control.c"
#undef post
#undef MAGIC
#undef H_MAGIC
#undef H_KIND
#undef H_SEQ
#undef H_SIZE
#undef write_header
#include "comm/transport/wire.c"

static int n_received;

/* In place of MPI's, which is not started. */
int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count) {
    (void)status;
    (void)type;
    *count = n_received;
    return MPI_SUCCESS;
}

static void forget_failure(void) {
    MUST(memchr(sheaf__own_failure.text, 0, sizeof sheaf__own_failure.text));
    memset(&sheaf__own_failure, 0, sizeof sheaf__own_failure);
}

static void check_control(const uint8_t *data, size_t size) {
    const struct exchange e = {
        .kind = ALL_GATHER, .what = "texts", .root = -1, .send = data, .send_size = 40};
    if (!control.in) MUST(!sheaf__control_start());
    write_control_header(&e);
    if (size > CONTROL_BYTES) size = CONTROL_BYTES;
    memcpy(control.in + CONTROL_BYTES, data, size);
    const bool taken = !check_header(&e, 1, (int)size);
    const bool same = size == HEADER_BYTES + 40 && !memcmp(data, control.out, HEADER_BYTES - 1);
    MUST(taken || !same);
    if (taken) MUST(size == HEADER_BYTES + 40 && !memcmp(data, control.out, H_WHAT));
    memset(control.in + CONTROL_BYTES, 0, size);
    forget_failure();
}

static void check_wire(const uint8_t *data, size_t size) {
    static uint8_t in[2 * FRAME];
    static int rank_of[2] = {0, 1};
    static struct sheaf__host hosts[2] = {{.leader_rank = 0}, {.leader_rank = 1}};
    static struct sheaf_comm comm;
    static const MPI_Status status;
    comm.frames_in = in;
    comm.id = 7;
    comm.n = comm.n_hosts = 2;
    comm.rank_of = rank_of;
    comm.hosts = hosts;
    const struct sheaf__call c = {
        .comm = &comm, .tensor = "ffn_out", .head = {.node = 3, .bytes = 64}};
    if (size > FRAME) size = FRAME;
    memcpy(in + FRAME, data, size);
    n_received = (int)size;
    if (!check_frame(&c, 1, &status, 64)) {
        MUST(size == SHEAF__FRAME_HEADER + 64 && sheaf__get_le(data + H_GROUP, 4) == 7);
        MUST(sheaf__get_le(data + H_NODE, 4) == 3 && sheaf__get_le(data + H_SIZE, 8) == 64);
    }
    memset(in + FRAME, 0, size); /* all of it would take longer than the rest */
    forget_failure();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    sheaf__world()->size = 2;
    if (data[0] & 1)
        check_control(data + 1, size - 1);
    else
        check_wire(data + 1, size - 1);
    return 0;
}
