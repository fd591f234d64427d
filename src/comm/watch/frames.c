/* Frames of control connections: their bytes on the wire, sent and received without blocking. */
#include "comm/watch/frames.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum {
    MAGIC = 0x32484153, /* "SAH2" */
    F_MAGIC = 0,
    F_TYPE = 4,
    F_SIZE = 6,
};

void sheaf__frame_flush(struct sheaf__peer *p) {
    while (p->n_out && p->fd >= 0) {
        const ssize_t n = send(p->fd, p->out, p->n_out, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0) return; /* a broken connection shows when it is read */
        memmove(p->out, p->out + n, p->n_out - (size_t)n);
        p->n_out -= (size_t)n;
    }
}

void sheaf__frame_send(struct sheaf__peer *p, enum sheaf__frame type, const uint8_t *data,
                       size_t n) {
    sheaf__frame_flush(p);
    if (p->fd < 0 || p->n_out) return;
    sheaf__put_le(p->out + F_MAGIC, MAGIC, 4);
    sheaf__put_le(p->out + F_TYPE, (uint64_t)type, 2);
    sheaf__put_le(p->out + F_SIZE, n, 2);
    if (n) memcpy(p->out + SHEAF__LINK_HEADER, data, n);
    p->n_out = SHEAF__LINK_HEADER + n;
    sheaf__frame_flush(p);
}

bool sheaf__frame_receive(struct sheaf__peer *p, int *error) {
    const ssize_t n = recv(p->fd, p->in + p->n_in, sizeof p->in - p->n_in, MSG_DONTWAIT);
    *error = 0;
    if (n > 0) p->n_in += (size_t)n;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return true;
    if (n < 0) *error = errno;
    return false;
}

int sheaf__frame_next(const struct sheaf__peer *p, size_t *size) {
    if (p->n_in < SHEAF__LINK_HEADER) return 0;
    *size = (size_t)sheaf__get_le(p->in + F_SIZE, 2);
    if (sheaf__get_le(p->in + F_MAGIC, 4) != MAGIC || *size > SHEAF__ALARM_BYTES) return -1;
    const int type = (int)sheaf__get_le(p->in + F_TYPE, 2);
    if (type == 0) return -1;
    return p->n_in < SHEAF__LINK_HEADER + *size ? 0 : type;
}

const uint8_t *sheaf__frame_data(const struct sheaf__peer *p) { return p->in + SHEAF__LINK_HEADER; }

void sheaf__frame_drop(struct sheaf__peer *p, size_t size) {
    p->n_in -= SHEAF__LINK_HEADER + size;
    memmove(p->in, p->in + SHEAF__LINK_HEADER + size, p->n_in);
}
