/* The choices that follow from measured links: latency and byte time, the way to stream, the sizes up
 * to which each scheme of small sums is used, and the bound of a collective. From made-up times,
 * without ranks. */
#include <criterion/criterion.h>
#include <string.h>

#include "comm/measure/between_hosts.c"
#include "sheaf/link.h"

enum { US = 1000 };

/* ---- small sums ---- */

/* Microseconds of WHOLE, ONE_OWNER, TWO_OWNERS, IN_PARTS at 64 bytes and at 32 KiB. */
static struct figures schemes_of(const unsigned us[SCHEMES][ENDS]) {
    struct figures f = {0};
    for (int s = 0; s < SCHEMES; s++)
        for (int e = 0; e < ENDS; e++) f.scheme[s][e] = us[s][e] * US;
    return f;
}

Test(measure, schemes_end_where_the_next_is_faster) {
    static const struct {
        unsigned us[SCHEMES][ENDS];
        size_t limit[IN_PARTS];
    } cases[] = {
        /* lines that cross at 6266, 8240 and 23731 bytes; owners count 5 % more */
        {{{10, 110}, {20, 60}, {25, 45}, {40, 42}}, {6144, 8192, 23552}},
        /* one owner is never the fastest, two are from 6791 bytes on */
        {{{10, 110}, {40, 80}, {25, 45}, {40, 42}}, {6656, 0, 23552}},
        /* whole up to what a frame holds, then two owners up to what they may own */
        {{{10, 20}, {30, 90}, {30, 50}, {90, 110}}, {64512, 0, 126976}},
        /* a gain of less than a twentieth is none */
        {{{50, 150}, {49, 147}, {50, 150}, {200, 300}}, {64512, 0, 126976}},
        /* parts are the fastest from the begin */
        {{{20, 90}, {30, 90}, {30, 50}, {10, 30}}, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct figures f = schemes_of(cases[i].us);
        size_t limit[IN_PARTS];
        choose_schemes(&f, 3, limit);
        for (int s = 0; s < IN_PARTS; s++)
            cr_expect_eq(limit[s], cases[i].limit[s], "case %zu, scheme %d: %zu", i, s, limit[s]);
        choose_schemes(&f, 2, limit);
        cr_expect(limit[WHOLE] == SHEAF__FRAME_PAYLOAD && !limit[ONE_OWNER] && !limit[TWO_OWNERS]);
    }
}

/* ---- streams ---- */

Test(measure, streams_must_gain_to_be_chosen) {
    static const struct {
        uint64_t t[STREAMS];
        int hosts;
        bool direct;
        int want;
    } cases[] = {
        {{1000, 901, 1000}, 2, true, 0}, {{1000, 899, 1000}, 2, true, 1},
        {{1000, 1000, 960}, 2, true, 2}, {{1000, 1000, 970}, 2, true, 0},
        {{1000, 800, 790}, 2, true, 1},  {{1000, 800, 770}, 2, true, 2},
        {{1000, 1000, 500}, 3, true, 0}, {{1000, 1000, 500}, 2, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct figures f = {0};
        memcpy(f.stream, cases[i].t, sizeof f.stream);
        cr_expect_eq(choose_stream(&f, cases[i].hosts, cases[i].direct), cases[i].want, "case %zu",
                     i);
    }
}

/* ---- the link ---- */

enum { PARTS = 8, LATENCY = 20 * US };

static struct sheaf_comm hosts(int n) {
    return (struct sheaf_comm){
        .n_hosts = n, .direct = true, .max_part_bytes = SHEAF__EAGER / STEP * STEP};
}

/* Of a link with LATENCY and `byte_ns` for a byte to each other host, whose short streams take
 * `shorter` of the time that long ones need for a byte. */
static struct figures link_of(const struct sheaf_comm *comm, double byte_ns, double shorter) {
    struct figures f = {.parts = PARTS};
    const double others = comm->n_hosts - 1;
    for (int i = 0; i < SIZES; i++)
        f.exchange[i] = (uint64_t)(LATENCY + others * byte_ns * (double)sizes[i]);
    for (int i = 0; i < STREAMS; i++) {
        const double sent =
            (double)(n_parts(comm, (uint64_t)i, PARTS) * part_bytes(comm, (uint64_t)i));
        f.stream[i] =
            (uint64_t)(LATENCY + others * byte_ns * sent * (streams[i].shorter ? shorter : 1));
    }
    return f;
}

static bool about(double x, double want) { return x > 0.97 * want && x < 1.03 * want; }

Test(measure, finds_latency_and_byte_time) {
    for (int n = 2; n <= 5; n++)
        for (int which = 0; which < 2; which++) {
            const struct sheaf_comm comm = hosts(n);
            const double byte_ns = 0.8, factor = which ? 0.5 : 1;
            const struct figures f = link_of(&comm, byte_ns, factor);
            struct sheaf_comm_level level = {0};
            int chosen;
            decide(&f, &comm, 0, 0, &level, &chosen);
            cr_expect_eq(chosen, which);
            cr_expect(about((double)level.link.byte_ps, 1e3 * byte_ns * factor),
                      "%d hosts, way %d: %lld ps", n, which, (long long)level.link.byte_ps);
            /* what is left of the longer messages counts as latency where streams are faster */
            if (!which)
                cr_expect(about((double)level.link.latency_ns, LATENCY), "%d hosts: %lld ns", n,
                          (long long)level.link.latency_ns);
        }
    /* 0 says that nothing was measured */
    const struct sheaf_comm comm = hosts(2);
    const struct figures none = {.parts = PARTS};
    struct sheaf_comm_level level;
    int chosen;
    decide(&none, &comm, 0, 0, &level, &chosen);
    cr_expect(level.link.latency_ns == 1 && level.link.byte_ps == 1);
    /* bursts pass faster than a stream, or a stream faster than a message: latency is what one takes */
    for (int slow = 0; slow < 2; slow++) {
        struct figures f = {.parts = PARTS};
        for (int i = 0; i < SIZES; i++) f.exchange[i] = LATENCY;
        for (int i = 0; i < STREAMS; i++) f.stream[i] = slow ? 100 * LATENCY : LATENCY / 100;
        decide(&f, &comm, 0, 0, &level, &chosen);
        cr_expect_eq(level.link.latency_ns, LATENCY, "%lld ns", (long long)level.link.latency_ns);
        for (int i = 0; i < SIZES; i++) f.exchange[i] = UINT64_MAX;
        decide(&f, &comm, 0, 0, &level, &chosen);
        cr_expect_eq(level.link.latency_ns, 1000000000000000);
    }
}

Test(measure, settings_overrule_what_was_measured) {
    const struct sheaf_comm comm = hosts(3);
    struct figures f = link_of(&comm, 1, 1);
    static const unsigned us[SCHEMES][ENDS] = {{10, 110}, {20, 60}, {25, 45}, {40, 42}};
    const struct figures times = schemes_of(us);
    struct sheaf_comm_level l = {0};
    int chosen;
    memcpy(f.scheme, times.scheme, sizeof f.scheme);
    decide(&f, &comm, 0, 0, &l, &chosen);
    cr_expect(l.one_shot_bytes == 6144 && l.owners[0].n == 1 && l.owners[0].bytes == 8192 &&
              l.owners[1].n == 2 && l.owners[1].bytes == 23552);
    decide(&f, &comm, 500, 0, &l, &chosen);
    cr_expect(l.one_shot_bytes == 500 && !l.owners[0].bytes && !l.owners[1].bytes);
    decide(&f, &comm, 1 << 20, 0, &l, &chosen);
    cr_expect(l.one_shot_bytes == 6144);
    for (int n = 1; n <= 5; n++) { /* of three hosts no more than three can own */
        decide(&f, &comm, 0, n, &l, &chosen);
        const int owners = n < 3 ? n : 3;
        cr_expect(!l.one_shot_bytes && l.owners[0].n == owners &&
                  l.owners[0].bytes == (size_t)owners * SHEAF__OWNER_BYTES);
    }
}

/* ---- from all ranks to all ranks ---- */

Test(measure, the_slowest_host_counts) {
    enum { RANKS = 3 };
    struct sheaf_comm comm = hosts(3);
    uint8_t all[RANKS * 8 * FIGURES];
    uint64_t results[RESULTS], values[FIGURES];
    sheaf__world()->size = RANKS;
    for (int r = 0; r < RANKS; r++) { /* rank 1 has the slowest link, rank 2 shares cores */
        struct figures f = link_of(&comm, r == 1 ? 2 : 1, 1);
        f.crowded = r == 2;
        memcpy(values, &f, sizeof values);
        put_all(all + (size_t)r * 8 * FIGURES, values, FIGURES);
    }
    choose(&comm, all, 0, 2, results);
    cr_assert_eq(take_results(&comm, results), SHEAF_STATUS_SUCCESS);
    struct sheaf_comm_level level;
    sheaf_comm_get_level(&comm, SHEAF_COMM_LEVEL_HOSTS, &level);
    cr_expect(about((double)level.link.byte_ps, 2000), "%lld ps", (long long)level.link.byte_ps);
    cr_expect(comm.crowded && comm.ahead == SHEAF__MIN_AHEAD &&
              comm.part_bytes == comm.max_part_bytes);
    cr_expect(!level.one_shot_bytes && level.owners[0].n == 2 && !level.owners[1].bytes);
    results[STREAM] = 1;
    cr_assert_eq(take_results(&comm, results), SHEAF_STATUS_SUCCESS);
    cr_expect_eq(comm.part_bytes, SHORT_BYTES);
    results[STREAM] = STREAMS; /* a number that this version does not have */
    cr_expect_eq(take_results(&comm, results), SHEAF_STATUS_PEER);
    cr_expect(strstr(sheaf_last_error(), "chose way 3 of 3"), "%s", sheaf_last_error());
}

/* ---- the bound ---- */

Test(measure, bound_adds_the_levels_that_were_measured) {
    struct sheaf_comm comm = {0};
    struct sheaf_comm_level *here = &comm.levels[SHEAF_COMM_LEVEL_SHARED],
                            *far = &comm.levels[SHEAF_COMM_LEVEL_HOSTS];
    enum { BYTES = 1 << 20 };
    cr_expect_eq(sheaf_comm_bound_ns(&comm, SHEAF_COMM_ALL_REDUCE, BYTES), 0);
    here->link = (struct sheaf_link){4, 500, 0}; /* of which half was measured */
    cr_expect_eq(sheaf_comm_bound_ns(&comm, SHEAF_COMM_ALL_REDUCE, BYTES), 0);
    here->link = (struct sheaf_link){4, 500, 100};
    const int64_t sum_here = sheaf_link_all_reduce_ns(&here->link, BYTES),
                  gather_here = sheaf_link_gather_ns(&here->link, BYTES);
    cr_expect_eq(sheaf_comm_bound_ns(&comm, SHEAF_COMM_ALL_REDUCE, BYTES), sum_here);
    cr_expect_eq(sheaf_comm_bound_ns(&comm, SHEAF_COMM_ALL_GATHER, BYTES), gather_here);
    far->link = (struct sheaf_link){3, 20000, 800};
    far->wire_type = SHEAF_TYPE_BF16; /* sums travel as half the bytes, other data as they are */
    cr_expect_eq(sheaf_comm_bound_ns(&comm, SHEAF_COMM_ALL_REDUCE, BYTES),
                 sum_here + sheaf_link_all_reduce_ns(&far->link, BYTES / 2));
    cr_expect_eq(sheaf_comm_bound_ns(&comm, SHEAF_COMM_REDUCE_SCATTER, BYTES),
                 gather_here + sheaf_link_gather_ns(&far->link, BYTES));
    cr_expect_neq(sum_here, gather_here);
}
