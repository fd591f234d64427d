/* The board: lines of all ranks, and the failure record, in memory of the share group. */
#include "comm/world/board.h"

#include <stdio.h>

#include "comm/testing.h"
#include "comm/world/world.h"

void (*sheaf__phase_hook)(enum sheaf_phase phase, const char *what);

static struct sheaf__line own_line = {.kind = SHEAF__KIND_NONE};
static struct sheaf__board *_Atomic shared; /* the guard looks from its thread */
static _Thread_local char self;             /* its address is a thread's own */
static char *_Atomic main_thread;

bool sheaf__board_is_main(void) {
    return atomic_load_explicit(&main_thread, memory_order_relaxed) == &self;
}

struct sheaf__line *sheaf__line_here(void) {
    return shared ? &shared->lines[sheaf__world()->rank] : &own_line;
}
struct sheaf__line *sheaf__line(int rank) {
    return shared ? &shared->lines[rank] : rank == sheaf__world()->rank ? &own_line : NULL;
}

void sheaf__board_own(void) { atomic_store_explicit(&main_thread, &self, memory_order_relaxed); }

static void set_name(struct sheaf__line *l, const char *name) {
    uint64_t words[SHEAF__NAME_WORDS] = {0};
    if (name) memcpy(words, name, strnlen(name, sizeof words));
    for (int i = 0; i < SHEAF__NAME_WORDS; i++)
        atomic_store_explicit(&l->name[i], words[i], memory_order_relaxed);
}

#define SET(field, value) atomic_store_explicit(&l->field, value, memory_order_relaxed)
#define GET(field)        atomic_load_explicit(&l->field, memory_order_relaxed)

/* The time comes first: a new phase with an old time would be over its limit (sheaf__doing). */
static void change(struct sheaf__line *l, enum sheaf_phase phase, uint32_t kind, uint64_t now) {
    SET(since_ns, now);
    atomic_store_explicit(&l->kind, kind, memory_order_release);
    atomic_store_explicit(&l->phase, (uint32_t)phase, memory_order_release);
    SET(changes, GET(changes) + 1); /* one writer */
}

void sheaf__enter(enum sheaf_phase phase, const char *what, uint64_t now) {
    if (!sheaf__board_is_main()) return;
    struct sheaf__line *l = sheaf__line_here();
    set_name(l, what);
    change(l, phase, SHEAF__KIND_NONE, now);
    if (sheaf__phase_hook) sheaf__phase_hook(phase, what);
}

void sheaf__enter_collective(uint32_t kind, uint32_t node, uint64_t bytes, uint64_t sequence,
                             const char *tensor, uint64_t now) {
    if (!sheaf__board_is_main()) return;
    struct sheaf__line *l = sheaf__line_here();
    SET(node, node);
    SET(bytes, bytes);
    SET(sequence, sequence);
    set_name(l, tensor);
    change(l, SHEAF_PHASE_COLLECTIVE, kind, now);
    if (sheaf__phase_hook) sheaf__phase_hook(SHEAF_PHASE_COLLECTIVE, tensor);
}

enum sheaf_phase sheaf__enter_exchange(const char *what, uint64_t now) {
    const enum sheaf_phase outer = sheaf__phase();
    if (!sheaf__board_is_main()) return outer;
    struct sheaf__line *l = sheaf__line_here();
    const bool own_phase = outer != SHEAF_PHASE_IDLE && outer != SHEAF_PHASE_COMPUTE;
    set_name(l, what);
    change(l, own_phase ? outer : SHEAF_PHASE_COLLECTIVE, SHEAF__KIND_EXCHANGE, now);
    if (sheaf__phase_hook) sheaf__phase_hook(sheaf__phase(), what);
    return outer;
}

void sheaf__leave_exchange(enum sheaf_phase outer) {
    if (!sheaf__board_is_main()) return;
    struct sheaf__line *l = sheaf__line_here();
    change(l, outer == SHEAF_PHASE_COMPUTE ? SHEAF_PHASE_IDLE : outer, SHEAF__KIND_NONE,
           sheaf__time_ns());
}

void sheaf__leave(void) {
    if (!sheaf__board_is_main()) return;
    struct sheaf__line *l = sheaf__line_here();
    SET(phase, SHEAF_PHASE_IDLE);
}

void sheaf__touch(uint64_t now) {
    if (sheaf__board_is_main()) sheaf__touch_main(now);
}

void sheaf__touch_main(uint64_t now) {
    struct sheaf__line *l = sheaf__line_here();
    SET(since_ns, now);
}

void sheaf__next_step(void) {
    if (!sheaf__board_is_main()) return;
    struct sheaf__line *l = sheaf__line_here();
    SET(step, GET(step) + 1);
}

enum sheaf_phase sheaf__phase(void) {
    return (enum sheaf_phase)atomic_load_explicit(&sheaf__line_here()->phase, memory_order_relaxed);
}

struct sheaf__doing sheaf__doing(const struct sheaf__line *l) {
    struct sheaf__doing d;
    d.phase = (enum sheaf_phase)atomic_load_explicit(&l->phase, memory_order_acquire);
    d.exchanges = atomic_load_explicit(&l->kind, memory_order_acquire) == SHEAF__KIND_EXCHANGE;
    d.since_ns = GET(since_ns);
    return d;
}

void sheaf_world_enter(enum sheaf_phase phase, const char *what) {
    if ((unsigned)phase < SHEAF_PHASE_COUNT) sheaf__enter(phase, what, sheaf__time_ns());
}

void sheaf__read_line(int rank, struct sheaf__activity *out) {
    sheaf__read(sheaf__line(rank), out);
}

void sheaf__read(const struct sheaf__line *l, struct sheaf__activity *out) {
    *out = (struct sheaf__activity){.kind = SHEAF__KIND_NONE};
    if (!l) return;
    const uint32_t phase = GET(phase);
    out->phase = phase < SHEAF_PHASE_COUNT ? (enum sheaf_phase)phase : SHEAF_PHASE_IDLE;
    out->kind = GET(kind);
    out->node = GET(node);
    out->bytes = GET(bytes);
    out->sequence = GET(sequence);
    out->step = GET(step);
    out->changes = GET(changes);
    for (int i = 0; i < SHEAF__NAME_WORDS; i++) {
        const uint64_t word = GET(name[i]);
        memcpy(out->name + (size_t)i * sizeof word, &word, sizeof word);
    }
}

void sheaf__activity_text(const struct sheaf__activity *a, char *text, size_t size) {
    char step[32] = "";
    if (a->step && a->phase != SHEAF_PHASE_LOAD)
        snprintf(step, sizeof step, " of step %llu", (unsigned long long)a->step);
    if (a->phase == SHEAF_PHASE_COLLECTIVE && a->kind < SHEAF_COMM_KIND_COUNT)
        snprintf(text, size, "collective %s '%s' (node %u, %llu bytes, collective %llu)%s",
                 sheaf_comm_kind_name((enum sheaf_comm_kind)a->kind), a->name, a->node,
                 (unsigned long long)a->bytes, (unsigned long long)a->sequence, step);
    else if (a->name[0] && a->phase != SHEAF_PHASE_IDLE)
        snprintf(text, size, "%s '%s'%s", sheaf__phase_names[a->phase], a->name, step);
    else
        snprintf(text, size, "%s%s%s", sheaf__phase_names[a->phase],
                 a->phase == SHEAF_PHASE_IDLE && *step ? ", at the end" : "", step);
}

void sheaf__where(int rank, char *text, size_t size) {
    struct sheaf__activity a;
    char what[160];
    sheaf__read_line(rank, &a);
    sheaf__activity_text(&a, what, sizeof what);
    snprintf(text, size, "%s, last seen in %s", sheaf__rank_text(rank), what);
}

size_t sheaf__board_bytes(void) {
    return sizeof(struct sheaf__board) + (size_t)sheaf__world()->size * sizeof(struct sheaf__line);
}

void sheaf__board_place(void *memory) {
    struct sheaf__world *w = sheaf__world();
    struct sheaf__board *b = memory;
    if (b) {
        const uint64_t now = sheaf__time_ns();
        for (int r = 0; r < w->size; r++)
            atomic_store_explicit(&b->lines[r].heard_ns, now, memory_order_relaxed);
    }
    w->failure = b ? &b->failure : &sheaf__own_failure;
    shared = b;
}
