/* Checks every collective of a group against sums computed here in the canonical order, bit by bit.
 *
 * Used in-process by test-comm.c and on ranks by helper-comm.c. All members run check_member() with
 * the same arguments; each returns a hash over everything it received, which must be the same on
 * all of them. */
#ifndef SHEAF_TESTS_COMM_CHECK_H
#define SHEAF_TESTS_COMM_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sanitizer.h"
#include "sheaf/comm.h"

enum { CHECK_MAX_MEMBERS = 16 };

struct check {
    struct sheaf_comm *comm;
    int member;
    int n;
    int host[CHECK_MAX_MEMBERS]; /* host label of each member; the order of sums follows it */
    size_t largest;              /* floats of the largest message, 1200 or more */
    enum sheaf_type wire;        /* of sums between hosts */
    bool starts;                 /* most collectives are started rather than made */
    uint64_t hash;
    char error[256];
};

static inline uint32_t check_mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Values of magnitudes 2^-8 .. 2^7, so that the order of a sum shows in its last bits. */
static inline float check_value(int member, size_t i, uint32_t salt) {
    const uint32_t r = check_mix(check_mix((uint32_t)i + 0x9e3779b9u * salt) + (uint32_t)member);
    const float unit = (float)(int32_t)(r & 0xffff) / 32768.0f - 1.0f;
    return unit * (float)(1u << (r >> 28)) / 256.0f;
}

enum { CHECK_BLOCK = 32 }; /* no wire type rounds over more elements at a time */

/* To the wire type and back. */
static inline void check_round(const struct check *c, float *x) {
    uint8_t bytes[CHECK_BLOCK * sizeof *x];
    if (c->wire == SHEAF_TYPE_F32) return;
    sheaf_from_float(c->wire, x, bytes, CHECK_BLOCK);
    sheaf_to_float(c->wire, bytes, x, CHECK_BLOCK);
}

/* total [CHECK_BLOCK]: elements first .. of the sum of n: hosts in order of their first member,
 * members of a host in order. */
static inline void check_sums(const struct check *c, size_t first, size_t n, uint32_t salt,
                              float *total) {
    const size_t len = n - first < CHECK_BLOCK ? n - first : CHECK_BLOCK;
    struct check exact = *c;
    int n_hosts = 0;
    for (int m = 0; m < c->n; m++) {
        float sum[CHECK_BLOCK] = {0};
        bool seen = false;
        for (int q = 0; q < m; q++) seen = seen || c->host[q] == c->host[m];
        if (seen) continue;
        for (size_t i = 0; i < len; i++) sum[i] = check_value(m, first + i, salt);
        for (int q = m + 1; q < c->n; q++)
            for (size_t i = 0; i < len && c->host[q] == c->host[m]; i++)
                sum[i] += check_value(q, first + i, salt);
        check_round(c, sum);
        for (size_t i = 0; i < CHECK_BLOCK; i++) total[i] = n_hosts ? total[i] + sum[i] : sum[i];
        n_hosts++;
    }
    exact.wire = SHEAF_TYPE_F32;
    if (n_hosts > 1)
        check_round(c, total);
    else if (c->wire != SHEAF_TYPE_F32) /* one host: nothing travels */
        check_sums(&exact, first, n, salt, total);
}

/* x [n]: elements first .. of the sum; the number of the first that is wrong, or n. */
static inline size_t check_wrong_at(const struct check *c, const float *x, size_t first, size_t n,
                                    uint32_t salt) {
    for (size_t i = 0; i < n; i += CHECK_BLOCK) {
        float want[CHECK_BLOCK];
        check_sums(c, first + i, first + n, salt, want);
        for (size_t k = 0; k < CHECK_BLOCK && i + k < n; k++)
            if (memcmp(&x[i + k], &want[k], sizeof *want)) return i + k;
    }
    return n;
}

static inline void check_hash(struct check *c, const void *data, size_t size) {
    const uint8_t *p = data;
    for (size_t i = 0; i < size; i++) c->hash = (c->hash ^ p[i]) * 0x100000001b3u;
}

static inline bool check_fail(struct check *c, const char *what, size_t n, size_t at) {
    snprintf(c->error, sizeof c->error, "member %d: %s of %zu: wrong at %zu: %s", c->member, what,
             n, at, sheaf_last_error());
    return false;
}

/* Run, or started and waited for: not the same on all members. */
static inline enum sheaf_status check_call(const struct check *c, struct sheaf_comm_call call) {
    call.size = sizeof call;
    if (c->starts && (call.what.node + (uint32_t)c->member) % 4) {
        uint64_t ticket;
        const enum sheaf_status st = sheaf_comm_start(c->comm, c->member, &call, &ticket);
        return st ? st : sheaf_comm_wait(c->comm, c->member, ticket);
    }
    return sheaf_comm_run(c->comm, c->member, &call);
}

static inline bool check_all_reduce(struct check *c, float *x, size_t n, uint32_t salt) {
    for (size_t i = 0; i < n; i++) x[i] = check_value(c->member, i, salt);
    x[n] = 42; /* a sentinel behind the data */
    if (check_call(c, (struct sheaf_comm_call){
                          .kind = SHEAF_COMM_ALL_REDUCE, .recv = x, .n = n, .what = {salt, "x"}}))
        return check_fail(c, "all_reduce failed", n, 0);
    const size_t wrong = check_wrong_at(c, x, 0, n, salt);
    if (wrong < n) return check_fail(c, "all_reduce", n, wrong);
    if (x[n] != 42) return check_fail(c, "all_reduce overran", n, n);
    check_hash(c, x, n * sizeof *x);
    return true;
}

/* Block sizes that differ by member; pattern 0 even, 1 uneven, 2 some empty, 3 one has all. */
static inline size_t check_counts(const struct check *c, size_t n, int pattern, size_t *counts) {
    size_t total = 0;
    for (int m = 0; m < c->n; m++) {
        counts[m] = pattern == 0   ? n / (size_t)c->n
                    : pattern == 1 ? n * (size_t)(m + 1) / (size_t)(c->n * c->n)
                    : pattern == 2 ? (m % 2 ? n / (size_t)c->n + 3 : 0)
                                   : (m == c->n - 1 ? n : 0);
        total += counts[m];
    }
    return total;
}

static inline bool check_gather(struct check *c, uint8_t *send, uint8_t *recv, size_t n,
                                int pattern, uint32_t salt) {
    size_t bytes[CHECK_MAX_MEMBERS], at = 0;
    const size_t total = check_counts(c, n, pattern, bytes);
    for (int m = 0; m < c->member; m++) at += bytes[m];
    uint8_t *from = salt % 2 ? recv + at : send; /* in place every other time */
    memset(recv, 0, total);
    recv[total] = 77;
    for (size_t i = 0; i < bytes[c->member]; i++)
        from[i] = (uint8_t)check_mix((uint32_t)i * 31 + (uint32_t)c->member + salt);
    if (check_call(c, (struct sheaf_comm_call){.kind = SHEAF_COMM_ALL_GATHER,
                                               .send = from,
                                               .recv = recv,
                                               .sizes = bytes,
                                               .what = {salt, "g"}}))
        return check_fail(c, "all_gather failed", n, 0);
    at = 0;
    for (int m = 0; m < c->n; m++)
        for (size_t i = 0; i < bytes[m]; i++, at++)
            if (recv[at] != (uint8_t)check_mix((uint32_t)i * 31 + (uint32_t)m + salt))
                return check_fail(c, "all_gather", n, at);
    if (recv[total] != 77) return check_fail(c, "all_gather overran", n, total);
    check_hash(c, recv, total);
    return true;
}

static inline bool check_scatter(struct check *c, float *send, float *recv, size_t n, int pattern,
                                 uint32_t salt) {
    size_t counts[CHECK_MAX_MEMBERS], at = 0;
    const size_t total = check_counts(c, n, pattern, counts);
    for (size_t i = 0; i < total; i++) send[i] = check_value(c->member, i, salt);
    for (int m = 0; m < c->member; m++) at += counts[m];
    recv[counts[c->member]] = 42;
    if (check_call(c, (struct sheaf_comm_call){.kind = SHEAF_COMM_REDUCE_SCATTER,
                                               .send = send,
                                               .recv = recv,
                                               .sizes = counts,
                                               .what = {salt, "s"}}))
        return check_fail(c, "reduce_scatter failed", n, 0);
    struct check exact = *c; /* its sums travel as they are */
    exact.wire = SHEAF_TYPE_F32;
    const size_t wrong = check_wrong_at(&exact, recv, at, counts[c->member], salt);
    if (wrong < counts[c->member]) return check_fail(c, "reduce_scatter", n, wrong);
    if (recv[counts[c->member]] != 42) return check_fail(c, "reduce_scatter overran", n, n);
    return true; /* differs by member: not in the hash */
}

static inline bool check_broadcast(struct check *c, uint8_t *data, size_t n, int root,
                                   uint32_t salt) {
    const struct sheaf_comm_what what = {salt, "b"};
    for (size_t i = 0; i < n; i++)
        data[i] = c->member == root ? (uint8_t)check_mix((uint32_t)i + salt) : 0;
    data[n] = 77;
    if (sheaf_comm_broadcast(c->comm, c->member, data, n, root, &what))
        return check_fail(c, "broadcast failed", n, 0);
    for (size_t i = 0; i < n; i++)
        if (data[i] != (uint8_t)check_mix((uint32_t)i + salt))
            return check_fail(c, "broadcast", n, i);
    if (data[n] != 77) return check_fail(c, "broadcast overran", n, n);
    check_hash(c, data, n);
    return true;
}

/* Many under way at once, more than the queue holds; a direct one ends them all. */
static inline bool check_queue(struct check *c, float *x, size_t room, uint32_t salt) {
    enum { MANY = 40 };
    const size_t each = room / MANY;
    uint64_t ticket = 0, first = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        const size_t n = each * (i % 5) / 5;
        float *data = x + i * each;
        for (size_t k = 0; k < n; k++) data[k] = check_value(c->member, k, salt + i);
        if (sheaf_comm_start(c->comm, c->member,
                             &(struct sheaf_comm_call){.size = sizeof(struct sheaf_comm_call),
                                                       .kind = SHEAF_COMM_ALL_REDUCE,
                                                       .recv = data,
                                                       .n = n,
                                                       .what = {i, "queue"}},
                             &ticket))
            return check_fail(c, "start failed", n, i);
        if (i == 0) first = ticket;
    }
    if (sheaf_comm_wait(c->comm, c->member, first) || sheaf_comm_barrier(c->comm, c->member, NULL))
        return check_fail(c, "queue failed", each, 0);
    for (uint32_t i = 0; i < MANY; i++) {
        const size_t n = each * (i % 5) / 5,
                     wrong = check_wrong_at(c, x + i * each, 0, n, salt + i);
        if (wrong < n) return check_fail(c, "queued all_reduce", i, wrong);
    }
    if (sheaf_comm_wait(c->comm, c->member, ticket)) return check_fail(c, "wait", each, 0);
    check_hash(c, x + 4 * each, each * 4 / 5 * sizeof *x);
    return true;
}

/* Everything, over sizes from nothing to c->largest floats. False with c->error set. */
static inline bool check_member(struct check *c) {
    static const size_t sizes[] = {0,    1,    3,     16,    100,   512,    513,    1024,
                                   1025, 5000, 16384, 16411, 70001, 262144, 300007, 1048576};
    const size_t room = (c->largest + 64) * sizeof(float) * 2;
    float *a = malloc(room), *b = malloc(room);
    void *shared = NULL;
    bool ok = a && b;
    uint32_t salt = 1;
    if (ok && sheaf_comm_alloc(c->comm, c->member, room, &shared))
        ok = check_fail(c, "alloc", room, 0);
    float *r = shared, *mixed = c->member % 2 ? r : a; /* where the addends lie */
    c->hash = 0xcbf29ce484222325u;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes && ok; s++) {
        const size_t n = sizes[s];
        if (n > c->largest) break;
        ok = check_all_reduce(c, a, n, salt++) && check_all_reduce(c, r, n, salt++) &&
             check_all_reduce(c, mixed + n % 5, n, salt++);
        for (int pattern = SANITIZED && s % 2; pattern < 4 && ok; pattern += SANITIZED ? 2 : 1) {
            ok = check_gather(c, (uint8_t *)a, (uint8_t *)b, n * 4, pattern, salt) &&
                 check_gather(c, (uint8_t *)a, (uint8_t *)b, n * 4 + 1, pattern, salt + 1) &&
                 check_scatter(c, a, b, n, pattern, salt + 2);
            salt += 3;
        }
        for (int root = 0; root < c->n && ok; root++)
            ok = check_broadcast(c, (uint8_t *)a, n * 4, root, salt++);
        if (ok && sheaf_comm_barrier(c->comm, c->member, NULL))
            ok = check_fail(c, "barrier failed", 0, 0);
    }
    /* Many small ones in a row, of changing kinds: buffers are used again at once. */
    for (uint32_t i = 0; i < 300 && ok; i++) {
        if (i % 50 == 25) { /* another buffer of the same number */
            sheaf_comm_dealloc(c->comm, c->member, shared);
            ok = !sheaf_comm_alloc(c->comm, c->member, room, &shared);
            r = shared;
        }
        const size_t n = i % 11 < 8 ? i % 37 : 400 * (i % 11 - 7); /* of each algorithm */
        ok = ok && check_all_reduce(c, i % 7 == (uint32_t)c->member % 3 ? r : a, n, salt++);
        if (ok && i % 3 == 0)
            ok = check_gather(c, (uint8_t *)a, (uint8_t *)b, i, (int)(i % 4), salt++);
        if (ok && i % 5 == 0)
            ok = check_broadcast(c, (uint8_t *)a, i, (int)(i % (uint32_t)c->n), salt++);
    }
    ok = ok && (!c->starts || check_queue(c, a, room / sizeof *a, salt));
    sheaf_comm_dealloc(c->comm, c->member, shared);
    free(a);
    free(b);
    return ok;
}

#endif
