/* The communication thread of a member: runs collectives that were started while the member does
 * something else. It exists from the first start on. */
#ifndef SHEAF_COMM_COMM_THREAD_H
#define SHEAF_COMM_COMM_THREAD_H

struct sheaf__pending;

/* Accepts NULL. Lets what was started end first. */
void sheaf__comm_thread_free(struct sheaf__pending *pending);

#endif
