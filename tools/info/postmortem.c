/* Reads dumps of flight recorders (src/comm/diag/recorder.c), lines them up by the number of each
 * collective, and looks for the first difference between ranks. Clocks are not compared: the rank
 * that waited least in the last collective came last. */
#include "postmortem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/text.h"

enum {
    TEXT = 64,
    MAX_LINE = 4096,
    MAX_RANKS = 65536,
    MAX_RECORDS =
        1 << 13, /* of a dump; a recorder keeps 2048. Each is looked for among all of another */
};

struct record {
    unsigned long long sequence, group, node, bytes;
    double start, wait, total; /* us; total < 0: it had not ended */
    char kind[24], tensor[TEXT];
};

struct dump {
    int rank, size, n;
    unsigned long long job;
    double now;
    char host[TEXT], version[TEXT], doing[256], failure[1024];
    struct record *records;
    size_t cap;
};

struct dumps {
    struct dump *list;
    int n, n_bad; /* n_bad: files that were named and left out */
    size_t cap;
};

static bool starts(const char *line, const char *word, char *rest, size_t size) {
    const size_t n = strlen(word);
    if (strncmp(line, word, n)) return false;
    const size_t len = strnlen(line + n, size - 1);
    memcpy(rest, line + n, len);
    rest[len] = 0;
    return true;
}

static bool add_record(struct dump *d, const char *line) {
    struct record r = {0};
    char total[32];
    int at = 0;
    if (d->n == MAX_RECORDS) return false;
    if (sscanf(line, "%llu %llu %23s %llu %llu %lf %lf %31s %n", &r.sequence, &r.group, r.kind,
               &r.node, &r.bytes, &r.start, &r.wait, total, &at) < 8)
        return false;
    snprintf(r.tensor, sizeof r.tensor, "%s", line + at);
    r.total = strcmp(total, "open") ? strtod(total, NULL) : -1;
    if (!sheaf__grow(&d->records, &d->cap, (size_t)d->n + 1, sizeof *d->records)) return false;
    d->records[d->n++] = r;
    return true;
}

/* The lines behind the first. Returns false if one is none of a dump. */
static bool read_lines(FILE *f, struct dump *d) {
    char line[MAX_LINE], text[64];
    bool ok = true;
    while (ok && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        sheaf__make_plain(line);
        if (line[0] == '#' || !line[0]) continue;
        if (starts(line, "version ", d->version, sizeof d->version) ||
            starts(line, "host ", d->host, sizeof d->host) ||
            starts(line, "doing ", d->doing, sizeof d->doing) ||
            starts(line, "failure ", d->failure, sizeof d->failure) ||
            starts(line, "records ", text, sizeof text))
            continue;
        if (starts(line, "job ", text, sizeof text))
            d->job = strtoull(text, NULL, 16);
        else if (starts(line, "now_us ", text, sizeof text))
            d->now = strtod(text, NULL);
        else if (starts(line, "rank ", text, sizeof text))
            ok = sscanf(text, "%d of %d", &d->rank, &d->size) == 2;
        else
            ok = add_record(d, line);
    }
    return ok;
}

/* f: NULL if it is no file that holds a dump. */
static enum sheaf_status read_dump(FILE *f, const char *path, struct dump *d) {
    char line[MAX_LINE];
    *d = (struct dump){.rank = -1};
    if (f && fgets(line, sizeof line, f) && !strncmp(line, "sheaf-flight 1", 14) &&
        read_lines(f, d) && d->rank >= 0 && d->rank < d->size && d->size <= MAX_RANKS)
        return SHEAF_STATUS_SUCCESS;
    free(d->records);
    d->records = NULL;
    return sheaf_set_error(SHEAF_STATUS_INVALID,
                           "%s is no dump of a flight recorder, or is damaged", path);
}

static enum sheaf_status open_dump(const char *path, struct dump *d) {
    /* a named pipe would wait for its writer */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f && fd >= 0) close(fd);
    if (!f)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot open %s: %s", path,
                               sheaf__errno_text(errno));
    const bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
    const enum sheaf_status status = read_dump(regular ? f : NULL, path, d);
    fclose(f);
    return status;
}

/* A place for one more, which counts when out->n does; NULL without memory. */
static struct dump *next_dump(struct dumps *out) {
    if (!sheaf__grow(&out->list, &out->cap, (size_t)out->n + 1, sizeof *out->list)) {
        sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory for the dumps");
        return NULL;
    }
    return &out->list[out->n];
}

static int by_rank(const void *a, const void *b) {
    return ((const struct dump *)a)->rank - ((const struct dump *)b)->rank;
}

/* All must be of one job; they get the order of their ranks. */
static enum sheaf_status line_up(struct dumps *all, const char *dir) {
    if (!all->n && all->n_bad)
        return sheaf_set_error(SHEAF_STATUS_INVALID, "%s holds no dump that can be read", dir);
    if (!all->n)
        return sheaf_set_error(SHEAF_STATUS_INVALID,
                               "%s holds no *.flight files; a job writes them when it fails and "
                               "SHEAF_FLIGHT_DIR is set",
                               dir);
    for (int i = 1; i < all->n; i++)
        if (all->list[i].job != all->list[0].job)
            return sheaf_set_error(SHEAF_STATUS_INVALID,
                                   "%s holds dumps of several jobs (%016llx, %016llx): give each "
                                   "job a directory of its own, or move the old files away",
                                   dir, all->list[0].job, all->list[i].job);
    qsort(all->list, (size_t)all->n, sizeof *all->list, by_rank);
    return SHEAF_STATUS_SUCCESS;
}

/* A dump that was cut short must not hide what the other ranks left. */
static void leave_out(struct dumps *out) {
    printf("left out: %s\n", sheaf_last_error());
    sheaf_clear_error();
    out->n_bad++;
}

static enum sheaf_status read_all(const char *dir, struct dumps *out) {
    DIR *d = opendir(dir);
    enum sheaf_status st = SHEAF_STATUS_SUCCESS;
    if (!d)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot open %s: %s", dir,
                               sheaf__errno_text(errno));
    for (const struct dirent *e; !st && (e = readdir(d));) {
        char path[4096];
        const size_t n = strlen(e->d_name);
        if (n < 7 || strcmp(e->d_name + n - 7, ".flight")) continue;
        struct dump *p = next_dump(out);
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (!p)
            st = SHEAF_STATUS_ALLOC_FAILED;
        else if (!open_dump(path, p))
            out->n++;
        else
            leave_out(out);
    }
    closedir(d);
    return st ? st : line_up(out, dir);
}

static const struct record *find(const struct dump *d, unsigned long long group,
                                 unsigned long long sequence) {
    for (int i = d->n - 1; i >= 0; i--)
        if (d->records[i].group == group && d->records[i].sequence == sequence)
            return &d->records[i];
    return NULL;
}

static const struct record *last(const struct dump *d) {
    return d->n ? &d->records[d->n - 1] : NULL;
}

static bool same(const struct record *a, const struct record *b) {
    return a->node == b->node && a->bytes == b->bytes && !strcmp(a->kind, b->kind);
}

static void print_record(const struct record *r) {
    printf("%s '%s' (node %llu, %llu bytes, collective %llu of group %llu)", r->kind, r->tensor,
           r->node, r->bytes, r->sequence, r->group);
}

/* Ranks first to last, if there is any. */
static void print_missing(const struct dumps *all, int first, int last) {
    if (first > last) return;
    if (first == last)
        printf("rank %d left no dump", first);
    else
        printf("ranks %d to %d left no dumps", first, last);
    if (all->n_bad)
        puts(" that can be read");
    else
        puts(first == last ? ": no rank of its host survived it"
                           : ": no rank of their hosts survived them");
}

static void print_ranks(const struct dumps *all) {
    const struct dump *first = &all->list[0];
    printf("job %016llx, sheaf %s, %d of %d ranks\n", first->job, first->version, all->n,
           first->size);
    for (int i = 0; i < all->n; i++)
        if (all->list[i].failure[0]) {
            printf("failure: %s\n", all->list[i].failure);
            break;
        }
    for (int i = 0; i < all->n; i++) {
        const struct dump *d = &all->list[i];
        const struct record *r = last(d);
        printf("rank %d (%s) in %s; ", d->rank, d->host, d->doing);
        if (!r) {
            puts("no collective recorded");
            continue;
        }
        printf("last: ");
        print_record(r);
        if (r->total < 0)
            printf(", open for %.1f ms\n", (d->now - r->start) * 1e-3);
        else
            printf(", ended after %.1f us, %.1f of them waiting\n", r->total, r->wait);
    }
    int next = 0;
    for (int i = 0; i < all->n; i++) {
        const int rank = all->list[i].rank;
        print_missing(all, next, rank - 1);
        next = rank + 1;
    }
    print_missing(all, next, first->size - 1);
}

/* The first collective of which two ranks have different records. */
static bool print_divergence(const struct dumps *all) {
    const struct record *best = NULL, *other = NULL;
    int best_rank = 0, other_rank = 0;
    const struct dump *a = &all->list[0];
    for (int i = 1; i < all->n; i++) {
        for (int k = 0; k < a->n; k++) {
            const struct record *mine = &a->records[k];
            if (best && mine->start >= best->start) break; /* in order of time */
            const struct record *theirs = find(&all->list[i], mine->group, mine->sequence);
            if (!theirs || same(mine, theirs)) continue;
            best = mine;
            best_rank = a->rank;
            other = theirs;
            other_rank = all->list[i].rank;
            break;
        }
    }
    if (!best) return false;
    printf("first divergence: rank %d is in ", best_rank);
    print_record(best);
    printf(" while rank %d is in ", other_rank);
    print_record(other);
    putchar('\n');
    return true;
}

/* The late rank: it has not begun the collective in which the others wait. */
static void print_late(const struct dumps *all) {
    const struct record *front = NULL;
    const struct dump *late = NULL;
    for (int i = 0; i < all->n; i++) {
        const struct record *r = last(&all->list[i]);
        if (r && (!front || r->group > front->group ||
                  (r->group == front->group && r->sequence > front->sequence)))
            front = r;
    }
    if (!front) {
        puts("no rank had begun a collective");
        return;
    }
    for (int i = 0; i < all->n; i++) {
        const struct dump *d = &all->list[i];
        const struct record *r = last(d);
        if (find(d, front->group, front->sequence)) continue;
        printf("late: rank %d (%s) has not begun ", d->rank, d->host);
        print_record(front);
        printf("; it was in %s%s\n", d->doing, r ? "" : ", and had begun none");
        late = d;
    }
    if (late) return;
    const struct record *least = NULL;
    bool open = false;
    for (int i = 0; i < all->n; i++) {
        const struct record *r = find(&all->list[i], front->group, front->sequence);
        open = open || r->total < 0;
        if (!least || r->wait < least->wait) {
            least = r;
            late = &all->list[i];
        }
    }
    printf(open ? "no rank is late: all had begun " : "no rank is late: all had ended ");
    print_record(front);
    putchar('\n');
    if (!open)
        printf("rank %d (%s) came last to it: it waited %.1f us\n", late->rank, late->host,
               least->wait);
}

static void print_all(const struct dumps *all) {
    print_ranks(all);
    print_divergence(all);
    print_late(all);
}

static void release(struct dumps *all) {
    for (int i = 0; i < all->n; i++) free(all->list[i].records);
    free(all->list);
}

enum sheaf_status postmortem_print(const char *dir) {
    struct dumps all = {0};
    const enum sheaf_status st = read_all(dir, &all);
    if (!st) print_all(&all);
    release(&all);
    return st;
}
