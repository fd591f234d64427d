/* docs/ggml.md holds: every name of ours in its tables is in the header that the section names, and
 * the ported program compiles, runs, and refuses a bad token. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpirun.h"

static char *slurp(const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return NULL;
    char *text = calloc(1, 1 << 18);
    text[fread(text, 1, (1 << 18) - 1, f)] = 0;
    fclose(f);
    return text;
}

static bool has_word(const char *text, const char *word, size_t n) {
    for (const char *p = text; (p = strstr(p, word)); p++) {
        const char before = p > text ? p[-1] : ' ', after = p[n];
        if (!isalnum((unsigned char)before) && before != '_' && !isalnum((unsigned char)after) &&
            after != '_')
            return true;
    }
    return false;
}

/* Checks the names in [text, end) against all headers or one. Returns how many there are. */
static int check_names(const char *text, const char *end, const char *headers) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, "`sheaf_")) && p < end;) {
        char word[128];
        size_t len = 0;
        for (p++; isalnum((unsigned char)*p) || *p == '_'; p++)
            if (len < sizeof word - 1) word[len++] = *p;
        word[len] = 0;
        cr_expect(has_word(headers, word, len), "docs/ggml.md names %s, the headers do not", word);
        n++;
    }
    return n;
}

static char *all_headers(void) {
    static char out[1 << 19];
    cr_assert_eq(run_command("cat '" SHEAF_SOURCE_DIR "'/include/sheaf/*.h", 10, out, sizeof out),
                 0);
    return out;
}

Test(docs_ggml, names_exist_where_the_sections_say) {
    char *doc = slurp(SHEAF_SOURCE_DIR "/docs/ggml.md"), *all = all_headers();
    int n = 0;
    cr_assert_not_null(doc);
    for (char *s = strstr(doc, "\n## "); s;) {
        char *next = strstr(s + 1, "\n## "), *end = next ? next : doc + strlen(doc), name[64];
        char *line_end = strchr(s + 1, '\n'), *open = strstr(s, "(sheaf/");
        const bool named = open && open < line_end && sscanf(open, "(%63[^)])", name) == 1;
        char path[512];
        snprintf(path, sizeof path, SHEAF_SOURCE_DIR "/include/%s", named ? name : "");
        char *header = named ? slurp(path) : NULL;
        cr_expect(!named || header, "docs/ggml.md names %s, there is no such header", name);
        if (!strstr(s, "ggml, then") || strstr(s, "ggml, then") > end ||
            strstr(all, "sheaf_backend_sched_new")) {
            n += check_names(s, end, all);
        }
        free(header);
        s = next;
    }
    cr_assert_gt(n, 100, "%d names", n);
    free(doc);
}

static void extract(const char *path) {
    char *doc = slurp(SHEAF_SOURCE_DIR "/docs/ggml.md");
    char *p = strstr(doc, "```diff\n"), *end = strstr(p + 8, "\n```");
    FILE *f = fopen(path, "w");
    cr_assert(p && end && f);
    for (p += 8; p < end;) {
        char *line_end = strchr(p, '\n');
        if (*p != '-') fprintf(f, "%.*s\n", (int)(line_end - p - 1), p + 1);
        p = line_end + 1;
    }
    fclose(f);
    free(doc);
}

Test(docs_ggml, the_ported_program_runs) {
    char dir[] = "/tmp/sheaf-ggml-XXXXXX", path[64], cmd[2048], out[4096];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/port.c", dir);
    extract(path);
    /* the build's own flags decide whether a sanitizer must be linked */
    snprintf(cmd, sizeof cmd,
             "cd %s && cc -std=c11 -Wall -Wextra -Werror -I'" SHEAF_SOURCE_DIR
             "'/include port.c -o port -L'" SHEAF_BUILD_DIR
             "'/lib -lsheaf -Wl,-rpath,'" SHEAF_BUILD_DIR "'/lib%s",
             dir,
#if defined(__SANITIZE_ADDRESS__)
             " -fsanitize=address,undefined"
#elif defined(__SANITIZE_THREAD__)
             " -fsanitize=thread"
#else
             ""
#endif
    );
    cr_assert_eq(run_command(cmd, 120, out, sizeof out), 0, "%s", out);
    snprintf(cmd, sizeof cmd, "%s/port '" SHEAF_SOURCE_DIR "'/models/kjv-f32.gguf 65", dir);
    cr_assert_eq(run_command(cmd, 60, out, sizeof out), 0, "%s", out);
    int token = -1, next = -1;
    cr_assert_eq(sscanf(out, "%d -> %d", &token, &next), 2, "%s", out);
    cr_assert(token == 65 && next >= 0, "%s", out);
    snprintf(cmd, sizeof cmd, "%s/port '" SHEAF_SOURCE_DIR "'/models/kjv-f32.gguf 999999999", dir);
    cr_assert_eq(run_command(cmd, 60, out, sizeof out), 1, "%s", out);
    cr_assert(strstr(out, "999999999"), "%s", out);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    run_command(cmd, 10, NULL, 0);
}

/* docs/split.md shows examples/split_a_graph.c, line by line. */
Test(docs_ggml, the_program_of_split_is_the_example) {
    char *doc = slurp(SHEAF_SOURCE_DIR "/docs/split.md");
    char *example = slurp(SHEAF_SOURCE_DIR "/examples/split_a_graph.c");
    const char *at = strstr(doc, "## A whole program"), *p = strstr(example, "#include <math.h>");
    cr_assert(at && p);
    for (size_t n; *p; p += n + 1) {
        char line[256];
        n = strcspn(p, "\n");
        snprintf(line, sizeof line, "\n%s%.*s\n", n ? "    " : "", (int)n, p);
        const char *found = strstr(at, line);
        cr_assert(found, "docs/split.md lacks, or has elsewhere: %s", line);
        at = found + strlen(line) - 1;
    }
    free(doc);
    free(example);
}
