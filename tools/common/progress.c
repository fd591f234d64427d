/* The display of a load. Only rank 0 shows its own part: the others read as much in the same
 * time. */
#include "common/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "sheaf/world.h"

static const double LINE_EVERY_S = 10;

static double gib_per_s(const struct progress *p, double now, size_t done) {
    return now > p->start ? (double)done / (now - p->start) / (1024.0 * 1024 * 1024) : 0;
}

static void bar(struct progress *p, double now, size_t done, size_t total, char *text) {
    const int percent = (int)((double)done * 100 / (double)total);
    if (percent == p->percent && done < total) return;
    p->percent = percent;
    if (done >= total)
        snprintf(text, PROGRESS_LINE, "\r\033[K");
    else
        snprintf(text, PROGRESS_LINE, "\rloading [%.*s%*s] %3d %%, %.2f GiB/s ", percent / 4,
                 "=========================", 25 - percent / 4, "", percent,
                 gib_per_s(p, now, done));
}

void progress_text(struct progress *p, double now, size_t done, size_t total, char *text) {
    *text = 0;
    if (total == 0) return;
    if (p->start <= 0) {
        p->start = p->last = now;
        p->percent = -1;
    }
    if (p->terminal) {
        bar(p, now, done, total, text);
    } else if (now - p->last >= LINE_EVERY_S && done < total) {
        p->last = now;
        snprintf(text, PROGRESS_LINE, "loaded %.0f %% of %.2f GiB, %.2f GiB/s\n",
                 (double)done * 100 / (double)total, (double)total / (1024.0 * 1024 * 1024),
                 gib_per_s(p, now, done));
    }
}

bool progress_show(void *user, size_t done, size_t total) {
    struct progress *p = user;
    char text[PROGRESS_LINE];
    if (sheaf_world_rank() != 0) return true;
    p->terminal = isatty(STDERR_FILENO);
    progress_text(p, sheaf__seconds(), done, total, text);
    fputs(text, stderr);
    return true;
}
