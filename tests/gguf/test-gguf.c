/* GGUF files: what is written can be read back, and no file, however damaged, is trusted. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sheaf/gguf.h"

/* ---- a file of bytes, written by hand so that it can be wrong ---- */

struct bytes {
    unsigned char data[4096];
    size_t n;
};

static void put(struct bytes *b, const void *p, size_t n) {
    cr_assert_leq(b->n + n, sizeof b->data);
    memcpy(b->data + b->n, p, n);
    b->n += n;
}

static void number(struct bytes *b, uint64_t v, int n) {
    for (int i = 0; i < n; i++) {
        unsigned char c = (unsigned char)(v >> (8 * i));
        put(b, &c, 1);
    }
}

static void string(struct bytes *b, const char *s) {
    number(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static void header(struct bytes *b, uint64_t version, uint64_t n_tensors, uint64_t n_kv) {
    put(b, "GGUF", 4);
    number(b, version, 4);
    number(b, n_tensors, 8);
    number(b, n_kv, 8);
}

static void tensor(struct bytes *b, const char *name, uint64_t n_dims, uint64_t ne0, uint64_t ne1,
                   uint64_t type, uint64_t offset) {
    string(b, name);
    number(b, n_dims, 4);
    for (uint64_t i = 0; i < n_dims; i++) number(b, i == 0 ? ne0 : i == 1 ? ne1 : 1, 8);
    number(b, type, 4);
    number(b, offset, 8);
}

static void pad(struct bytes *b, size_t n) {
    while (b->n < n) number(b, 0, 1);
}

static char path[64];

static void setup(void) {
    strcpy(path, "/tmp/sheaf-test-gguf-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
}

static void teardown(void) { unlink(path); }

TestSuite(gguf, .init = setup, .fini = teardown);

static void save(const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

/* The file must be refused with this status and a text that holds `text` and the file's name. */
static void refused_as(const struct bytes *b, enum sheaf_status status, const char *text) {
    struct sheaf_gguf *g;
    save(b->data, b->n);
    enum sheaf_status got = sheaf_gguf_open(path, &g);
    cr_assert_eq(got, status, "status %d (%s), expected '%s'", got, sheaf_last_error(), text);
    cr_assert_null(g);
    cr_assert(strstr(sheaf_last_error(), text), "'%s' lacks '%s'", sheaf_last_error(), text);
    cr_assert(strstr(sheaf_last_error(), path), "'%s' does not name the file", sheaf_last_error());
}

static void refused(const struct bytes *b, const char *text) {
    refused_as(b, SHEAF_STATUS_INVALID, text);
}

/* ---- valid files ---- */

Test(gguf, minimal_files_of_both_versions) {
    for (uint64_t version = 2; version <= 3; version++) {
        struct bytes b = {.n = 0};
        struct sheaf_gguf *g;
        header(&b, version, 1, 1);
        string(&b, "general.architecture");
        number(&b, SHEAF_GGUF_TYPE_STRING, 4);
        string(&b, "test");
        tensor(&b, "t", 2, 32, 3, 0, 0);
        size_t data = (b.n + 31) / 32 * 32;
        pad(&b, data + 32 * 3 * 4);
        save(b.data, b.n);
        cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
        cr_assert_eq(sheaf_gguf_version(g), version);
        cr_assert_eq(sheaf_gguf_alignment(g), 32);
        cr_assert_eq(sheaf_gguf_data_offset(g), data);
        cr_assert_eq(sheaf_gguf_file_size(g), b.n);
        const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, 0);
        cr_assert_str_eq(t->name, "t");
        cr_assert_eq(t->ne[0], 32);
        cr_assert_eq(t->ne[1], 3);
        cr_assert_eq(t->ne[2], 1);
        cr_assert_eq(t->offset, data);
        cr_assert_eq(t->size, 32 * 3 * 4);
        cr_assert_eq(sheaf_gguf_find_tensor(g, "t"), 0);
        cr_assert_eq(sheaf_gguf_find_tensor(g, "u"), -1);
        cr_assert_null(sheaf_gguf_tensor(g, 1));
        cr_assert_null(sheaf_gguf_tensor(g, -1));
        sheaf_gguf_free(g);
    }
}

Test(gguf, alignment_of_the_file_counts) {
    struct bytes b = {.n = 0};
    struct sheaf_gguf *g;
    header(&b, 3, 2, 1);
    string(&b, "general.alignment");
    number(&b, SHEAF_GGUF_TYPE_UINT32, 4);
    number(&b, 8, 4);
    tensor(&b, "a", 1, 2, 1, 0, 0);
    tensor(&b, "b", 1, 2, 1, 0, 8);
    size_t data = (b.n + 7) / 8 * 8;
    pad(&b, data + 16);
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_alignment(g), 8);
    cr_assert_eq(sheaf_gguf_tensor(g, 1)->offset, data + 8);
    sheaf_gguf_free(g);
}

Test(gguf, bundled_model) {
    struct sheaf_gguf *g;
    const char *arch;
    uint64_t n;
    cr_assert_eq(sheaf_gguf_open(SHEAF_SOURCE_DIR "/models/kjv-q8_0.gguf", &g), 0, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_gguf_get_str(g, "general.architecture", &arch), 0);
    cr_assert_str_eq(arch, "llama");
    cr_assert_eq(sheaf_gguf_get_u64(g, "llama.block_count", &n), 0);
    cr_assert_eq(n, 4);
    cr_assert_eq(sheaf_gguf_n_tensors(g), 38);
    int64_t tokens = sheaf_gguf_find_key(g, "tokenizer.ggml.tokens");
    cr_assert_eq(sheaf_gguf_arr_n(g, tokens), 2048);
    cr_assert_str_eq(sheaf_gguf_arr_str(g, tokens, 1, NULL), "<s>");
    cr_assert_null(sheaf_gguf_arr_str(g, tokens, 2048, NULL));
    cr_assert_null(sheaf_gguf_arr_data(g, tokens));
    sheaf_gguf_free(g);
}

/* ---- round trip ---- */

static void write_sample(void) {
    struct sheaf_gguf *g = sheaf_gguf_new();
    const char *strings[] = {"", "two", "dr\xc3\xa9i"};
    const float floats[] = {1.5f, -2.0f};
    static float a[64];
    static unsigned char q[2 * 34];
    const int64_t ne_a[] = {8, 4, 2}, ne_q[] = {32, 2};
    for (int i = 0; i < 64; i++) a[i] = (float)i;
    for (int i = 0; i < 68; i++) q[i] = (unsigned char)i;
    cr_assert_eq(sheaf_gguf_set_u32(g, "u32", UINT32_MAX), 0);
    cr_assert_eq(sheaf_gguf_set_i32(g, "i32", -5), 0);
    cr_assert_eq(sheaf_gguf_set_u64(g, "u64", UINT64_MAX), 0);
    cr_assert_eq(sheaf_gguf_set_f32(g, "f32", 0.25f), 0);
    cr_assert_eq(sheaf_gguf_set_f32(g, "three", 3.0f), 0);
    cr_assert_eq(sheaf_gguf_set_bool(g, "yes", true), 0);
    cr_assert_eq(sheaf_gguf_set_str(g, "str", "first"), 0);
    cr_assert_eq(sheaf_gguf_set_str(g, "str", "second"), 0);
    cr_assert_eq(sheaf_gguf_set_arr_str(g, "strings", strings, 3), 0);
    cr_assert_eq(sheaf_gguf_set_arr(g, "floats", SHEAF_GGUF_TYPE_FLOAT32, floats, 2), 0);
    cr_assert_eq(sheaf_gguf_set_arr(g, "none", SHEAF_GGUF_TYPE_INT32, NULL, 0), 0);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "a", SHEAF_TYPE_F32, 3, ne_a, a), 0);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "q", SHEAF_TYPE_Q8_0, 2, ne_q, q), 0);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "a", SHEAF_TYPE_F32, 3, ne_a, a), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_write(g, path), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
}

static void check_sample(const struct sheaf_gguf *g) {
    uint64_t u;
    int64_t i;
    double d;
    bool yes = false;
    const char *s;
    size_t len;
    cr_assert_eq(sheaf_gguf_n_kv(g), 10);
    cr_assert(sheaf_gguf_get_u64(g, "u32", &u) == 0 && u == UINT32_MAX);
    cr_assert(sheaf_gguf_get_i64(g, "i32", &i) == 0 && i == -5);
    cr_assert(sheaf_gguf_get_f64(g, "i32", &d) == 0 && d == -5);
    cr_assert(sheaf_gguf_get_u64(g, "u64", &u) == 0 && u == UINT64_MAX);
    cr_assert(sheaf_gguf_get_f64(g, "f32", &d) == 0 && d == 0.25);
    cr_assert(sheaf_gguf_get_u64(g, "three", &u) == 0 && u == 3);
    cr_assert(sheaf_gguf_get_i64(g, "three", &i) == 0 && i == 3);
    cr_assert(sheaf_gguf_get_bool(g, "yes", &yes) == 0 && yes);
    cr_assert(sheaf_gguf_get_str(g, "str", &s) == 0 && strcmp(s, "second") == 0);
    int64_t k = sheaf_gguf_find_key(g, "strings");
    cr_assert_eq(sheaf_gguf_arr_n(g, k), 3);
    cr_assert_str_eq(sheaf_gguf_arr_str(g, k, 0, &len), "");
    cr_assert_eq(len, 0);
    cr_assert_str_eq(sheaf_gguf_arr_str(g, k, 2, &len), "dr\xc3\xa9i");
    cr_assert_eq(len, 5);
    k = sheaf_gguf_find_key(g, "floats");
    cr_assert_eq(sheaf_gguf_arr_type(g, k), SHEAF_GGUF_TYPE_FLOAT32);
    float f[2];
    memcpy(f, sheaf_gguf_arr_data(g, k), sizeof f);
    cr_assert(f[0] == 1.5f && f[1] == -2.0f);
    cr_assert_eq(sheaf_gguf_arr_n(g, sheaf_gguf_find_key(g, "none")), 0);
}

Test(gguf, round_trip) {
    struct sheaf_gguf *g, *copy;
    write_sample();
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
    check_sample(g);
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, sheaf_gguf_find_tensor(g, "q"));
    cr_assert(t->type == SHEAF_TYPE_Q8_0 && t->ne[0] == 32 && t->ne[1] == 2 && t->size == 68);
    unsigned char q[68];
    FILE *f = fopen(path, "rb");
    cr_assert(f && fseek(f, (long)t->offset, SEEK_SET) == 0 && fread(q, 1, 68, f) == 68);
    fclose(f);
    for (int i = 0; i < 68; i++) cr_assert_eq(q[i], i);
    copy = sheaf_gguf_new();
    cr_assert_eq(sheaf_gguf_copy_kv(copy, g), 0);
    check_sample(copy);
    sheaf_gguf_free(copy);
    sheaf_gguf_free(g);
}

static size_t load_sample(unsigned char *data, size_t cap) {
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(data, 1, cap, f) : 0;
    if (f) fclose(f);
    return n;
}

/* What a process is sent of a file that it cannot read. */
Test(gguf, a_header_without_its_file) {
    static unsigned char header[4096], data[4096];
    struct sheaf_gguf *g, *own;
    write_sample();
    cr_assert_eq(sheaf_gguf_open(path, &g), 0);
    const size_t n = sheaf_gguf_header_size(g), size = sheaf_gguf_file_size(g);
    cr_assert(n <= sheaf_gguf_data_offset(g) && n + 32 > sheaf_gguf_data_offset(g));
    cr_assert_eq(sheaf_gguf_read_header(g, header), 0);
    cr_assert(load_sample(data, sizeof data) == size && !memcmp(header, data, n));
    cr_assert_eq(sheaf_gguf_open_header("far.gguf", header, n, size, &own), 0, "%s",
                 sheaf_last_error());
    check_sample(own);
    cr_expect_str_eq(sheaf_gguf_path(own), "far.gguf");
    cr_expect(sheaf_gguf_file_size(own) == size && sheaf_gguf_header_size(own) == n);
    for (int64_t i = 0; i < 2; i++) {
        const struct sheaf_gguf_tensor *a = sheaf_gguf_tensor(g, i), *b = sheaf_gguf_tensor(own, i);
        cr_expect(a->offset == b->offset && a->size == b->size && !strcmp(a->name, b->name));
        cr_expect_eq(sheaf_gguf_read(own, b, 0, data, 1), SHEAF_STATUS_INVALID);
        cr_expect(strstr(sheaf_last_error(), "far.gguf: only its header is here, no file"));
    }
    cr_expect_eq(sheaf_gguf_read_header(own, data), SHEAF_STATUS_INVALID);
    cr_expect_eq(sheaf_gguf_check_unchanged(own), 0);
    sheaf_gguf_free(own);
    for (size_t i = 0; i < n; i++) {
        unsigned char *cut = malloc(i + 1); /* a sanitizer sees what is read behind it */
        memcpy(cut, header, i);
        cr_expect_neq(sheaf_gguf_open_header("far.gguf", cut, i, size, &own), 0, "%zu bytes", i);
        cr_expect(strstr(sheaf_last_error(), "truncated or damaged"), "%s", sheaf_last_error());
        free(cut);
    }
    cr_expect_eq(sheaf_gguf_open_header("far.gguf", header, n, n, &own), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "tensor 'a' takes bytes"), "%s", sheaf_last_error());
    cr_expect_eq(sheaf_gguf_open_header("far.gguf", NULL, 0, size, &own), SHEAF_STATUS_INVALID);
    sheaf_gguf_free(g);
}

/* Between reading the metadata and sending them. */
Test(gguf, a_header_that_became_shorter) {
    static unsigned char header[4096];
    struct sheaf_gguf *g;
    write_sample();
    cr_assert_eq(sheaf_gguf_open(path, &g), 0);
    cr_assert_eq(truncate(path, 100), 0);
    cr_expect_eq(sheaf_gguf_read_header(g, header), SHEAF_STATUS_IO);
    cr_expect(strstr(sheaf_last_error(), "cannot read the header: the file became shorter"), "%s",
              sheaf_last_error());
    sheaf_gguf_free(g);
}

/* A number of every type, as an unsigned and as a signed one, where it fits. */
Test(gguf, numbers_of_every_type) {
    static const struct {
        const char *key;
        enum sheaf_gguf_type type;
        size_t size;
        uint64_t bits;
        bool is_u, is_i;
        uint64_t u;
        int64_t i;
    } n[] = {
        {"u8", SHEAF_GGUF_TYPE_UINT8, 1, 0xfd, true, true, 253, 253},
        {"i8", SHEAF_GGUF_TYPE_INT8, 1, 0xfd, false, true, 0, -3},
        {"u16", SHEAF_GGUF_TYPE_UINT16, 2, 0xfed4, true, true, 65236, 65236},
        {"i16", SHEAF_GGUF_TYPE_INT16, 2, 0xfed4, false, true, 0, -300},
        {"i32", SHEAF_GGUF_TYPE_INT32, 4, 0x80000000, false, true, 0, INT32_MIN},
        {"i64", SHEAF_GGUF_TYPE_INT64, 8, UINT64_MAX, false, true, 0, -1},
        {"i64 positive", SHEAF_GGUF_TYPE_INT64, 8, 7, true, true, 7, 7},
        {"u64", SHEAF_GGUF_TYPE_UINT64, 8, (uint64_t)1 << 63, true, false, (uint64_t)1 << 63, 0},
        {"-1.0f", SHEAF_GGUF_TYPE_FLOAT32, 4, 0xbf800000, false, true, 0, -1},
        {"1.5f", SHEAF_GGUF_TYPE_FLOAT32, 4, 0x3fc00000, false, false, 0, 0},
        {"NaN", SHEAF_GGUF_TYPE_FLOAT32, 4, 0x7fc00000, false, false, 0, 0},
        {"2^63", SHEAF_GGUF_TYPE_FLOAT64, 8, 0x43e0000000000000, true, false, (uint64_t)1 << 63, 0},
        {"2^64", SHEAF_GGUF_TYPE_FLOAT64, 8, 0x43f0000000000000, false, false, 0, 0},
        {"-2^63", SHEAF_GGUF_TYPE_FLOAT64, 8, 0xc3e0000000000000, false, true, 0, INT64_MIN},
    };
    enum { N = sizeof n / sizeof *n };
    struct bytes b = {.n = 0};
    struct sheaf_gguf *g;
    header(&b, 3, 0, N);
    for (int k = 0; k < N; k++) {
        string(&b, n[k].key);
        number(&b, n[k].type, 4);
        number(&b, n[k].bits, (int)n[k].size);
    }
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
    for (int k = 0; k < N; k++) {
        uint64_t u = 0;
        int64_t i = 0;
        cr_expect_eq(!sheaf_gguf_get_u64(g, n[k].key, &u), n[k].is_u, "%s", n[k].key);
        cr_expect_eq(!sheaf_gguf_get_i64(g, n[k].key, &i), n[k].is_i, "%s", n[k].key);
        cr_expect_eq(u, n[k].u, "%s", n[k].key);
        cr_expect_eq(i, n[k].i, "%s", n[k].key);
    }
    sheaf_gguf_free(g);
}

Test(gguf, getters_lose_nothing) {
    struct sheaf_gguf *g;
    uint64_t u;
    int64_t i;
    double d;
    bool b;
    const char *s;
    write_sample();
    cr_assert_eq(sheaf_gguf_open(path, &g), 0);
    cr_assert_eq(sheaf_gguf_get_u64(g, "i32", &u), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_get_i64(g, "u64", &i), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_get_f64(g, "u64", &d), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_get_u64(g, "f32", &u), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_get_u64(g, "str", &u), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "str") && strstr(sheaf_last_error(), path));
    cr_assert_eq(sheaf_gguf_get_u64(g, "yes", &u), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_get_bool(g, "u32", &b), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_get_str(g, "u32", &s), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_get_str(g, "absent", &s), SHEAF_STATUS_INVALID);
    cr_assert(strstr(sheaf_last_error(), "absent"));
    sheaf_gguf_free(g);
}

Test(gguf, writer_refuses_nonsense) {
    struct sheaf_gguf *g = sheaf_gguf_new();
    const int64_t ne[] = {33}, negative[] = {-1};
    float x = 0;
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_Q8_0, 1, ne, &x), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 1, negative, &x),
                 SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "", SHEAF_TYPE_F32, 1, ne, &x), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, -1, ne, &x), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 5, ne, &x), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "5 dimensions"), "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_set_u32(g, "", 1), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_set_u32(g, "general.alignment", 24), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_set_arr(g, "a", SHEAF_GGUF_TYPE_STRING, &x, 1), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_write(g, "/nonexistent/x.gguf"), SHEAF_STATUS_IO);
    sheaf_gguf_free(g);
}

/* Other types of the number are read, but only the u32 of the format is written. */
Test(gguf, alignment_of_another_type_is_copied_as_u32) {
    struct bytes b = {.n = 0};
    struct sheaf_gguf *in, *out = sheaf_gguf_new();
    const int64_t ne = 1;
    const float x = 2.5f, y = 3.5f;
    header(&b, 3, 0, 2);
    string(&b, "general.alignment");
    number(&b, SHEAF_GGUF_TYPE_UINT64, 4);
    number(&b, 64, 8);
    string(&b, "after");
    number(&b, SHEAF_GGUF_TYPE_UINT32, 4);
    number(&b, 7, 4);
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_copy_kv(out, in), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(in);
    cr_expect_eq(sheaf_gguf_n_kv(out), 2);
    cr_expect_eq(sheaf_gguf_kv_type(out, 0), SHEAF_GGUF_TYPE_UINT32);
    cr_assert_eq(sheaf_gguf_add_tensor(out, "a", SHEAF_TYPE_F32, 1, &ne, &x), 0);
    cr_assert_eq(sheaf_gguf_add_tensor(out, "b", SHEAF_TYPE_F32, 1, &ne, &y), 0);
    cr_assert_eq(sheaf_gguf_write(out, path), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(out);
    cr_assert_eq(sheaf_gguf_open(path, &in), 0, "%s", sheaf_last_error());
    cr_expect_eq(sheaf_gguf_alignment(in), 64);
    cr_expect_eq(sheaf_gguf_tensor(in, 1)->offset - sheaf_gguf_tensor(in, 0)->offset, 64);
    sheaf_gguf_free(in);
}

/* A single number, as numpy's scalars are written: it can be read, so it can be written anew. */
Test(gguf, a_tensor_without_dimensions) {
    struct sheaf_gguf *g = sheaf_gguf_new();
    const float x = 2.5f;
    float y = 0;
    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 0, NULL, &x), 0, "%s",
                 sheaf_last_error());
    cr_assert_eq(sheaf_gguf_write(g, path), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, 0);
    cr_assert_eq(t->n_dims, 0);
    cr_assert_eq(t->size, sizeof x);
    cr_assert_eq(sheaf_gguf_read(g, t, 0, &y, sizeof y), 0);
    cr_assert_float_eq(y, x, 0);
    sheaf_gguf_free(g);
}

/* ---- hostile files ---- */

static bool is_link_to(const char *link, const char *target) {
    char text[128] = "";
    return readlink(link, text, sizeof text - 1) > 0 && !strcmp(text, target);
}

static enum sheaf_status no_source(void *user, int64_t i, const void **data) {
    (void)i;
    *(bool *)user = true;
    *data = "";
    return sheaf_set_error(SHEAF_STATUS_FAILED, "asked for");
}

/* The writer renames a complete file into its place: a device, a pipe or a link must not be replaced by it. */
Test(gguf, only_regular_files_are_replaced) {
    char folder[] = "/tmp/sheaf-test-gguf-XXXXXX", file[128], link[128], other[128], cmd[128];
    struct stat st;
    struct sheaf_gguf *g = sheaf_gguf_new();
    bool asked = false;
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(sheaf_gguf_set_u32(g, "a", 1), 0);
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(other, sizeof other, "%s/other", folder);

    cr_assert_eq(sheaf_gguf_write(g, file), 0, "%s", sheaf_last_error());
    cr_assert_eq(chmod(file, 0600), 0);
    cr_assert_eq(symlink("file", link), 0);
    cr_assert_eq(sheaf_gguf_set_u32(g, "b", 1), 0);
    const ino_t before = stat(file, &st) ? 0 : st.st_ino;
    cr_assert_eq(sheaf_gguf_write(g, link), 0, "%s", sheaf_last_error());
    cr_expect(is_link_to(link, "file"), "the link was replaced");
    cr_assert_eq(stat(file, &st), 0);
    cr_expect_neq(st.st_ino, before, "the link was not followed");
    cr_expect_eq(st.st_mode & 07777, 0600, "mode %o", st.st_mode & 07777);

    cr_assert_eq(sheaf_gguf_add_tensor(g, "t", SHEAF_TYPE_F32, 1, (int64_t[]){8}, NULL), 0);
    cr_assert_eq(mkfifo(other, 0600), 0);
    cr_expect_eq(sheaf_gguf_write_from(g, other, no_source, &asked), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "other is a device or a pipe, not a regular file"), "%s",
              sheaf_last_error());
    cr_expect(lstat(other, &st) == 0 && S_ISFIFO(st.st_mode), "the pipe was replaced");
    cr_expect_eq(sheaf_gguf_write_from(g, folder, no_source, &asked), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "is a folder, not a regular file"), "%s",
              sheaf_last_error());
    cr_expect_eq(sheaf_gguf_write_from(g, "", no_source, &asked), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "name of the file to write is empty"), "%s",
              sheaf_last_error());
    cr_assert(unlink(file) == 0);
    cr_expect_eq(sheaf_gguf_write_from(g, link, no_source, &asked), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "link to nothing"), "%s", sheaf_last_error());
    cr_expect_not(asked, "a tensor was made for a file that cannot be written");
    sheaf_gguf_free(g);
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    cr_assert_eq(system(cmd), 0);
}

Test(gguf, no_file) {
    struct sheaf_gguf *g;
    cr_assert_eq(sheaf_gguf_open("/nonexistent/x.gguf", &g), SHEAF_STATUS_IO);
    cr_assert(strstr(sheaf_last_error(), "/nonexistent/x.gguf"));
    cr_assert_eq(sheaf_gguf_open("/tmp", &g), SHEAF_STATUS_INVALID);
    cr_assert_eq(sheaf_gguf_open("", &g), SHEAF_STATUS_INVALID);
    cr_expect(strstr(sheaf_last_error(), "name of the model file is empty"), "%s",
              sheaf_last_error());
    unlink(path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(sheaf_gguf_open(path, &g), SHEAF_STATUS_INVALID, "a pipe must not block");
}

Test(gguf, no_descriptor) {
    struct rlimit limit;
    struct sheaf_gguf *g;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 3;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(sheaf_gguf_open(path, &g), SHEAF_STATUS_IO);
    cr_expect(strstr(sheaf_last_error(), "raise the limit (ulimit -n)"), "%s", sheaf_last_error());
}

Test(gguf, not_gguf) {
    struct bytes b = {.n = 0};
    refused(&b, "ends inside the header");
    put(&b, "PK\3\4 and some more bytes of another format", 40);
    refused(&b, "not a GGUF file");
}

Test(gguf, versions) {
    const uint64_t versions[] = {0, 1, 4, 0x03000000};
    for (int i = 0; i < 4; i++) {
        struct bytes b = {.n = 0};
        header(&b, versions[i], 0, 0);
        refused_as(&b, SHEAF_STATUS_UNSUPPORTED, i == 3 ? "big-endian" : "GGUF version");
    }
}

Test(gguf, absurd_counts) {
    const uint64_t counts[] = {3, 1u << 31, (uint64_t)1 << 63, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        struct bytes b = {.n = 0};
        header(&b, 3, counts[i], 0);
        refused(&b, "count");
        b.n = 0;
        header(&b, 3, 0, counts[i]);
        refused(&b, "count");
        b.n = 0; /* an array of numbers, an array of strings, a string */
        header(&b, 3, 0, 1);
        string(&b, "k");
        number(&b, SHEAF_GGUF_TYPE_ARRAY, 4);
        number(&b, SHEAF_GGUF_TYPE_UINT64, 4);
        number(&b, counts[i], 8);
        pad(&b, b.n + 16);
        refused(&b, "count");
        b.n = 0;
        header(&b, 3, 0, 1);
        string(&b, "k");
        number(&b, SHEAF_GGUF_TYPE_ARRAY, 4);
        number(&b, SHEAF_GGUF_TYPE_STRING, 4);
        number(&b, counts[i], 8);
        pad(&b, b.n + 16);
        refused(&b, "count");
        b.n = 0;
        header(&b, 3, 0, 1);
        string(&b, "k");
        number(&b, SHEAF_GGUF_TYPE_STRING, 4);
        number(&b, counts[i] + 20, 8);
        refused(&b, "count");
    }
}

/* Names come into messages, and these go to terminals. */
Test(gguf, control_characters_in_names) {
    struct bytes b = {.n = 0};
    header(&b, 3, 0, 1);
    string(&b, "a\033]0;title\a");
    pad(&b, b.n + 20);
    refused(&b, "a key 'a...' holds the control character 0x1b");
    b.n = 0;
    header(&b, 3, 1, 0);
    tensor(&b, "w\nsheaf: all is well", 1, 32, 1, 0, 0);
    pad(&b, b.n + 1000);
    refused(&b, "a tensor name 'w...' holds the control character 0x0a");
    b.n = 0;
    header(&b, 3, 0, 1);
    string(&b, "a\177b");
    pad(&b, b.n + 20);
    refused(&b, "a key 'a...' holds the control character 0x7f");
}

static void tensor_of_bytes(struct bytes *b, uint8_t value) {
    b->n = 0;
    header(b, 3, 1, 0);
    tensor(b, "t", 1, 8, 1, 0, 0);
    pad(b, (b->n + 31) / 32 * 32);
    for (int i = 0; i < 32; i++) put(b, &value, 1);
}

/* A loader reads the file that it has checked, whatever has its name by then. */
Test(gguf, a_file_that_is_replaced_or_changed) {
    struct bytes b = {.n = 0};
    struct sheaf_gguf *g;
    uint8_t got[32];
    tensor_of_bytes(&b, 1);
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_open(path, &g), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, 0);
    cr_assert_eq(unlink(path), 0);
    tensor_of_bytes(&b, 2);
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_read(g, t, 4, got, 28), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert(got[0] == 1 && got[27] == 1);
    cr_assert_eq(sheaf_gguf_check_unchanged(g), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    cr_assert_eq(sheaf_gguf_read(g, t, 8, got, 28), SHEAF_STATUS_INVALID);
    sheaf_gguf_free(g);

    cr_assert_eq(sheaf_gguf_open(path, &g), SHEAF_STATUS_SUCCESS, "%s", sheaf_last_error());
    const struct timespec later[2] = {{.tv_sec = 2000000000}, {.tv_sec = 2000000000}};
    cr_assert_eq(utimensat(AT_FDCWD, path, later, 0), 0);
    cr_assert_eq(sheaf_gguf_check_unchanged(g), SHEAF_STATUS_IO);
    cr_assert(strstr(sheaf_last_error(), "was written to while it was read"));
    cr_assert_eq(truncate(path, (off_t)(b.n - 1)), 0);
    cr_assert_eq(sheaf_gguf_read(g, sheaf_gguf_tensor(g, 0), 0, got, 32), SHEAF_STATUS_IO);
    cr_assert(strstr(sheaf_last_error(), "the file became shorter"), "%s", sheaf_last_error());
    sheaf_gguf_free(g);
}

Test(gguf, bad_keys_and_values) {
    struct bytes b = {.n = 0};
    header(&b, 3, 0, 1); /* an empty key */
    string(&b, "");
    pad(&b, b.n + 20);
    refused(&b, "a key has 0 bytes");
    b.n = 0; /* a zero inside a key */
    header(&b, 3, 0, 1);
    number(&b, 3, 8);
    put(&b, "a\0b", 3);
    pad(&b, b.n + 20);
    refused(&b, "zero byte");
    b.n = 0; /* twice the same */
    header(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        string(&b, "twin");
        number(&b, SHEAF_GGUF_TYPE_UINT8, 4);
        number(&b, 1, 1);
    }
    refused(&b, "'twin' occurs twice");
    b.n = 0; /* unknown value type */
    header(&b, 3, 0, 1);
    string(&b, "key");
    number(&b, 13, 4);
    pad(&b, b.n + 20);
    refused(&b, "'key' has the unknown type 13");
    b.n = 0; /* unknown element type */
    header(&b, 3, 0, 1);
    string(&b, "key");
    number(&b, SHEAF_GGUF_TYPE_ARRAY, 4);
    number(&b, 99, 4);
    number(&b, 0, 8);
    refused(&b, "unknown type 99");
    b.n = 0; /* array of arrays */
    header(&b, 3, 0, 1);
    string(&b, "key");
    number(&b, SHEAF_GGUF_TYPE_ARRAY, 4);
    number(&b, SHEAF_GGUF_TYPE_ARRAY, 4);
    number(&b, 1, 8);
    pad(&b, b.n + 20);
    refused_as(&b, SHEAF_STATUS_UNSUPPORTED, "array of arrays");
    b.n = 0; /* a bool that is 2 */
    header(&b, 3, 0, 1);
    string(&b, "key");
    number(&b, SHEAF_GGUF_TYPE_BOOL, 4);
    number(&b, 2, 1);
    pad(&b, b.n + 20);
    refused(&b, "bool");
}

Test(gguf, bad_alignment) {
    const uint64_t values[] = {0, 3, 48, (uint64_t)1 << 31};
    for (int i = 0; i < 4; i++) {
        struct bytes b = {.n = 0};
        header(&b, 3, 0, 1);
        string(&b, "general.alignment");
        number(&b, SHEAF_GGUF_TYPE_UINT64, 4);
        number(&b, values[i], 8);
        refused(&b, "alignment");
    }
}

static void one_tensor(struct bytes *b, const char *name, uint64_t n_dims, uint64_t ne0,
                       uint64_t ne1, uint64_t type, uint64_t offset) {
    b->n = 0;
    header(b, 3, 1, 0);
    tensor(b, name, n_dims, ne0, ne1, type, offset);
    pad(b, 256);
}

Test(gguf, bad_tensors) {
    struct bytes b = {.n = 0};
    char name[65];
    memset(name, 'x', 64);
    name[64] = 0;
    one_tensor(&b, "t", 2, 8, 2, 0, 0);
    struct sheaf_gguf *g;
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "the plain one is fine: %s", sheaf_last_error());
    sheaf_gguf_free(g);
    one_tensor(&b, name, 1, 8, 1, 0, 0);
    refused(&b, "64 bytes");
    one_tensor(&b, "t", 5, 8, 1, 0, 0);
    refused(&b, "5 dimensions");
    one_tensor(&b, "t", 1, UINT64_MAX, 1, 0, 0);
    refused(&b, "absurd");
    one_tensor(&b, "t", 2, (uint64_t)1 << 62, 8, 0, 0);
    refused(&b, "overflows");
    one_tensor(&b, "t", 2, (uint64_t)1 << 32, (uint64_t)1 << 31, 0, 0);
    refused(&b, "overflows");
    /* empty, but the product of its other dimensions is that of its rows */
    const uint64_t many = (uint64_t)1 << 62;
    b.n = 0;
    header(&b, 3, 1, 0);
    string(&b, "t");
    number(&b, 3, 4);
    number(&b, 0, 8);
    number(&b, many, 8);
    number(&b, many, 8);
    number(&b, 0, 4);
    number(&b, 0, 8);
    pad(&b, 256);
    refused(&b, "overflows");
    one_tensor(&b, "t", 2, 0, 8, 0, 0);
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "an empty one is fine: %s", sheaf_last_error());
    sheaf_gguf_free(g);
    one_tensor(&b, "t", 1, 33, 1, 8, 0);
    refused(&b, "whole blocks of 32");
    one_tensor(&b, "t", 1, 8, 1, 0, 16);
    refused(&b, "alignment");
    one_tensor(&b, "t", 1, 8, 1, 0, 256);
    refused(&b, "the file has 256");
    one_tensor(&b, "t", 1, 8, 1, 0, UINT64_MAX - 31);
    refused(&b, "offset");
    one_tensor(&b, "t", 1, 8, 1, 0, (uint64_t)INT64_MAX / 32 * 32);
    refused(&b, "the file has 256");
    one_tensor(&b, "t", 2, 1 << 20, 1 << 20, 0, 0);
    refused(&b, "the file has 256");
    b.n = 0;
    header(&b, 3, 2, 0);
    tensor(&b, "twin", 1, 8, 1, 0, 0);
    tensor(&b, "twin", 1, 8, 1, 0, 32);
    pad(&b, 256);
    refused(&b, "'twin' occurs twice");
}

/* As a directory with one damaged offset has them. */
Test(gguf, tensors_that_share_bytes) {
    struct bytes b = {.n = 0};
    struct sheaf_gguf *g;
    header(&b, 3, 4, 0); /* not in the order of their places; an empty one lies in another */
    tensor(&b, "late", 1, 8, 1, 0, 64);
    tensor(&b, "early", 1, 16, 1, 0, 0);
    tensor(&b, "empty", 1, 0, 1, 0, 32);
    tensor(&b, "last", 1, 8, 1, 0, 96);
    pad(&b, 384);
    save(b.data, b.n);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0, "%s", sheaf_last_error());
    sheaf_gguf_free(g);
    b.n = 0;
    header(&b, 3, 3, 0);
    tensor(&b, "late", 1, 8, 1, 0, 32);
    tensor(&b, "early", 1, 9, 1, 0, 0);
    tensor(&b, "empty", 1, 0, 1, 0, 32);
    pad(&b, 384);
    refused(&b, "tensors 'early' and 'late' share bytes from");
    b.n = 0;
    header(&b, 3, 2, 0);
    tensor(&b, "one", 1, 8, 1, 0, 0);
    tensor(&b, "two", 1, 8, 1, 0, 0);
    pad(&b, 256);
    refused(&b, "share bytes");
}

Test(gguf, unknown_tensor_types_are_named) {
    const struct {
        uint64_t type;
        const char *text;
    } cases[] = {{15, "'t' has type 15 (q8_K)"},
                 {9, "type 9 (q8_1)"},
                 {4, "type 4 (q4_2"},
                 {43, "type 43 (unknown)"},
                 {1000, "type 1000 (unknown)"},
                 {UINT32_MAX, "type 4294967295 (unknown)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes b;
        one_tensor(&b, "t", 1, 256, 1, cases[i].type, 0);
        refused_as(&b, SHEAF_STATUS_UNSUPPORTED, cases[i].text);
    }
}

Test(gguf, every_truncation_is_refused) {
    static unsigned char data[4096];
    struct sheaf_gguf *g;
    write_sample();
    size_t n = load_sample(data, sizeof data);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0);
    const struct sheaf_gguf_tensor *last = sheaf_gguf_tensor(g, 1);
    size_t end = last->offset + last->size; /* what follows is padding */
    sheaf_gguf_free(g);
    cr_assert(end <= n && n - end < 32);
    for (size_t i = 0; i < end; i++) {
        save(data, i);
        cr_assert_neq(sheaf_gguf_open(path, &g), 0, "%zu of %zu bytes were accepted", i, n);
        cr_expect(strstr(sheaf_last_error(), "truncated or damaged; copy it again"), "%zu: %s", i,
                  sheaf_last_error());
    }
    save(data, end);
    cr_assert_eq(sheaf_gguf_open(path, &g), 0);
    sheaf_gguf_free(g);
}

Test(gguf, damaged_files_do_no_harm) {
    static unsigned char data[4096], copy[4096];
    uint64_t state = 42;
    size_t refusals = 0;
    write_sample();
    size_t n = load_sample(data, sizeof data);
    for (int round = 0; round < 3000; round++) {
        memcpy(copy, data, n);
        for (int k = 0; k <= round % 4; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(state >> 33) % 700;
            copy[at % n] = (state >> 20) % 3 ? (unsigned char)(state >> 24) : 0xff;
        }
        struct sheaf_gguf *g;
        save(copy, n);
        if (sheaf_gguf_open(path, &g) == 0) {
            for (int64_t i = 0; i < sheaf_gguf_n_tensors(g); i++) {
                const struct sheaf_gguf_tensor *t = sheaf_gguf_tensor(g, i);
                cr_assert(t->offset <= n && t->size <= n - t->offset);
            }
            sheaf_gguf_free(g);
        } else {
            refusals++;
        }
    }
    cr_assert_gt(refusals, 500); /* else the damage missed everything that matters */
}

/* ---- data from a source ---- */

struct source {
    int calls, fail_at;
    float data[8];
};

static enum sheaf_status give(void *user, int64_t i, const void **data) {
    struct source *s = user;
    if (s->calls++ == s->fail_at) return sheaf_set_error(SHEAF_STATUS_IO, "the source is dry");
    for (int k = 0; k < 8; k++) s->data[k] = (float)(100 * i + k);
    *data = s->data;
    return SHEAF_STATUS_SUCCESS;
}

Test(gguf, tensors_without_data_come_from_the_source) {
    const int64_t ne[1] = {8};
    const float own[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    char file[] = "/tmp/sheaf-test-source-XXXXXX", cmd[128];
    float got[8];
    struct sheaf_gguf *g = sheaf_gguf_new(), *back;
    close(mkstemp(file));
    cr_assert_eq(sheaf_gguf_add_tensor(g, "a", SHEAF_TYPE_F32, 1, ne, NULL), 0);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "b", SHEAF_TYPE_F32, 1, ne, own), 0);
    cr_assert_eq(sheaf_gguf_add_tensor(g, "c", SHEAF_TYPE_F32, 1, ne, NULL), 0);
    struct source s = {.fail_at = -1};
    cr_assert_eq(sheaf_gguf_write_from(g, file, give, &s), 0, "%s", sheaf_last_error());
    cr_assert_eq(s.calls, 2);
    cr_assert_eq(sheaf_gguf_open(file, &back), 0, "%s", sheaf_last_error());
    FILE *f = fopen(file, "rb");
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(fseek(f, (long)sheaf_gguf_tensor(back, i)->offset, SEEK_SET), 0);
        cr_assert_eq(fread(got, sizeof *got, 8, f), 8);
        cr_assert_eq(got[3], i == 1 ? 7 : (float)(100 * i + 3));
    }
    fclose(f);
    sheaf_gguf_free(back);

    /* a source that fails: its error, the file that was there, and no other beside it */
    s = (struct source){.fail_at = 1};
    cr_assert_eq(sheaf_gguf_write_from(g, file, give, &s), SHEAF_STATUS_IO);
    cr_assert_not_null(strstr(sheaf_last_error(), "dry"));
    cr_assert_eq(sheaf_gguf_open(file, &back), 0);
    sheaf_gguf_free(back);
    snprintf(cmd, sizeof cmd, "test $(ls %s* | wc -l) = 1", file);
    cr_assert_eq(system(cmd), 0);
    cr_assert_eq(sheaf_gguf_write(g, file), SHEAF_STATUS_INVALID);
    unlink(file);
    sheaf_gguf_free(g);
}
