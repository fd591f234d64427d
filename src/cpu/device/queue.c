/* See queue.h. One lock; the thread holds it except inside tasks. */
#include "cpu/device/queue.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Far more than a scheduler submits between two waits; a full queue holds its submitter back. */
enum { CAPACITY = 256 };

struct entry {
    struct sheaf__cpu_task task;
    struct sheaf__cpu_queue *other; /* a wait for its `number` */
    uint64_t number;
};

struct sheaf__cpu_queue {
    atomic_int holders;
    pthread_t thread;
    void (*bind)(void *user);
    void *bind_user;
    pthread_mutex_t lock;
    pthread_cond_t submitted, done;
    uint64_t n_submitted, n_done;
    bool stop;
    enum sheaf_status failure;
    char text[512];
    struct entry ring[CAPACITY];
};

struct sheaf__cpu_queue *sheaf__cpu_queue_hold(struct sheaf__cpu_queue *q) {
    if (q) atomic_fetch_add(&q->holders, 1);
    return q;
}

void sheaf__cpu_queue_drop(struct sheaf__cpu_queue *q) {
    if (!q || atomic_fetch_sub(&q->holders, 1) != 1) return;
    pthread_cond_destroy(&q->submitted);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void *work(void *arg) {
    struct sheaf__cpu_queue *q = arg;
    q->bind(q->bind_user);
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->n_done == q->n_submitted && !q->stop) pthread_cond_wait(&q->submitted, &q->lock);
        if (q->n_done == q->n_submitted) break;
        const struct entry *e = &q->ring[q->n_done % CAPACITY]; /* kept until n_done passes it */
        const bool left_out = q->failure != SHEAF_STATUS_SUCCESS;
        pthread_mutex_unlock(&q->lock);
        enum sheaf_status st = SHEAF_STATUS_SUCCESS;
        if (e->other) {
            sheaf__cpu_queue_wait(e->other, e->number);
            sheaf__cpu_queue_drop(e->other);
        } else if (!left_out) {
            st = e->task.run(&e->task);
        }
        pthread_mutex_lock(&q->lock);
        if (st) {
            q->failure = st;
            snprintf(q->text, sizeof q->text, "%s", sheaf_last_error());
        }
        q->n_done++;
        pthread_cond_broadcast(&q->done);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

enum sheaf_status sheaf__cpu_queue_new(void (*bind)(void *user), void *user,
                                       struct sheaf__cpu_queue **out) {
    *out = NULL;
    struct sheaf__cpu_queue *q = calloc(1, sizeof *q);
    if (!q) return sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "cpu: no memory for a queue");
    atomic_init(&q->holders, 1);
    q->bind = bind;
    q->bind_user = user;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->submitted, NULL);
    pthread_cond_init(&q->done, NULL);
    if (sheaf__thread_start(&q->thread, work, q)) {
        sheaf__cpu_queue_drop(q);
        return sheaf_set_error(SHEAF_STATUS_FAILED,
                               "cpu: the system refuses a thread for a queue; see ulimit -u");
    }
    *out = q;
    return SHEAF_STATUS_SUCCESS;
}

void sheaf__cpu_queue_stop(struct sheaf__cpu_queue *q) {
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_signal(&q->submitted);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    sheaf__cpu_queue_drop(q);
}

static uint64_t submit(struct sheaf__cpu_queue *q, const struct entry *e) {
    pthread_mutex_lock(&q->lock);
    while (q->n_submitted - q->n_done == CAPACITY) pthread_cond_wait(&q->done, &q->lock);
    q->ring[q->n_submitted % CAPACITY] = *e;
    const uint64_t number = ++q->n_submitted;
    pthread_cond_signal(&q->submitted);
    pthread_mutex_unlock(&q->lock);
    return number;
}

uint64_t sheaf__cpu_queue_submit(struct sheaf__cpu_queue *q, const struct sheaf__cpu_task *task) {
    return submit(q, &(struct entry){.task = *task});
}

void sheaf__cpu_queue_submit_wait(struct sheaf__cpu_queue *q, struct sheaf__cpu_queue *other,
                                  uint64_t number) {
    submit(q, &(struct entry){.other = sheaf__cpu_queue_hold(other), .number = number});
}

uint64_t sheaf__cpu_queue_last(struct sheaf__cpu_queue *q) {
    pthread_mutex_lock(&q->lock);
    const uint64_t n = q->n_submitted;
    pthread_mutex_unlock(&q->lock);
    return n;
}

bool sheaf__cpu_queue_is_idle(struct sheaf__cpu_queue *q) {
    pthread_mutex_lock(&q->lock);
    const bool idle = q->n_submitted == q->n_done && !q->failure;
    pthread_mutex_unlock(&q->lock);
    return idle;
}

void sheaf__cpu_queue_wait(struct sheaf__cpu_queue *q, uint64_t number) {
    pthread_mutex_lock(&q->lock);
    while (q->n_done < number) pthread_cond_wait(&q->done, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

enum sheaf_status sheaf__cpu_queue_drain(struct sheaf__cpu_queue *q) {
    pthread_mutex_lock(&q->lock);
    while (q->n_done < q->n_submitted) pthread_cond_wait(&q->done, &q->lock);
    enum sheaf_status st = q->failure;
    if (st) st = sheaf_set_error(st, "%s", q->text);
    q->failure = SHEAF_STATUS_SUCCESS;
    pthread_mutex_unlock(&q->lock);
    return st;
}
