/* The communication thread of a member: runs collectives that were started while the member does
 * something else. It exists from the first start on. */
#ifndef SHEAF_COMM_ASYNC_H
#define SHEAF_COMM_ASYNC_H

#include <stdbool.h>
#include <stdint.h>

#include "sheaf/status.h"

struct sheaf__async;

/* Waits until all that was started has ended; the first failure's status and text. From the
 * member's own thread. */
enum sheaf_status sheaf__async_settle(struct sheaf__async *async);
/* Accepts NULL. Lets what was started end first. */
void sheaf__async_free(struct sheaf__async *async);

/* ---- on a communication thread ---- */
/* Whose thread the caller is; NULL: no communication thread. */
struct sheaf__async *sheaf__async_here(void);
/* Its naps are a part of what the collective is expected to take; as long as the collective has
 * reason to go on, the member's wait for it has. NULL for NULL. */
struct sheaf__idle *sheaf__async_idle(struct sheaf__async *async);
/* Of a collective that began at `start` and took `took`: the time before the member waited. */
uint64_t sheaf__async_hidden(uint64_t start, uint64_t took);

#endif
