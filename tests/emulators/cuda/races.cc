/* See races.h. */
#include "races.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <set>
#include <unordered_map>
#include <utility>

/* ---- what is known of a byte ---- */

enum { PAGE = 4096, MOST_PAGES = 1024, ALL_LANES = -1 };

struct access {
    uint32_t launch, block;   /* launch 0: none */
    unsigned barriers, syncs; /* that its thread had passed */
    bool waited;              /* for the launches before */
    short warp, lane;
    const void *pc; /* of the code behind it */
};
struct cell {
    access write;
    access read, read_before; /* by two warps */
    bool copied;              /* by `write`, which is not over */
};
struct page {
    cell at[PAGE];
};

struct looking { /* of one OS thread */
    bool on;
    const char *kernel;
    const char *stacks, *stacks_end;
    const char *dynamic, *dynamic_end; /* shared memory */
    const char *fixed, *fixed_end;     /* that of kernels' variables: thread-local here */
    access now;
    uint32_t last_whole = 1; /* the last launch that began, or will, when all before it had ended */
    const unsigned *passed;
    uintptr_t last_number;
    page *last;
    std::unordered_map<uintptr_t, page *> pages;
    std::set<std::pair<const void *, const void *>> told;
};
#define here races_here

static page *page_of(uintptr_t number) {
    if (number == here->last_number) return here->last;
    page *&p = here->pages[number];
    if (!p) p = (page *)calloc(1, sizeof *p);
    if (!p) abort();
    here->last_number = number;
    return here->last = p;
}
static cell *cell_of(const char *p) {
    return &page_of((uintptr_t)p / PAGE)->at[(uintptr_t)p % PAGE];
}

/* ---- a launch ---- */

/* The thread-local memory of the library that this function is in. */
static int find_fixed(struct dl_phdr_info *info, size_t, void *) {
    bool own = false;
    size_t size = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        const uintptr_t from = info->dlpi_addr + h->p_vaddr;
        if (h->p_type == PT_TLS) size = h->p_memsz;
        if (h->p_type == PT_LOAD && (uintptr_t)find_fixed - from < h->p_memsz) own = true;
    }
    if (!own) return 0;
    here->fixed = (const char *)info->dlpi_tls_data;
    here->fixed_end = here->fixed + size;
    return 1;
}

void races_begin_launch(const emu_kernel &kernel, const char *stacks, const char *end) {
    if (!here) {
        here = new looking();
        dl_iterate_phdr(find_fixed, NULL);
        if (!here->fixed) abort();
    }
    if (here->pages.size() > MOST_PAGES) {
        for (auto &p : here->pages) free(p.second);
        here->pages.clear();
        here->last_number = 0;
    }
    here->kernel = kernel.name;
    here->stacks = stacks;
    here->stacks_end = end;
    here->now.launch++;
    if (!kernel.ahead) here->last_whole = here->now.launch;
}
void races_end_launch(void) { here->on = false; }
void races_all_done(void) {
    if (here) here->last_whole = here->now.launch + 1;
}
void races_begin_block(unsigned block, const void *p, size_t size) {
    here->now.block = block;
    here->dynamic = (const char *)p;
    here->dynamic_end = here->dynamic + size;
}
void races_run(int thread, const unsigned *passed) {
    here->now.warp = (short)(thread / 32);
    here->now.lane = (short)(thread % 32);
    here->passed = passed;
    here->on = true;
}

/* ---- what is told ---- */

static void place(const char *what, const access &a) {
    Dl_info info;
    if (!dladdr(a.pc, &info)) abort();
    fprintf(stderr,
            "cuda-emu:   %s: %s+%#lx, launch %u, block %u, warp %d, lane %d, after %u barriers, %u "
            "syncwarps%s\n",
            what, info.dli_fname,
            (unsigned long)((const char *)a.pc - 1 - (const char *)info.dli_fbase), a.launch,
            a.block, a.warp, a.lane, a.barriers, a.syncs, a.waited ? ", its wait" : "");
}
static void tell(const char *text, const char *first, const access &a, const char *second,
                 const access &b) {
    if (!here->told.insert(std::make_pair(a.pc, b.pc)).second) return;
    fprintf(stderr, "cuda-emu: a race of %s: %s\n", here->kernel, text);
    place(first, a);
    place(second, b);
    const char *machine = getenv("SHEAF_TEST_CUDA_EMU");
    if (machine && strstr(machine, "races=all")) return;
    abort();
}

/* Does nothing order a before the access that is made now? */
static bool beside(const access &a, bool shared) {
    const access &b = here->now;
    if (a.launch != b.launch) return !shared && !b.waited && a.launch >= here->last_whole;
    if (a.block != b.block) return !shared;
    if (a.barriers != b.barriers) return false;
    if (a.warp != b.warp) return true;
    return a.lane != b.lane && a.syncs == b.syncs;
}
static bool of_now(const access &a) {
    return a.launch == here->now.launch && a.block == here->now.block;
}

static bool in(const char *p, const char *from, const char *to) { return p >= from && p < to; }
/* Variables of a thread lie on its stack. */
static bool own(const char *p) {
    const char *stacks = here->stacks ? here->stacks : (const char *)__builtin_frame_address(0);
    return in(p, stacks, here->stacks_end);
}
static bool is_shared(const char *p) {
    return in(p, here->dynamic, here->dynamic_end) || in(p, here->fixed, here->fixed_end);
}

static void note_now(const void *pc) {
    here->now.barriers = here->passed[BARRIERS];
    here->now.syncs = here->passed[SYNCWARPS];
    here->now.waited = here->passed[WAITS] > 0;
    here->now.pc = pc;
}

static void read(const char *p, size_t size, const void *pc) {
    const bool shared = is_shared(p);
    note_now(pc);
    const access &now = here->now;
    for (const char *end = p + size; p < end; p++) {
        cell *c = cell_of(p);
        if (c->copied && of_now(c->write)) {
            tell("a copy is read before it is waited for", "copy", c->write, "read", now);
        } else if (beside(c->write, shared)) {
            tell("nothing orders a read behind a write", "write", c->write, "read", now);
        }
        if (c->read.launch == now.launch && c->read.block == now.block &&
            c->read.warp == now.warp) {
            const bool many = c->read.lane != now.lane && c->read.syncs == now.syncs &&
                              c->read.barriers == now.barriers;
            c->read = now;
            if (many) c->read.lane = ALL_LANES;
        } else {
            c->read_before = c->read;
            c->read = now;
        }
    }
}

static void write(char *p, size_t size, const void *pc, bool copied) {
    const bool shared = is_shared(p);
    note_now(pc);
    const access &now = here->now;
    for (char *end = p + size; p < end; p++) {
        cell *c = cell_of(p);
        if (c->copied && of_now(c->write)) {
            tell("a copy is overwritten before it is waited for", "copy", c->write, "write", now);
        } else if (beside(c->write, shared)) {
            tell("nothing orders two writes", "write", c->write, "write", now);
        }
        const access *reads[] = {&c->read, &c->read_before};
        for (const access *r : reads)
            if (beside(*r, shared))
                tell("nothing orders a write behind a read", "read", *r, "write", now);
        c->write = now;
        c->copied = copied;
    }
}

static void on_read(const void *p, size_t size, const void *pc) {
    if (here && here->on && !own((const char *)p)) read((const char *)p, size, pc);
}
static void on_write(void *p, size_t size, const void *pc) {
    if (here && here->on && !own((const char *)p)) write((char *)p, size, pc, false);
}

void races_copy_begins(void *to, size_t size) {
    write((char *)to, size, __builtin_return_address(0), true);
}
void races_copy_arrives(void *to, size_t size) {
    for (size_t i = 0; i < size; i++) { /* it was the thread's own until now */
        cell *c = cell_of((char *)to + i);
        const void *pc = c->write.pc;
        c->copied = false;
        note_now(pc);
        c->write = here->now;
    }
}
void races_read_by_warp(const void *p, size_t size) {
    const short lane = here->now.lane;
    here->now.lane = ALL_LANES;
    read((const char *)p, size, __builtin_return_address(0));
    here->now.lane = lane;
}

/* ---- what -fsanitize=thread calls ---- */

#define HOOKS(n)                                                                                   \
    extern "C" void __tsan_read##n(void *p) { on_read(p, n, __builtin_return_address(0)); }        \
    extern "C" void __tsan_write##n(void *p) { on_write(p, n, __builtin_return_address(0)); }      \
    extern "C" void __tsan_unaligned_read##n(void *p) {                                            \
        on_read(p, n, __builtin_return_address(0));                                                \
    }                                                                                              \
    extern "C" void __tsan_unaligned_write##n(void *p) {                                           \
        on_write(p, n, __builtin_return_address(0));                                               \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" void __tsan_read_range(void *p, size_t n) { on_read(p, n, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void *p, size_t n) {
    on_write(p, n, __builtin_return_address(0));
}
extern "C" void __tsan_init(void) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void) {}
extern "C" void __tsan_vptr_update(void **p, void *v) { *p = v; }
/* Those of the host's side: they are what they were. */
#define ATOMIC(bits)                                                                               \
    extern "C" uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *p, int) {           \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    extern "C" void __tsan_atomic##bits##_store(uint##bits##_t *p, uint##bits##_t v, int) {        \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    extern "C" uint##bits##_t __tsan_atomic##bits##_exchange(uint##bits##_t *p, uint##bits##_t v,  \
                                                             int) {                                \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
    }
ATOMIC(8)
ATOMIC(32)
ATOMIC(64)
