/* Chooses the kernel table: once per process, the best of the modules on the search path that this
 * CPU runs, or the one that SHEAF_CPU_ISA names; and the format of activations,
 * SHEAF_CPU_ACTIVATIONS. A wrong setting is remembered and reported to every caller. A module that
 * is broken is named on standard error and the next best serves. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/module_search.h"
#include "base/settings.h"
#include "cpu/kernels/kernels.h"
#include "sheaf/cpu.h"
#include "sheaf/log.h"
#include "sheaf/version.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct sheaf__cpu_kernels *chosen;
static enum sheaf__rounding rounding;
static char rounding_name[SHEAF__CHOICE_BYTES];
static long repacks = 1;
static char refusal[2048];

static const struct sheaf__module_kind kernel_modules = {.what = "CPU kernels",
                                                         .family = "cpu",
                                                         .init = "sheaf_cpu_kernels_init",
                                                         .score = "sheaf_cpu_kernels_score"};

/* The table of an open module. NULL with the text set if it is none of this library. */
static const struct sheaf__cpu_kernels *table_of(const struct sheaf__module *m) {
    const struct sheaf__cpu_kernels_module *(*init)(void);
    SHEAF__MODULE_FIND(m->handle, kernel_modules.init, init);
    const struct sheaf__cpu_kernels_module *module = init();
    if (!module || module->version != SHEAF__CPU_KERNELS_VERSION ||
        module->table_size != sizeof *module->kernels || !module->kernels) {
        sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                        "load CPU kernels %s: built for version %d of the table, this library "
                        "(sheaf %s) has %d; install both from one build",
                        m->path, module ? module->version : 0, sheaf_version(),
                        SHEAF__CPU_KERNELS_VERSION);
        return NULL;
    }
    const char *name = module->kernels->name, *variant = m->name + m->name_len + 1;
    const size_t n = strlen(name);
    if (m->name == m->path || strncmp(variant, name, n) != 0 || strcmp(variant + n, ".so") != 0) {
        sheaf_set_error(SHEAF_STATUS_UNSUPPORTED,
                        "load CPU kernels %s: it holds the table '%s'; a file's name is "
                        "libsheaf-cpu-TABLE.so",
                        m->path, name);
        return NULL;
    }
    return module->kernels;
}

/* The best table of the files found; its file stays mapped for the life of the process. */
static const struct sheaf__cpu_kernels *best_table(struct sheaf__module_search *s) {
    const struct sheaf__cpu_kernels *table = NULL;
    struct sheaf__module *m;
    while (!table && (m = sheaf__module_next_best(s, NULL))) {
        table = table_of(m);
        if (!table) {
            sheaf__module_failed(s, SHEAF_STATUS_UNSUPPORTED);
            continue;
        }
        m->handle = NULL;
        sheaf__module_tell("CPU kernels: %s, %s, from %s", table->name,
                           s->variant ? "as SHEAF_CPU_ISA says" : "the best score", m->path);
    }
    return table;
}

static void choose_kernels(void) {
    const char *wanted = sheaf__setting_text(SHEAF__SET_CPU_ISA);
    struct sheaf__module_search s = {.kind = &kernel_modules, .variant = wanted};
    const bool portable = wanted && !strcmp(wanted, sheaf__cpu_kernels_portable.name);
    if (!portable) {
        sheaf__module_search(&s, NULL);
        chosen = best_table(&s);
    }
    const bool none = !s.n && !s.n_unfit && !s.status;
    if (!chosen && (portable || !wanted)) {
        chosen = &sheaf__cpu_kernels_portable;
        sheaf__module_tell("CPU kernels: portable, %s",
                           portable ? "as SHEAF_CPU_ISA says" : "no better ones are for this CPU");
    } else if (!chosen && s.n_unfit) {
        snprintf(refusal, sizeof refusal,
                 "SHEAF_CPU_ISA=%.40s: this CPU lacks that instruction set, or the system "
                 "withholds it; unset the variable to use the best there is",
                 wanted);
    } else if (!chosen && s.status) {
        snprintf(refusal, sizeof refusal, "SHEAF_CPU_ISA=%.40s: %s", wanted, s.text);
    } else if (!chosen) {
        snprintf(refusal, sizeof refusal,
                 "SHEAF_CPU_ISA=%.40s: there is no libsheaf-cpu-%.40s.so beside libsheaf, beside "
                 "the program or in SHEAF_BACKEND_PATH; this build made portable%s",
                 wanted, wanted, *SHEAF_CPU_KERNELS ? ", " SHEAF_CPU_KERNELS : "");
    }
    /* Not an error, but the log says why it is slow. */
    if (!wanted && none && SHEAF_CPU_KERNELS[0] != '\0') {
        sheaf_log(SHEAF_LOG_WARN,
                  "no libsheaf-cpu-*.so beside libsheaf, beside the program or in "
                  "SHEAF_BACKEND_PATH: the portable kernels are used, which are several times "
                  "slower (SHEAF_CPU_ISA=portable silences this)");
    } else if (!wanted && s.status && !sheaf__module_verbose()) {
        sheaf_log(SHEAF_LOG_WARN, "%s", s.text);
        sheaf_log(SHEAF_LOG_WARN, "the %s kernels are used instead", chosen->name);
    }
    sheaf__module_search_end(&s);
    sheaf_clear_error();
}

static void choose(void) {
    int choice = 0; /* f32, bf16, q8: as the enum has them */
    choose_kernels();
    enum sheaf_status status = sheaf__setting_choice(SHEAF__SET_CPU_ACTIVATIONS, &choice);
    if (!status) rounding = (enum sheaf__rounding)choice;
    if (!status) status = sheaf__setting_int(SHEAF__SET_CPU_REPACK, &repacks);
    if (status && chosen) {
        chosen = NULL;
        snprintf(refusal, sizeof refusal, "%s", sheaf_last_error());
    }
    sheaf__setting_choice_name(SHEAF__SET_CPU_ACTIVATIONS, (int)rounding, rounding_name);
}

const struct sheaf__cpu_kernels *sheaf__cpu_kernels(void) {
    pthread_once(&once, choose);
    if (!chosen) sheaf_set_error(SHEAF_STATUS_INVALID, "%s", refusal);
    return chosen;
}

/* All tables, worst first: what a process uses is one of them, so only tests come here. */
enum { MAX_TABLES = 16 };
static const struct sheaf__cpu_kernels *tables[MAX_TABLES];
static int n_tables;

static void list_tables(void) {
    struct sheaf__module_search s = {.kind = &kernel_modules};
    const struct sheaf__cpu_kernels *table;
    sheaf__module_search(&s, NULL);
    int at = MAX_TABLES;
    while (at > 1 && (table = best_table(&s))) {
        bool known = false;
        for (int i = at; i < MAX_TABLES; i++)
            known = known || !strcmp(tables[i]->name, table->name);
        if (!known) tables[--at] = table;
    }
    sheaf__module_search_end(&s);
    tables[--at] = &sheaf__cpu_kernels_portable;
    n_tables = MAX_TABLES - at;
}

const struct sheaf__cpu_kernels *sheaf__cpu_kernels_at(int i) {
    static pthread_once_t listed = PTHREAD_ONCE_INIT;
    pthread_once(&listed, list_tables);
    return i >= 0 && i < n_tables ? tables[MAX_TABLES - n_tables + i] : NULL;
}

const char *sheaf_cpu_isa_name(void) {
    const struct sheaf__cpu_kernels *k = sheaf__cpu_kernels();
    return k ? k->name : "?";
}

enum sheaf__rounding sheaf__rounding(void) {
    pthread_once(&once, choose);
    return rounding;
}

const char *sheaf__rounding_name(void) {
    pthread_once(&once, choose);
    return rounding_name;
}

bool sheaf__repacks(void) {
    pthread_once(&once, choose);
    return repacks != 0;
}

size_t sheaf__act_row_size(enum sheaf__act act, int64_t k) {
    switch (act) {
    case SHEAF__ACT_DIGITS:
        return (size_t)((k + 255) / 256) * sizeof(struct sheaf__act_digits);
    case SHEAF__ACT_WORDS:
        return (size_t)((k + 255) / 256) * sizeof(struct sheaf__act_words);
    case SHEAF__ACT_BF16:
        return (size_t)k * sizeof(uint16_t);
    case SHEAF__ACT_BYTES:
        return (size_t)((k + 255) / 256) * sizeof(struct sheaf__act_bytes);
    default:
        return (size_t)k * sizeof(float);
    }
}
