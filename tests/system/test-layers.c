/* Which folder may include what (docs/architecture.md): the layers stay layers because this reads
 * every #include of the tree. Also what every source file owes its reader: a bounded length and an
 * opening comment.
 *
 * Invariant: the checks are pure functions of a path and a text, so that the self-check can feed
 * them bad input and see it refused. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Folder prefix -> what a quoted include may start with. Besides, every file may include the public
 * headers ("sheaf/..."), and a file of the same folder ("NAME.h" without a slash). */
static const struct layer {
    const char *folder;
    const char *may[6];
} layers[] = {
    {"include/sheaf/", {0}},
    {"src/base/", {"base/"}},
    {"src/core/", {"core/", "base/"}},
    {"src/cpu/", {"cpu/", "core/", "base/"}},
    {"src/cuda/", {"cuda/", "core/", "base/"}},
    {"src/comm/", {"comm/", "core/", "base/"}},
    {"src/split/", {"split/", "core/", "base/"}},
    {"src/meta/", {"meta/", "split/", "comm/", "core/", "base/"}},
    {"src/model/", {"model/", "base/"}},
    {"tools/", {"common/", "model/", "base/"}},
};

/* External headers that belong to one folder. */
static const struct owned {
    const char *header, *folder;
} owned[] = {
    {"mpi.h", "src/comm/"}, {"nccl.h", "src/comm/"}, {"hwloc.h", "src/cpu/"},
    {"hwloc/", "src/cpu/"}, {"cuda", "src/cuda/"},   {"cublas", "src/cuda/"},
};

enum { MAX_LINES = 900 };

static bool starts(const char *text, const char *prefix) {
    return !strncmp(text, prefix, strlen(prefix));
}

/* Appends to a bounded text. */
__attribute__((format(printf, 2, 3))) static void note(char report[static 4096], const char *fmt,
                                                       ...) {
    const size_t used = strlen(report);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(report + used, 4096 - used, fmt, ap);
    va_end(ap);
}

/* Checks one include. Returns what is wrong, NULL if nothing. `sibling`: the file's folder holds a
 * header of that name. */
static const char *check_include(const char *path, const char *header, bool quoted, bool sibling) {
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        if (starts(header, owned[i].header) && !starts(path, owned[i].folder))
            return "this external header belongs to another folder";
    }
    if (!quoted) return NULL;
    if (starts(header, "sheaf/")) return NULL;
    if (strstr(header, "..")) return "an include does not climb folders";
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        if (!starts(path, layers[i].folder)) continue;
        const bool bare = !strchr(header, '/');
        if (bare && sibling && !starts(path, "include/")) return NULL;
        for (size_t j = 0; j < 6 && layers[i].may[j]; j++) {
            if (starts(header, layers[i].may[j])) return NULL;
        }
        return "its layer may not include this";
    }
    return "no layer covers this folder: add it to the table";
}

/* Does the line call setenv or putenv? */
static bool sets_environment(const char *line) {
    const size_t n = strcspn(line, "\n");
    const char *set = memmem(line, n, "setenv(", 7), *put = memmem(line, n, "putenv(", 7);
    return set || put;
}

/* Checks a whole file and appends findings to the report; returns how many there are. siblings: the
 * names in its folder, each between newlines. */
static int check_file(const char *path, const char *text, const char *siblings,
                      char report[static 4096]) {
    int wrong = 0, line = 0;
    if (!starts(text, "/*") && !starts(text, "//")) {
        note(report, "%s: does not open with a comment that says what it owns\n", path);
        wrong++;
    }
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        line++;
        const char *s = p + strspn(p, " \t");
        if (starts(path, "tools/") && sets_environment(s)) {
            note(report, "%s:%d: a tool sets no environment: use sheaf_setting_set\n", path, line);
            wrong++;
        }
        if (*s != '#') continue;
        s += 1 + strspn(s + 1, " \t");
        if (!starts(s, "include")) continue;
        s += 7;
        s += strspn(s, " \t");
        const char close = *s == '"' ? '"' : '>';
        char header[200], pattern[210];
        size_t n = 0;
        if (*s != '"' && *s != '<') continue;
        for (s++; *s && *s != close && *s != '\n' && n + 1 < sizeof header; s++) header[n++] = *s;
        header[n] = '\0';
        snprintf(pattern, sizeof pattern, "\n%s\n", header);
        const char *why = check_include(path, header, close == '"', strstr(siblings, pattern));
        if (why) {
            note(report, "%s:%d: %s: %s\n", path, line, header, why);
            wrong++;
        }
    }
    if (line > MAX_LINES) {
        note(report, "%s: %d lines; at most %d, split it by noun\n", path, line, MAX_LINES);
        wrong++;
    }
    return wrong;
}

static bool ends(const char *text, const char *suffix) {
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && !strcmp(text + n - m, suffix);
}

static char *read_all(const char *path) {
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f, "cannot open %s", path);
    size_t used = 0, cap = 1 << 16;
    char *text = malloc(cap);
    for (size_t n; (n = fread(text + used, 1, cap - used - 1, f)) > 0;) {
        used += n;
        if (cap - used < 2) text = realloc(text, cap *= 2);
    }
    text[used] = '\0';
    fclose(f);
    return text;
}

/* All C sources under SHEAF_SOURCE_DIR/folder, depth first. Returns how many files were read. */
static int walk(const char *folder, int *wrong, char report[static 4096]) {
    char path[1024], siblings[16384] = "\n";
    int files = 0;
    snprintf(path, sizeof path, "%s/%s", SHEAF_SOURCE_DIR, folder);
    DIR *dir = opendir(path);
    if (!dir) return 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        const size_t used = strlen(siblings);
        snprintf(siblings + used, sizeof siblings - used, "%s\n", e->d_name);
    }
    rewinddir(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        char name[600];
        snprintf(name, sizeof name, "%s%s", folder, e->d_name);
        if (e->d_type == DT_DIR) {
            strcat(name, "/");
            files += walk(name, wrong, report);
        } else if (ends(name, ".c") || ends(name, ".h") || ends(name, ".inc") ||
                   ends(name, ".cu") || ends(name, ".cuh")) {
            snprintf(path, sizeof path, "%s/%s", SHEAF_SOURCE_DIR, name);
            char *text = read_all(path);
            *wrong += check_file(name, text, siblings, report);
            free(text);
            files++;
        }
    }
    closedir(dir);
    return files;
}

Test(layers, includes_point_down_only) {
    static const struct {
        const char *folder;
        int least; /* files: a moved folder must not pass by being empty */
    } trees[] = {{"include/", 10}, {"src/", 15}, {"tools/", 10}};
    char report[4096] = "";
    int wrong = 0;
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        const int files = walk(trees[i].folder, &wrong, report);
        cr_assert_geq(files, trees[i].least, "%s has only %d files", trees[i].folder, files);
    }
    cr_assert_eq(wrong, 0, "%d findings:\n%s", wrong, report);
}

/* The checks above can fail: each line is a file that breaks one rule, or none. */
Test(layers, self_check) {
    static const struct {
        const char *path, *include;
        int wrong;
    } cases[] = {
        {"src/core/a.c", "#include \"core/internal.h\"", 0},
        {"src/core/a.c", "#include \"b.h\"", 0},
        {"src/core/a.c", "#include \"nowhere.h\"", 1},
        {"src/core/a.c", "#include \"cpu/team.h\"", 1},
        {"src/core/a.c", "  #  include \"comm/world.h\"", 1},
        {"src/core/a.c", "#include <stdio.h>", 0},
        {"src/core/a.c", "#include <mpi.h>", 1},
        {"src/core/a.c", "#include <hwloc.h>", 1},
        {"src/cpu/a.c", "#include <hwloc.h>", 0},
        {"src/cpu/a.c", "#include <hwloc/glibc-sched.h>", 0},
        {"src/cpu/a.c", "#include \"comm/comm.h\"", 1},
        {"src/cpu/kernels/a.c", "#include \"cpu/kernels.h\"", 0},
        {"src/comm/a.c", "#include <mpi.h>", 0},
        {"src/comm/a.c", "#include <cuda_runtime.h>", 1},
        {"src/comm/a.c", "#include \"split/plan.h\"", 1},
        {"src/comm/a.c", "#include \"../core/internal.h\"", 1},
        {"src/split/a.c", "#include \"core/internal.h\"", 0},
        {"src/split/a.c", "#include \"meta/meta.h\"", 1},
        {"src/meta/a.c", "#include \"split/plan.h\"", 0},
        {"src/meta/a.c", "#include <mpi.h>", 1},
        {"src/model/a.c", "#include \"sheaf/gguf.h\"", 0},
        {"src/model/a.c", "#include \"core/internal.h\"", 1},
        {"src/cuda/a.cu", "#include <cublasLt.h>", 0},
        {"tools/run/a.c", "#include \"model/run/session.h\"", 0},
        {"tools/run/a.c", "#include \"session.h\"", 1},
        {"tools/run/a.c", "#include \"common/json.h\"", 0},
        {"tools/run/a.c", "#include \"bench/bench.h\"", 1},
        {"tools/run/a.c", "#include \"meta/meta.h\"", 1},
        {"tools/run/a.c", "    if (x) setenv(\"SHEAF_FUSE\", \"0\", 1);", 1},
        {"src/core/a.c", "    setenv(\"SHEAF_FUSE\", \"0\", 1);", 0},
        {"include/sheaf/a.h", "#include \"sheaf/type.h\"", 0},
        {"include/sheaf/a.h", "#include \"b.h\"", 1},
        {"include/sheaf/a.h", "#include \"core/internal.h\"", 1},
        {"src/other/a.c", "#include \"core/internal.h\"", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], report[4096] = "";
        snprintf(text, sizeof text, "/* Owns nothing. */\nint x;\n%s\n", cases[i].include);
        const int wrong = check_file(cases[i].path, text, "\na.c\nb.h\n", report);
        cr_expect_eq(wrong, cases[i].wrong, "%s with %s: %d findings, not %d: %s", cases[i].path,
                     cases[i].include, wrong, cases[i].wrong, report);
    }
    char report[4096] = "";
    cr_expect_eq(check_file("src/core/a.c", "int x;\n", "\n", report), 1, "no opening comment");
    static char lines[MAX_LINES + 10] = "/**/";
    memset(lines + 4, '\n', MAX_LINES + 2);
    cr_expect_eq(check_file("src/core/a.c", lines, "\n", report), 1, "too many lines");
}
