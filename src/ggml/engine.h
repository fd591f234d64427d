/* What every rank of the job keeps for rank 0's program: meta devices, one for each group of ranks
 * (SHEAF_GROUPS; one over all ranks without it), objects (weights and caches, by number), and
 * programs (graphs, by number), each of one device.
 *
 * Invariant: all ranks execute the same commands in the same order, so that every collective inside
 * them meets. A command that fails on one rank fails on all, unless the job itself is over
 * (sheaf_world_failed). Ranks that drive no member of a device take part in its plans and hold
 * nothing of it; payloads of SET and RUN go to its group only, unless views move. A device without
 * rank 0 computes while rank 0 goes on: its results are fetched by a command of their own. All
 * calls from one thread. */
#ifndef SHEAF_GGML_ENGINE_H
#define SHEAF_GGML_ENGINE_H

#include "ggml/log.h"
#include "ggml/wire.h"

/* The fields that each uses, its payload, and -> what rank 0 gets. */
enum gg_command_kind {
    GG_COMMAND_END,  /* the job is over */
    GG_COMMAND_BIND, /* device, buffer; payload: shapes and states of objects that lie there */
    GG_COMMAND_SET,  /* object, offset; payload: bytes */
    GG_COMMAND_FILL, /* object, offset, bytes, value */
    GG_COMMAND_GET,  /* object, offset, bytes -> these bytes */
    /* device; payload: path, and where objects lie in that file; no path: rank 0 sends the bytes */
    GG_COMMAND_LOAD,
    GG_COMMAND_FREE, /* buffer: its objects, and the programs that use them */
    /* object, and the programs that use it; memory goes with the last of those bound together */
    GG_COMMAND_RELEASE,
    GG_COMMAND_GRAPH, /* device, program, n_records, n_outputs; payload: outputs, graph */
    GG_COMMAND_DROP,  /* program */
    /* program, with_results, n_moves; payload: changed inputs, offsets of views that move ->
     * results */
    GG_COMMAND_RUN,
    GG_COMMAND_FETCH,   /* program -> results of its last run */
    GG_COMMAND_ASK,     /* device, n_records; payload: graph of a node -> does the device run it? */
    GG_COMMAND_MEASURE, /* -> struct gg_memory_now of each member of all devices */
    GG_COMMAND_KIND_COUNT,
};

enum { GG_INLINE_BYTES = 448 };
/* Travels whole, in one message; a longer payload follows it. Fields that a kind does not use are
 * 0. */
struct gg_command {
    uint32_t magic, kind;
    uint64_t sequence;
    uint32_t device, value;
    union {
        uint64_t buffer, object, program; /* numbers; buffer: of a buffer of ggml's */
    };
    union {
        uint64_t offset, n_records, with_results;
    };
    union {
        uint64_t bytes, n_outputs, n_moves;
    };
    uint64_t size; /* of the payload */
    uint8_t data[GG_INLINE_BYTES];
};

/* The shape of an object in a BIND payload. */
struct gg_object_shape {
    uint64_t object;
    uint64_t type;
    uint64_t ne[SHEAF_MAX_DIMS];
};
/* Where an object's bytes begin, in a LOAD payload. */
struct gg_object_place {
    uint64_t object, offset;
};

/* What a member's device says of its memory. */
struct gg_memory_now {
    uint64_t available, all;
};

/* Rank 0's bytes of a LOAD: [offset, offset + size) of the i-th object of its payload. */
struct gg_source {
    enum sheaf_status (*read)(void *user, size_t i, size_t offset, void *dst, size_t size);
    void *user;
};

/* Does the program outlive the loss of a rank (SHEAF_GGML_ON_FAILURE)? */
bool gg_program_lives_on(void);

struct gg_engine;
/* What a rank has of its own to do when the engine starts; functions may be NULL. */
struct gg_start {
    bool may_exit; /* this and on_failure: as in struct sheaf_world_params */
    sheaf_failure_fn on_failure;
    /* gets the text of an error while the ranks are still there: a launcher ends the job when the
     * first of them has gone */
    void (*tell)(const char *text);
    /* once the devices are there: a failure on one rank is one on all */
    enum sheaf_status (*check)(const struct gg_engine *e);
};
/* Starts the world and the meta devices over all its devices. Collective. */
enum sheaf_status gg_engine_start(const struct gg_start *start, struct gg_engine **out);
void gg_engine_stop(struct gg_engine *e); /* and the world; accepts NULL */

size_t gg_engine_n_devices(const struct gg_engine *e);
sheaf_backend_dev_t gg_engine_device(const struct gg_engine *e, size_t device);
/* Is its supports_op collective? Then rank 0 asks by a command. */
bool gg_engine_asks_all(const struct gg_engine *e, size_t device);
bool gg_engine_has_rank(const struct gg_engine *e, size_t device, int rank);
/* The number of a member among the members of all devices. */
size_t gg_engine_member(const struct gg_engine *e, size_t device, size_t member);
size_t gg_engine_n_members(const struct gg_engine *e); /* of all devices */
size_t gg_engine_n_members_of(const struct gg_engine *e, size_t device);

/* Rank 0: sends the command to all and executes it here; magic and sequence are filled in. `result`
 * takes what GET and MEASURE return; of RUN and FETCH, an array of addresses, one an output; of LOAD
 * it is a struct gg_source. */
enum sheaf_status gg_engine_do(struct gg_engine *e, struct gg_command *command, const void *payload,
                               void *result);
/* Makes NaN of the F32 results, at rank 0's addresses. */
void gg_spoil_results(const struct gg_engine *e, uint64_t program, void *const *result);
/* Other ranks: executes commands until END or the end of the job. */
enum sheaf_status gg_engine_serve(struct gg_engine *e);

/* If the log has details: what was run and what travelled. */
void gg_engine_log(const struct gg_engine *e);

#endif
