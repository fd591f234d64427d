/* Which folder may use what (docs/architecture.md): the layers stay layers because this reads every
 * #include of the tree, and every symbol that an object file of src uses. Also what every source
 * file owes its reader: a bounded length and an opening comment.
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
#include <unistd.h>

enum { MAX_BELOW = 16 };

#define TENSOR  "tensor/", "quant/", "base/"
#define BACKEND "backend/", TENSOR

/* Folder prefix -> what a quoted include may start with, and below src/ also the folders whose
 * symbols it may use. The first row that fits a path counts. Besides, every file may include the
 * public headers ("sheaf/..."), and a file of the same folder ("NAME.h" without a slash). */
static const struct layer {
    const char *folder;
    const char *may[MAX_BELOW];
} layers[] = {
    {"include/sheaf/", {0}},
    {"src/base/", {"base/"}},
    {"src/quant/", {"quant/", "base/"}},
    {"src/tensor/", {TENSOR}},
    {"src/gguf/", {"gguf/", TENSOR}},
    {"src/backend/", {BACKEND}},
    {"src/alloc/", {"alloc/", BACKEND}},
    {"src/sched/", {"sched/", "alloc/", BACKEND}},
    {"src/cpu/", {"cpu/", BACKEND}},
    {"src/cuda/", {"cuda/", BACKEND}},
    {"src/comm/world/", {"comm/world/", "comm/testing.h", BACKEND}},
    {"src/comm/diag/", {"comm/diag/", "comm/world/", BACKEND}},
    {"src/comm/watch/", {"comm/watch/", "comm/diag/", "comm/world/", BACKEND}},
    {"src/comm/transport/", {"comm/transport/", "comm/diag/", "comm/world/", BACKEND}},
    {"src/comm/collectives/",
     {"comm/collectives/", "comm/transport/", "comm/diag/", "comm/world/", BACKEND}},
    {"src/comm/measure/",
     {"comm/measure/", "comm/collectives/", "comm/transport/", "comm/diag/", "comm/world/",
      BACKEND}},
    {"src/comm/group/",
     {"comm/group/", "comm/measure/", "comm/collectives/", "comm/transport/", "comm/diag/",
      "comm/world/", "comm/testing.h", BACKEND}},
    {"src/comm/device/", {"comm/device/", "comm/transport/", "comm/diag/", "comm/world/", BACKEND}},
    {"src/comm/", {"comm/", BACKEND}}, /* start.c */
    {"src/split/", {"split/", BACKEND}},
    {"src/meta/", {"meta/", "split/", "comm/", "alloc/", BACKEND}},
    {"src/model/", {"model/", "base/"}},
    {"src/ggml/", {"ggml/", "model/place/", "backend/optional.h", "base/"}},
    {"tools/", {"common/", "model/", "ggml/", "base/"}},
};

/* External headers that belong to one folder. */
static const struct owned {
    const char *header, *folder;
} owned[] = {
    {"mpi.h", "src/comm/"}, {"nccl.h", "src/comm/"}, {"hwloc.h", "src/cpu/"},
    {"hwloc/", "src/cpu/"}, {"cuda", "src/cuda/"},   {"cublas", "src/cuda/"},
};

/* Folders in which not only headers but files as well are in layers: none calls one that calls it.
 */
static const char *const acyclic[] = {"src/comm/"};

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
        for (size_t j = 0; j < MAX_BELOW && layers[i].may[j]; j++) {
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

/* ---- symbols ---- */

struct object {
    char source[200];
    const char *defines, *uses; /* names, each between newlines */
};

static struct object *definer(struct object *list, int n, const char *name) {
    char pattern[300];
    snprintf(pattern, sizeof pattern, "\n%s\n", name);
    for (int i = 0; i < n; i++)
        if (list[i].defines && strstr(list[i].defines, pattern)) return &list[i];
    return NULL;
}

static const struct layer *layer_of(const char *path) {
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if (starts(path, layers[i].folder)) return &layers[i];
    return NULL;
}

/* May a file use a function of another one (paths below src/)? Within a folder it may; the model
 * library and the plugin for ggml are above all and may use what is public. */
static bool may_use(const char *user, const char *owner, const char *name) {
    const struct layer *l = layer_of(user);
    if (!l || starts(owner, l->folder)) return l;
    const bool above = starts(user, "src/model/") || starts(user, "src/ggml/");
    if (above && !starts(name, "sheaf__")) return true;
    for (size_t j = 0; j < MAX_BELOW && l->may[j]; j++)
        if (starts(owner + strlen("src/"), l->may[j])) return true;
    return false;
}

static bool is_acyclic(const char *path) {
    for (size_t i = 0; i < sizeof acyclic / sizeof *acyclic; i++)
        if (starts(path, acyclic[i])) return true;
    return false;
}

/* calls[i * n + j]: the first symbol by which object i uses object j; NULL: none. */
static const char **find_calls(struct object *list, int n) {
    static char names[1 << 20];
    size_t used = 0;
    const char **calls = calloc((size_t)n * (size_t)n + 1, sizeof *calls);
    for (int i = 0; i < n; i++) {
        for (const char *p = list[i].uses ? list[i].uses + 1 : ""; *p;) {
            const size_t length = strcspn(p, "\n");
            char *name = names + used;
            cr_assert_lt(used + length + 1, sizeof names);
            memcpy(name, p, length);
            name[length] = '\0';
            const struct object *owner = definer(list, n, name);
            p += length + (p[length] == '\n');
            if (!owner || owner == &list[i] || calls[i * n + (owner - list)]) continue;
            calls[i * n + (owner - list)] = name;
            used += length + 1;
        }
    }
    return calls;
}

/* Depth first: a call of a file that is on the way to here closes a cycle. Returns how many. */
static int find_cycles(const struct object *list, int n, const char *const *calls, int at,
                       int *state, char report[static 4096]) {
    enum { UNSEEN, ON_THE_WAY, DONE };
    int wrong = 0;
    state[at] = ON_THE_WAY;
    for (int to = 0; to < n; to++) {
        if (!calls[at * n + to] || !is_acyclic(list[at].source) || !is_acyclic(list[to].source))
            continue;
        if (state[to] == ON_THE_WAY) {
            note(report, "%s: %s closes a cycle with %s\n", list[at].source, calls[at * n + to],
                 list[to].source);
            wrong++;
        } else if (state[to] == UNSEEN) {
            wrong += find_cycles(list, n, calls, to, state, report);
        }
    }
    state[at] = DONE;
    return wrong;
}

static int check_symbols(struct object *list, int n, char report[static 4096]) {
    int wrong = 0, *state = calloc((size_t)n + 1, sizeof *state);
    const char **calls = find_calls(list, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (calls[i * n + j] && !may_use(list[i].source, list[j].source, calls[i * n + j])) {
                note(report, "%s uses %s of %s, which is not below it\n", list[i].source,
                     calls[i * n + j], list[j].source);
                wrong++;
            }
    for (int i = 0; i < n; i++)
        if (!state[i]) wrong += find_cycles(list, n, calls, i, state, report);
    free(calls);
    free(state);
    return wrong;
}

/* The source of an object file, "src/comm/wire.c" of ".../src/CMakeFiles/sheaf.dir/comm/wire.c.o".
 * False if there is none: the build folder may hold objects of sources that have moved. */
static bool source_of(const char *object, char source[static 200]) {
    const char *top = strstr(object, "/src/"), *cmake = strstr(object, "CMakeFiles/"),
               *dir = cmake ? strstr(cmake, ".dir/") : NULL;
    char path[1024];
    if (!top || !dir) return false;
    const int n = snprintf(source, 200, "%.*s%s", (int)(cmake - top - 1), top + 1, dir + 5);
    if (n >= 200 || n < 4) return false;
    source[n - 2] = '\0'; /* ".o" */
    snprintf(path, sizeof path, "%s/%s", SHEAF_SOURCE_DIR, source);
    return access(path, R_OK) == 0;
}

/* text is NULL at first. */
static char *append(char *text, const char *name) {
    const size_t used = text ? strlen(text) : 1;
    char *grown = realloc(text, used + strlen(name) + 2);
    cr_assert_not_null(grown);
    if (!text) strcpy(grown, "\n");
    return strcat(strcat(grown, name), "\n");
}

/* Every object file of src, with its global symbols. */
static int read_objects(struct object *list, int max) {
    FILE *f = popen("find '" SHEAF_BUILD_DIR "/src' -path '*.dir/*.o' | xargs nm -A -P -g", "r");
    char line[2048], object[1024] = "", file[1024], name[600], kind;
    int n = 0;
    bool known = false;
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%1023[^:]: %599s %c", file, name, &kind) != 3) continue;
        if (strcmp(file, object) != 0) {
            snprintf(object, sizeof object, "%s", file);
            known = n < max && source_of(file, list[n].source);
            if (known) n++;
        }
        if (!known) continue;
        const char **to = kind == 'U' ? &list[n - 1].uses : &list[n - 1].defines;
        *to = append((char *)*to, name);
    }
    cr_assert_eq(pclose(f), 0);
    return n;
}

Test(layers, calls_point_down_only) {
    static struct object list[1000];
    char report[4096] = "";
    const int n = read_objects(list, 1000);
    cr_assert_geq(n, 100, "only %d objects", n);
    const int wrong = check_symbols(list, n, report);
    cr_assert_eq(wrong, 0, "%d findings:\n%s", wrong, report);
}

/* The check can fail: planted calls. */
Test(layers, self_check_of_symbols) {
    static const struct {
        const char *user, *owner, *back; /* back: what the owner uses of the user */
        int wrong;
    } cases[] = {
        {"src/comm/a.c", "src/backend/b.c", "", 0},
        {"src/backend/a.c", "src/comm/b.c", "", 1},
        {"src/backend/a.c", "src/meta/b.c", "", 1},
        {"src/base/a.c", "src/backend/b.c", "", 1},
        {"src/meta/a.c", "src/comm/b.c", "", 0},
        {"src/split/a.c", "src/comm/b.c", "", 1},
        {"src/model/a.c", "src/meta/b.c", "", 1},
        {"src/backend/a.c", "src/backend/b.c", "sheaf__a", 0}, /* a cycle where they are allowed */
        {"src/comm/a.c", "src/comm/b.c", "", 0},
        {"src/comm/a.c", "src/comm/b.c", "sheaf__a", 1},
        {"src/comm/start.c", "src/comm/watch/b.c", "", 0},
        {"src/comm/group/a.c", "src/comm/transport/b.c", "", 0},
        {"src/comm/transport/a.c", "src/comm/group/b.c", "", 1},
        {"src/comm/transport/a.c", "src/comm/watch/b.c", "", 1},
        {"src/comm/world/a.c", "src/comm/watch/b.c", "sheaf__a", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char back[100], report[4096] = "";
        snprintf(back, sizeof back, "\nmalloc\n%s\n", cases[i].back);
        struct object list[2] = {{.defines = "\nsheaf__a\n", .uses = "\nprintf\nsheaf__b\n"},
                                 {.defines = "\nsheaf__b\n", .uses = back}};
        snprintf(list[0].source, sizeof list[0].source, "%s", cases[i].user);
        snprintf(list[1].source, sizeof list[1].source, "%s", cases[i].owner);
        const int wrong = check_symbols(list, 2, report);
        cr_expect_eq(wrong, cases[i].wrong, "%s uses %s: %d findings, not %d: %s", cases[i].user,
                     cases[i].owner, wrong, cases[i].wrong, report);
    }
    char source[200];
    cr_expect(source_of("/x/src/CMakeFiles/sheaf.dir/base/log.c.o", source) &&
                  !strcmp(source, "src/base/log.c"),
              "%s", source);
    cr_expect_not(source_of("/x/src/CMakeFiles/sheaf.dir/comm/no_such_file.c.o", source));
}

/* The checks above can fail: each line is a file that breaks one rule, or none. */
Test(layers, self_check) {
    static const struct {
        const char *path, *include;
        int wrong;
    } cases[] = {
        {"src/backend/a.c", "#include \"tensor/graph.h\"", 0},
        {"src/backend/a.c", "#include \"b.h\"", 0},
        {"src/backend/a.c", "#include \"nowhere.h\"", 1},
        {"src/backend/a.c", "#include \"cpu/device/team.h\"", 1},
        {"src/backend/a.c", "  #  include \"comm/world.h\"", 1},
        {"src/backend/a.c", "#include <stdio.h>", 0},
        {"src/backend/a.c", "#include <mpi.h>", 1},
        {"src/backend/a.c", "#include <hwloc.h>", 1},
        {"src/cpu/a.c", "#include <hwloc.h>", 0},
        {"src/cpu/a.c", "#include <hwloc/glibc-sched.h>", 0},
        {"src/cpu/a.c", "#include \"comm/comm.h\"", 1},
        {"src/cpu/kernels/a.c", "#include \"cpu/kernels/kernels.h\"", 0},
        {"src/comm/a.c", "#include <mpi.h>", 0},
        {"src/comm/a.c", "#include <cuda_runtime.h>", 1},
        {"src/comm/a.c", "#include \"split/plan.h\"", 1},
        {"src/comm/start.c", "#include \"comm/watch/watch.h\"", 0},
        {"src/comm/transport/a.c", "#include \"comm/world/board.h\"", 0},
        {"src/comm/transport/a.c", "#include \"comm/watch/watch.h\"", 1},
        {"src/comm/world/a.c", "#include \"comm/diag/events.h\"", 1},
        {"src/comm/a.c", "#include \"../core/internal.h\"", 1},
        {"src/split/a.c", "#include \"tensor/graph.h\"", 0},
        {"src/split/a.c", "#include \"meta/meta.h\"", 1},
        {"src/meta/a.c", "#include \"split/plan.h\"", 0},
        {"src/meta/a.c", "#include <mpi.h>", 1},
        {"src/model/a.c", "#include \"sheaf/gguf.h\"", 0},
        {"src/model/a.c", "#include \"tensor/graph.h\"", 1},
        {"src/cuda/a.cu", "#include <cublasLt.h>", 0},
        {"tools/run/a.c", "#include \"model/run/session.h\"", 0},
        {"tools/run/a.c", "#include \"session.h\"", 1},
        {"tools/run/a.c", "#include \"common/json.h\"", 0},
        {"tools/run/a.c", "#include \"bench/bench.h\"", 1},
        {"tools/run/a.c", "#include \"meta/meta.h\"", 1},
        {"tools/run/a.c", "    if (x) setenv(\"SHEAF_CPU_ISA\", \"0\", 1);", 1},
        {"src/backend/a.c", "    setenv(\"SHEAF_CPU_ISA\", \"0\", 1);", 0},
        {"include/sheaf/a.h", "#include \"sheaf/type.h\"", 0},
        {"include/sheaf/a.h", "#include \"b.h\"", 1},
        {"include/sheaf/a.h", "#include \"tensor/graph.h\"", 1},
        {"src/other/a.c", "#include \"tensor/graph.h\"", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], report[4096] = "";
        snprintf(text, sizeof text, "/* Owns nothing. */\nint x;\n%s\n", cases[i].include);
        const int wrong = check_file(cases[i].path, text, "\na.c\nb.h\n", report);
        cr_expect_eq(wrong, cases[i].wrong, "%s with %s: %d findings, not %d: %s", cases[i].path,
                     cases[i].include, wrong, cases[i].wrong, report);
    }
    char report[4096] = "";
    cr_expect_eq(check_file("src/backend/a.c", "int x;\n", "\n", report), 1, "no opening comment");
    static char lines[MAX_LINES + 10] = "/**/";
    memset(lines + 4, '\n', MAX_LINES + 2);
    cr_expect_eq(check_file("src/backend/a.c", lines, "\n", report), 1, "too many lines");
}
