/* Plain English, and documents that are true of the tree: a list of words that
 * comments, messages, help and documents do not use; the width of documents;
 * paths and links in documents; functions that docs/architecture.md names; the
 * form of docs/decisions.md.
 *
 * Invariant: each check is a pure function of a text, except that paths and
 * links are looked up in the tree, so that the self-checks can feed it bad
 * input and see it refused. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <dirent.h>
#include <glob.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 120, REPORT = 1 << 15 };

static char report[REPORT];
static int findings;

__attribute__((format(printf, 1, 2))) static void found(const char *fmt, ...) {
    const size_t used = strlen(report);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(report + used, sizeof report - used, fmt, ap);
    va_end(ap);
    findings++;
}

/* Findings of a check on a text that the self-checks give. */
static int findings_of(void (*check)(const char *, const char *), const char *path,
                       const char *text) {
    findings = 0;
    check(path, text);
    const int n = findings;
    report[0] = '\0';
    findings = 0;
    return n;
}

static bool starts(const char *text, const char *prefix) {
    return !strncmp(text, prefix, strlen(prefix));
}

static bool ends(const char *text, const char *suffix) {
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && !strcmp(text + n - m, suffix);
}

/* ---- words ---- */

/* A word at the end of which there is a * may continue. Each has an ordinary
 * word that says the same: "a rank that", "the oldest", "computes", "except
 * for", "no rank". */
static const char *const words[] = {
    "whoever",    "whomever",  "whosoever", "eldest",  "reckon*", "but for",
    "nobody",     "anybody",   "somebody",  "himself", "herself", "be it",
    "can be had", "to be had", "lest",      "whence",  "whither", "hereof",
};

/* A text as a reader sees it: one line, without the marks that begin the lines
 * of comments and those that join the parts of a long string; line[i] is the
 * line of flat[i]. */
struct flat {
    char *text;
    int *line;
    size_t n;
};

static struct flat flatten(const char *text) {
    const size_t size = strlen(text) + 2;
    struct flat f = {malloc(size), malloc(size * sizeof(int)), 0};
    int line = 1;
    for (const char *p = text; *p; line++) {
        p += strspn(p, " \t*/#\"");
        const size_t n = strcspn(p, "\n");
        size_t used = n;
        while (used && strchr(" \t\"\\", p[used - 1])) used--;
        for (size_t i = 0; i < used; i++) {
            f.line[f.n] = line;
            f.text[f.n++] = (char)tolower((unsigned char)p[i]);
        }
        f.line[f.n] = line;
        f.text[f.n++] = ' ';
        p += n;
        if (*p) p++;
    }
    f.text[f.n] = '\0';
    return f;
}

static bool inside_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* "who" as a pronoun, in a C file: "the rank that waits" says the same.
 * Variables may be named so. */
static bool is_pronoun(const struct flat *f, const char *p) {
    return (p == f->text || p[-1] == ' ') && p[3] == ' ' && isalpha((unsigned char)p[4]);
}

static void find_word(const char *path, const struct flat *f, const char *word) {
    const size_t n = strcspn(word, "*");
    char key[32];
    snprintf(key, sizeof key, "%.*s", (int)n, word);
    for (const char *p = f->text; (p = strstr(p, key)); p += n) {
        if (p > f->text && inside_word(p[-1])) continue;
        if (word[n] != '*' && inside_word(p[n])) continue;
        found("%s:%d: \"%s\"\n", path, f->line[p - f->text], word);
    }
}

/* A sentence whose subject is a clause, "What lies there is": name the thing,
 * "Data there are". */
static void find_clause(const char *path, const char *text) {
    static const char *const verbs[] = {"is ",    "was ",     "lies ", "makes ",    "cannot ",
                                        "comes ", "travels ", "has ",  "does not ", "still ",
                                        "runs ",  "follows ", "goes ", "must ",     "remains "};
    int line = 1;
    for (const char *p = text; *p; p++) {
        line += *p == '\n';
        if (!starts(p, "What ") || starts(p, "What is the capital of")) continue; /* a prompt */
        for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
            if (starts(p + 5, verbs[i])) found("%s:%d: \"What %s\"\n", path, line, verbs[i]);
    }
}

static void check_words(const char *path, const char *text) {
    struct flat f = flatten(text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) find_word(path, &f, words[i]);
    const bool c = ends(path, ".c") || ends(path, ".h") || ends(path, ".cu") || ends(path, ".cuh");
    for (const char *p = f.text; c && (p = strstr(p, "who ")); p++)
        if (is_pronoun(&f, p)) found("%s:%d: \"who\"\n", path, f.line[p - f.text]);
    find_clause(path, text);
    free(f.text);
    free(f.line);
}

/* ---- documents ---- */

static void check_width(const char *path, const char *text) {
    int line = 1, width = 0;
    for (const char *p = text; *p; p++) {
        if (*p != '\n') {
            width += ((unsigned char)*p & 0xc0) != 0x80; /* characters of UTF-8, not bytes */
            if (width == WIDTH + 1) found("%s:%d: wider than %d\n", path, line, WIDTH);
            continue;
        }
        line++;
        width = 0;
    }
}

static bool in_tree(const char *pattern) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", SHEAF_SOURCE_DIR, pattern);
    glob_t g = {0};
    const bool there = !glob(path, GLOB_BRACE, NULL, &g);
    globfree(&g);
    return there;
}

/* Copies a path of the tree that a document names; what NAME and ISA stand for
 * becomes a pattern.
 */
static void path_pattern(const char *from, size_t n, char to[static 300]) {
    size_t used = 0;
    for (size_t i = 0; i < n && used < 298;) {
        const size_t skip = starts(from + i, "NAME") ? 4 : starts(from + i, "ISA") ? 3 : 0;
        to[used++] = skip ? '*' : from[i];
        i += skip ? skip : 1;
    }
    while (used && strchr(".:", to[used - 1])) used--;
    to[used] = '\0';
}

/* Every path below one of the folders of the tree exists. */
static void check_paths(const char *path, const char *text) {
    static const char *const folders[] = {"src/",   "include/",  "tools/",     "tests/",
                                          "bench/", "examples/", "scripts/",   "docs/",
                                          "cmake/", "python/",   "packaging/", "models/"};
    int line = 1;
    for (const char *p = text; *p; p++) {
        line += *p == '\n';
        if (p > text && (inside_word(p[-1]) || strchr("/.-$}", p[-1]))) continue;
        for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
            if (!starts(p, folders[i])) continue;
            size_t n = 0;
            while (p[n] && (inside_word(p[n]) || strchr("/.-*{,}:", p[n]))) n++;
            while (n && p[n - 1] == ',') n--;
            char pattern[300];
            path_pattern(p, n, pattern);
            if (!in_tree(pattern)) found("%s:%d: there is no %s\n", path, line, pattern);
        }
    }
}

/* The tree as docs/architecture.md lists it: four spaces and a folder, six and what is in it. */
static void check_tree(const char *path, const char *text) {
    char folder[200] = "", name[450];
    int line = 1;
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p += p != NULL, line++) {
        const size_t indent = strspn(p, " "), n = strcspn(p + indent, " \n");
        if (!n || n >= sizeof folder || (indent != 4 && indent != 6)) continue;
        if (indent == 4) snprintf(folder, sizeof folder, "%.*s", (int)n, p + indent);
        snprintf(name, sizeof name, "%s%.*s", folder, indent == 4 ? 0 : (int)n, p + indent);
        if (!in_tree(name)) found("%s:%d: there is no %s\n", path, line, name);
    }
}

/* Each folder of src and each folder in it is listed. */
static void check_listed(const char *path, const char *text, const char *folder, int depth) {
    char full[1200], name[1000], listed[1010];
    snprintf(full, sizeof full, "%s/%s", SHEAF_SOURCE_DIR, folder);
    DIR *dir = opendir(full);
    if (!dir) return;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        snprintf(listed, sizeof listed, "    %s%s/ ", depth ? "  " : "", depth ? e->d_name : name);
        if (!strstr(text, listed)) found("%s: does not list %s\n", path, name);
        if (!depth) check_listed(path, text, name, 1);
    }
    closedir(dir);
}

/* The anchor that a heading gets: lower case, spaces to hyphens, no
 * punctuation. */
static bool has_anchor(const char *text, const char *anchor) {
    for (const char *p = text; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (*p != '#') continue;
        p += strspn(p, "# ");
        char slug[200];
        size_t n = 0;
        for (const char *c = p; *c && *c != '\n' && n < sizeof slug - 1; c++) {
            if (*c == ' ') slug[n++] = '-';
            if (isalnum((unsigned char)*c) || *c == '-' || *c == '_')
                slug[n++] = (char)tolower((unsigned char)*c);
        }
        slug[n] = '\0';
        if (!strcmp(slug, anchor)) return true;
    }
    return false;
}

static char *read_all(const char *path) {
    char full[1200];
    snprintf(full, sizeof full, "%s/%s", SHEAF_SOURCE_DIR, path);
    FILE *f = fopen(full, "rb");
    if (!f) return NULL;
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

/* Links to other documents lead to a file, and to a heading if they name one.
 */
static void check_links(const char *path, const char *text) {
    for (const char *p = text; (p = strstr(p, "](")); p++) {
        char target[200], file[500];
        const size_t n = strcspn(p + 2, ") \n");
        if (p[2 + n] != ')' || n >= sizeof target || starts(p + 2, "http")) continue;
        snprintf(target, sizeof target, "%.*s", (int)n, p + 2);
        char *anchor = strchr(target, '#');
        if (anchor) *anchor++ = '\0';
        const char *slash = strrchr(path, '/');
        snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, target);
        char *other = read_all(*target ? file : path);
        if (!other)
            found("%s: a link to %s\n", path, target);
        else if (anchor && !has_anchor(other, anchor))
            found("%s: %s has no heading #%s\n", path, target, anchor);
        free(other);
    }
}

/* Does the file define a function of that name? Lines of definitions are not
 * indented. */
static bool defines(const char *file, const char *name) {
    char *text = read_all(file), call[210];
    bool found_it = false;
    snprintf(call, sizeof call, "%s(", name);
    for (const char *p = text; p && (p = strstr(p, call)) && !found_it; p++) {
        const char *line = p;
        while (line > text && line[-1] != '\n') line--;
        found_it = line < p && !isspace((unsigned char)*line) && !inside_word(p[-1]);
    }
    free(text);
    return found_it;
}

/* In a section about functions each `name()` is one of the file named last. */
static void check_functions(const char *path, const char *text) {
    static const char heading[] = "## One token, function by function\n";
    const char *p = strstr(text, heading), *end = p ? strstr(p + 1, "\n## ") : NULL;
    char file[200] = "", name[200];
    if (!p) found("%s: has no '%s'\n", path, heading);
    for (; p && *p && p != end; p++) {
        int path_end = 0, end_of_call = 0;
        sscanf(p, "`%199[a-z0-9_/.]`%n", name, &path_end);
        if (path_end && starts(name, "src/")) snprintf(file, sizeof file, "%s", name);
        sscanf(p, "`%79[A-Za-z0-9_]()`%n", name, &end_of_call);
        if (end_of_call && !defines(file, name))
            found("%s: '%s' does not define %s()\n", path, file, name);
        const int n = path_end + end_of_call;
        if (n) p += n - 1;
    }
}

/* Entries are numbered 1, 2, ... and each begins with a status that names a
 * later entry, if one. */
static void check_decisions(const char *path, const char *text) {
    int number = 0, last = 0;
    for (const char *p = text; (p = strstr(p, "\n## ")); p++) last++;
    for (const char *p = text; (p = strstr(p, "\n## ")); p++) {
        int n = 0, year, month, day, used = 0;
        number++;
        sscanf(p, "\n## D%d %4d-%2d-%2d: %n", &n, &year, &month, &day, &used);
        if (n != number || !used)
            found("%s: entry %d is not '## D%d DATE: TITLE'\n", path, number, number);
        const char *status = strchr(p + 1, '\n');
        int by = 0;
        if (!status || !starts(status, "\n\nStatus: ")) {
            found("%s: D%d has no status\n", path, number);
            continue;
        }
        status += strlen("\n\nStatus: ");
        if (starts(status, "in force.") || starts(status, "in part superseded: ")) continue;
        if (sscanf(status, "superseded by D%d.", &by) < 1 &&
            sscanf(status, "in part superseded by D%d", &by) < 1)
            found("%s: D%d has an unknown status\n", path, number);
        else if (by <= number || by > last)
            found("%s: D%d is superseded by D%d, which is no later entry\n", path, number, by);
    }
    if (!number) found("%s: no entries\n", path);
}

/* ---- the tree ---- */

static bool is_text(const char *path) {
    static const char *const kinds[] = {
        ".c",  ".h",     ".cu", ".cuh",   ".inc",           ".py",
        ".md", ".cmake", ".in", "lib.sh", "CMakeLists.txt", ".supp"};
    const char *slash = strrchr(path, '/');
    if (!strchr(slash ? slash : path, '.')) return true; /* scripts */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (ends(path, kinds[i])) return true;
    return false;
}

/* Data: texts of models, expected outputs, tables of Unicode; and the list of
 * words above. */
static bool is_data(const char *path) {
    return strstr(path, "/golden/") || strstr(path, "unicode_table") ||
           ends(path, "test-language.c");
}

/* Calls check for each text below a folder, or for a file. Returns how many
 * there are. */
static int each_text(const char *path, void (*check)(const char *, const char *)) {
    char full[1200], name[1000];
    int n = 0;
    snprintf(full, sizeof full, "%s/%s", SHEAF_SOURCE_DIR, path);
    DIR *dir = opendir(full);
    if (!dir) {
        char *text = is_text(path) && !is_data(path) ? read_all(path) : NULL;
        if (text) check(path, text);
        free(text);
        return text != NULL;
    }
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.' || starts(e->d_name, "__pycache__")) continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        n += each_text(name, check);
    }
    closedir(dir);
    return n;
}

static void report_all(void) { cr_assert_eq(findings, 0, "%d findings:\n%s", findings, report); }

Test(language, words) {
    static const struct {
        const char *path;
        int least; /* files: a folder that has moved must not pass by being empty */
    } roots[] = {{"src", 100},   {"include", 10},      {"tools", 10},          {"tests", 50},
                 {"bench", 5},   {"examples", 2},      {"scripts", 5},         {"docs", 10},
                 {"cmake", 2},   {"README.md", 1},     {"CONTRIBUTING.md", 1}, {"CHANGELOG.md", 1},
                 {".ci/run", 0}, {"CMakeLists.txt", 1}};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        const int n = each_text(roots[i].path, check_words);
        cr_expect_geq(n, roots[i].least, "%s has only %d texts", roots[i].path, n);
    }
    report_all();
}

static const char *const documents[] = {"docs",         "README.md",        "CONTRIBUTING.md",
                                        "CHANGELOG.md", "models/README.md", "python/README.md"};

Test(language, documents_are_at_most_120_wide) {
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++)
        cr_assert_gt(each_text(documents[i], check_width), 0, "%s", documents[i]);
    report_all();
}

static void check_true(const char *path, const char *text) {
    check_links(path, text);
    if (!ends(path, "decisions.md") && !ends(path, "CHANGELOG.md")) check_paths(path, text);
}

Test(language, paths_and_links_of_documents_exist) {
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++)
        cr_assert_gt(each_text(documents[i], check_true), 0, "%s", documents[i]);
    report_all();
}

static void check_folders(const char *path, const char *text) {
    check_tree(path, text);
    check_listed(path, text, "src", 0);
    check_functions(path, text);
}

Test(language, the_tree_in_the_documents_is_the_tree) {
    cr_assert_eq(each_text("docs/architecture.md", check_folders), 1);
    report_all();
}

Test(language, decisions_have_numbers_and_a_status) {
    cr_assert_eq(each_text("docs/decisions.md", check_decisions), 1);
    report_all();
}

/* Each check can fail. */
Test(language, self_check) {
    static const struct {
        const char *path, *text;
        int wrong;
    } cases[] = {
        {"a.c", "/* The rank that waits. */", 0},
        {"a.c", "/* Whoever waits. */", 1},
        {"a.c", "/* All but\n * for one. */", 1},
        {"a.c", "puts(\"all but \"\n     \"for one\");", 1},
        {"a.c", "/* is reckoned, reckons */", 2},
        {"a.c", "/* the rank who waits */", 1},
        {"a.c", "char who[2], *p = x->who; /* `who` waits */", 0},
        {"a.md", "people who wait", 0},
        {"a.c", "int wholly, nobody_s;", 0},
        {"a.c", "# but for", 1},
        {"a.c", "/* What lies there is whole. What a rank does. */", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int n = findings_of(check_words, cases[i].path, cases[i].text);
        cr_expect_eq(n, cases[i].wrong, "%s: %d", cases[i].text, n);
    }
    char wide[WIDTH + 10];
    memset(wide, 'x', sizeof wide);
    wide[WIDTH + 1] = '\0';
    cr_expect_eq(findings_of(check_width, "a.md", wide), 1);
    cr_expect_eq(findings_of(check_width, "a.md", wide + 1), 0);
    cr_expect_eq(findings_of(check_paths, "a.md", "`src/CMakeLists.txt`, tests/golden: docs/*.md."),
                 0);
    cr_expect_eq(findings_of(check_paths, "a.md", "`src/nothing.c` and tests/no{t,where}.h"), 2);
    cr_expect_eq(findings_of(check_links, "docs/a.md", "[x](split.md) [y](split.md#rules)"), 0);
    cr_expect_eq(findings_of(check_links, "docs/a.md", "[x](splat.md) [y](split.md#ruler)"), 2);
    cr_expect_eq(findings_of(check_tree, "a.md", "    src/base/   x\n      status.c  y\n"), 0);
    cr_expect_eq(findings_of(check_tree, "a.md", "    src/base/   x\n      nothing.c y\n"), 1);
    cr_expect_gt(findings_of(check_folders, "a.md", "    src/base/   x\n"), 3);
    static const struct {
        const char *text;
        int wrong;
    } walks[] = {
        {"## One token, function by function\n\n`src/base/log.c`: `sheaf_log()`, `print()` `x`\n",
         0},
        {"## One token, function by function\n\n`src/base/log.c`: `printed()`, `snprintf()`\n", 2},
        {"## One token, function by function\n\n`src/base/log.c`\n\n## Next\n\n`printed()`\n", 0},
        {"## One token, function by function\n\n`src/base/log.c` `src/base/link.c`: `print()`\n",
         1},
        {"## A token\n", 1},
    };
    for (size_t i = 0; i < sizeof walks / sizeof *walks; i++)
        cr_expect_eq(findings_of(check_functions, "a.md", walks[i].text), walks[i].wrong, "%zu", i);
    static const struct {
        const char *text;
        int wrong;
    } decisions[] = {
        {"\n## D1 2026-01-02: a\n\nStatus: superseded by D2.\n\n## D2 "
         "2026-01-02: b\n\nStatus: in "
         "force.\n",
         0},
        {"\n## D1 2026-01-02: a\n\nStatus: superseded by D2.\n", 1},
        {"\n## D2 2026-01-02: a\n\nStatus: in force.\n", 1},
        {"\n## 2026-01-02: a\n\nStatus: in force.\n", 1},
        {"\n## D1 2026-01-02: a\n\nText.\n", 1},
        {"\n## D1 2026-01-02: a\n\nStatus: old.\n", 1},
        {"nothing\n", 1},
    };
    for (size_t i = 0; i < sizeof decisions / sizeof *decisions; i++) {
        const int n = findings_of(check_decisions, "d.md", decisions[i].text);
        cr_expect_eq(n, decisions[i].wrong, "%s: %d", decisions[i].text, n);
    }
}
