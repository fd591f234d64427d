/* A queue of tasks with one thread that runs them in order: what makes a CPU backend asynchronous.
 *
 * A backend gets its queue with the first task that is worth one; until then nothing here exists.
 * Tasks are numbered from 1 as they are submitted. A point in a queue is (queue, number), and a
 * task of one queue may wait for a point of another: points exist only once their task is
 * submitted, so waits cannot form a ring. After a task has failed the following ones are left out
 * until someone takes the failure; points still pass. Queues are counted, so that a point outlives
 * the backend. */
#ifndef SHEAF_CPU_DEVICE_QUEUE_H
#define SHEAF_CPU_DEVICE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sheaf/status.h"

struct sheaf__cpu_queue;

struct sheaf__cpu_task {
    enum sheaf_status (*run)(const struct sheaf__cpu_task *task);
    void *a, *b; /* what `run` wants */
    const void *from;
    size_t size;
};

/* Starts the thread, which first calls bind(user). *out is held once. */
enum sheaf_status sheaf__cpu_queue_new(void (*bind)(void *user), void *user,
                                       struct sheaf__cpu_queue **out);
struct sheaf__cpu_queue *sheaf__cpu_queue_hold(struct sheaf__cpu_queue *queue); /* accepts NULL */
void sheaf__cpu_queue_drop(struct sheaf__cpu_queue *queue);                     /* accepts NULL */
/* Runs what is left, ends the thread, drops. */
void sheaf__cpu_queue_stop(struct sheaf__cpu_queue *queue);

/* These two by one thread at a time. Waits while the queue is full. The number of the task. */
uint64_t sheaf__cpu_queue_submit(struct sheaf__cpu_queue *queue,
                                 const struct sheaf__cpu_task *task);
/* The queue's later tasks wait for the point; holds `other` meanwhile. */
void sheaf__cpu_queue_submit_wait(struct sheaf__cpu_queue *queue, struct sheaf__cpu_queue *other,
                                  uint64_t number);

/* Any thread: */
uint64_t sheaf__cpu_queue_last(struct sheaf__cpu_queue *queue); /* number submitted last */
bool sheaf__cpu_queue_is_idle(struct sheaf__cpu_queue *queue);
/* Until task `number` is done or left out. */
void sheaf__cpu_queue_wait(struct sheaf__cpu_queue *queue, uint64_t number);
/* Until all is done; takes the failure, if there is one, with its text. */
enum sheaf_status sheaf__cpu_queue_drain(struct sheaf__cpu_queue *queue);

#endif
