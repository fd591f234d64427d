/* Rings of records, one a rank, and their dumps.
 *
 * A record is written by its rank alone and read after a failure. Its words are atomic because the
 * reader is another thread or process; the order of stores does not matter to a reader that comes
 * milliseconds later. */
#include "comm/diag/recorder.h"
#include "base/arith.h"
#include "base/file.h"
#include "base/locale.h"
#include "base/settings.h"
#include "base/text.h"
#include "sheaf/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/world/world.h"
#include "sheaf/version.h"

enum {
    R_SEQUENCE,
    R_BYTES,
    R_START,
    R_WAIT,
    R_TOTAL,
    R_WHAT,
    R_NAME,
    NAME_WORDS = 4,
    R_WORDS = 10
};
static_assert(R_NAME + NAME_WORDS == R_WORDS, "words of a record");
static const uint64_t OPEN = UINT64_MAX; /* total of a collective that has not ended */

struct sheaf__recorder {
    _Atomic uint64_t n; /* records ever made */
    _Atomic uint64_t words[SHEAF__RECORDS][R_WORDS];
};

static struct sheaf__recorder *all, *mine;
static _Thread_local bool records;    /* by the main thread and its helpers */
static _Thread_local uint64_t number; /* of the thread's open record */

size_t sheaf__recorder_bytes(void) { return sheaf__align_up(sizeof(struct sheaf__recorder), 128); }

static struct sheaf__recorder *recorder(int place) {
    return (struct sheaf__recorder *)(void *)((uint8_t *)all +
                                              (size_t)place * sheaf__recorder_bytes());
}

void sheaf__recorders_place(void *recorders, int place) {
    all = recorders;
    mine = all ? recorder(place) : NULL;
    records = all != NULL;
}

bool sheaf__recording(void) { return records && mine; }
void sheaf__set_recording(bool on) { records = on; }

static void put(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}
static uint64_t get(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

void sheaf__record_begin(uint32_t group, uint32_t kind, uint32_t node, uint64_t bytes,
                         uint64_t sequence, const char *tensor, uint64_t now) {
    if (!sheaf__recording()) return;
    number = atomic_fetch_add_explicit(&mine->n, 1, memory_order_relaxed);
    _Atomic uint64_t *w = mine->words[number % SHEAF__RECORDS];
    uint64_t name[NAME_WORDS] = {0};
    memcpy(name, tensor, strnlen(tensor, sizeof name));
    put(&w[R_SEQUENCE], sequence);
    put(&w[R_BYTES], bytes);
    put(&w[R_START], now);
    put(&w[R_WAIT], 0);
    put(&w[R_TOTAL], OPEN);
    put(&w[R_WHAT], (uint64_t)node << 32 | (group & 0xffffff) << 8 | (kind & 0xff));
    for (int i = 0; i < NAME_WORDS; i++) put(&w[R_NAME + i], name[i]);
}

void sheaf__record_end(uint64_t wait_ns, uint64_t total_ns) {
    if (!sheaf__recording()) return;
    _Atomic uint64_t *w = mine->words[number % SHEAF__RECORDS];
    put(&w[R_WAIT], wait_ns);
    put(&w[R_TOTAL], total_ns);
}

void sheaf__record_end_group(uint32_t group, uint64_t now) {
    if (!sheaf__recording()) return;
    const uint64_t n = get(&mine->n), first = n > SHEAF__RECORDS ? n - SHEAF__RECORDS : 0;
    for (uint64_t i = n; i-- > first;) {
        _Atomic uint64_t *w = mine->words[i % SHEAF__RECORDS];
        if ((get(&w[R_WHAT]) >> 8 & 0xffffff) != (group & 0xffffff)) continue;
        if (get(&w[R_TOTAL]) != OPEN) return;
        put(&w[R_TOTAL], now - get(&w[R_START]));
    }
}

/* Returns 0, or the errno of the record that could not be written. */
static int write_records(FILE *f, const struct sheaf__recorder *r) {
    const uint64_t n = get(&r->n), first = n > SHEAF__RECORDS ? n - SHEAF__RECORDS : 0;
    fprintf(f, "records %llu\n# sequence group kind node bytes start_us wait_us total_us tensor\n",
            (unsigned long long)n);
    for (uint64_t i = first; i < n; i++) {
        const _Atomic uint64_t *w = r->words[i % SHEAF__RECORDS];
        const uint64_t what = get(&w[R_WHAT]), total = get(&w[R_TOTAL]);
        char name[NAME_WORDS * 8 + 1] = "", time[32] = "open";
        for (int k = 0; k < NAME_WORDS; k++) {
            const uint64_t word = get(&w[R_NAME + k]);
            memcpy(name + (size_t)k * sizeof word, &word, sizeof word);
        }
        sheaf__make_plain(name);
        if (total != OPEN) snprintf(time, sizeof time, "%.3f", (double)total * 1e-3);
        if (fprintf(
                f, "%llu %llu %s %llu %llu %.3f %.3f %s %s\n",
                (unsigned long long)get(&w[R_SEQUENCE]), (unsigned long long)(what >> 8 & 0xffffff),
                sheaf_comm_kind_name((enum sheaf_comm_kind)(what & 0xff)),
                (unsigned long long)(what >> 32), (unsigned long long)get(&w[R_BYTES]),
                (double)get(&w[R_START]) * 1e-3, (double)get(&w[R_WAIT]) * 1e-3, time, name) < 0)
            return errno;
    }
    return 0;
}

/* The rank that the dump is of; its records lie in `place`. Returns 0 or an errno. */
static int write_dump(FILE *f, int rank, int place) {
    const struct sheaf__world *w = sheaf__world();
    char doing[160], failure[SHEAF__REASON_BYTES + 1];
    struct sheaf__activity a;
    sheaf__read_line(rank, &a);
    sheaf__activity_text(&a, doing, sizeof doing);
    fprintf(f, "sheaf-flight 1\nversion %s\njob %016llx\nrank %d of %d\nhost %s\n", sheaf_version(),
            (unsigned long long)w->job, rank, w->size, sheaf_world_host_name(rank));
    snprintf(failure, sizeof failure, "%.*s", SHEAF__REASON_BYTES, w->failure->text);
    sheaf__make_plain(doing);
    sheaf__make_plain(failure);
    fprintf(f, "doing %s\nfailure %s\n", doing, failure);
    fprintf(f, "now_us %.3f\n", (double)sheaf__time_ns() * 1e-3);
    const int why = write_records(f, recorder(place)), end = sheaf__close_written(f);
    return why ? why : end;
}

void sheaf__recorder_dump(int rank, int place) {
    const char *dir = sheaf__setting_text(SHEAF__SET_FLIGHT_DIR);
    char path[4096];
    if (!dir || !all) return;
    snprintf(path, sizeof path, "%s/sheaf-%016llx-rank%d.flight", dir,
             (unsigned long long)sheaf__world()->job, rank);
    const bool no_folder = mkdir(dir, 0777) && errno != EEXIST;
    const int fd = no_folder ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && !no_folder && errno == EEXIST) return;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    const locale_t own = uselocale(sheaf__c_locale());
    const int why = f ? write_dump(f, rank, place) : errno;
    uselocale(own);
    if (!why) return;
    if (fd >= 0) unlink(path); /* cut off, it would be refused as damaged */
    if (fd >= 0 && !f) close(fd);
    sheaf_log(SHEAF_LOG_WARN, "cannot write %s: %s", path, sheaf__errno_text(why));
}
