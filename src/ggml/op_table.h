/* The ops that ggml and the library have in common: where each has its operands and parameters.
 *
 * The table knows ops by name, so a row may name an op that the host's ggml or this build of the
 * library lacks: nodes of it are declined. translate.c reads it from ggml to here, translate_back.c
 * from here to ggml.
 *
 * To add an op: a row in op_table.c. Where operands and words do not say all, the row names a
 * special, and the tables of specials in translate.c and translate_back.c say what is done. */
#ifndef SHEAF_GGML_OP_TABLE_H
#define SHEAF_GGML_OP_TABLE_H

#include "ggml/host.h"

/* What a node needs beyond operands and words. */
enum gg_special {
    GG_PLAIN,      /* nothing */
    GG_K_OF_NE0,   /* TOP_K: k is the width of the result */
    GG_CAST,       /* CPY: a second operand that is the node itself makes it a conversion */
    GG_UNARY_OP,   /* word 0 is a number of unary ops */
    GG_GLU_OP,     /* word 0 is a number of GLU ops */
    GG_CHANNELS,   /* GROUP_NORM: groups in ggml; here word 2, the channels of a group */
    GG_SHAPE_ONLY, /* FILL: the operand gives its shape only */
    GG_SAME_SHAPE, /* CONT: the operand's shape here; in ggml any shape of as many elements */
    GG_FLAT,       /* two results one behind the other: of two dimensions in ggml, of one here */
    GG_DENSE_ROWS, /* SUM: ggml reads rows as if they were dense, and gives another sum if not */
    GG_PART,       /* SET, ACC: strides and an offset in ggml; here a start in each dimension */
    GG_KERNEL, /* CONV_2D: words 0 and 1 here, the size of the window, are the kernel's extents */
    GG_KERNEL_3D, /* CONV_3D, IM2COL_3D: the same of words 0 to 2 */
    GG_COLUMNS,   /* IM2COL: as GG_KERNEL, without the kernel; signals are images of height 1 */
    GG_SIGNALS,   /* COL2IM_1D: channels in ggml; here word 0, the size of the window */
    GG_POOL,      /* no dilation; POOL_1D: a window of height 1 */
    GG_ROTATION,  /* ROPE of no dimensions: a copy. Of a vision encoder: not all */
    GG_RESIZE,    /* UPSCALE: word 0 of ggml has a mode and flags */
    GG_WINDOWS,   /* WIN_PART: words 0 and 1 of ggml are how many windows there are */
    GG_SPECIAL_COUNT,
};
/* Word 0 of UPSCALE in ggml. */
enum { GG_SCALE_MODE = 255, GG_ALIGN_CORNERS = 256, GG_ANTIALIAS = 512 };

enum { GG_MAX_WORDS = 16 };
struct gg_op_row {
    const char *name;          /* in ggml and here; ADD1 is an ADD of one element */
    int8_t src[SHEAF_MAX_SRC]; /* 1 + operand of ggml for each operand here; 0: the list ends */
    enum gg_special special;
    /* words of op_params: 1 + ggml's, 1 + the library's; the list ends with 0 */
    int8_t words[GG_MAX_WORDS][2];
};

/* The row of the op that ggml calls so; -1: there is none, or the library lacks the op. To be asked
 * for every name of the host before the first node. */
int gg_find_op_row(const char *name);
const struct gg_op_row *gg_op_row(int row);
/* The library's op of a row that gg_find_op_row has given. */
enum sheaf_op gg_op_of_row(int row);
int gg_n_op_rows(void);

/* The number here of the host's number; -1: none that is known here. map: [room], an array of
 * struct gg_host. */
static inline int gg_mapped(const int8_t *map, int room, int32_t number) {
    return number >= 0 && number < room ? map[number] : -1;
}
/* The op that the host has by this number; SHEAF_OP_COUNT: none that is known here. */
enum sheaf_op gg_op_of(const struct gg_host *host, int32_t number);
/* The type (enum sheaf_type) that the host has by this number; -1: none that is known here. */
int gg_type_of(const struct gg_host *host, int32_t number);

/* Does ggml search for the scales of this type (K-quants and their like)? The library takes the
 * nearest, so a conversion into such a type would have other bytes. */
bool gg_searches_scales(enum sheaf_type type);

/* Has ggml this ROPE's or ROPE_BACK's angles? In a vision encoder it does not start the angle anew at
 * a section that comes after an empty one. */
bool gg_has_angles(const struct sheaf_tensor *rope);

#endif
