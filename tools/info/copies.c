/* Reads the files of a model once and hashes them; keeps nothing. */
#include "copies.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "model/file/weights.h"

enum { BLOCK = 1 << 20, WORD = sizeof(uint64_t) };

enum sheaf_status copies_find(const char *path, uint64_t *device, uint64_t *inode) {
    struct stat st;
    if (stat(path, &st))
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot stat %s: %s", path, strerror(errno));
    *device = (uint64_t)st.st_dev;
    *inode = (uint64_t)st.st_ino;
    return SHEAF_STATUS_SUCCESS;
}

/* Fills a block as far as the file goes; -1 on failure. */
static ssize_t read_block(int fd, char *block) {
    size_t n = 0;
    while (n < BLOCK) {
        const ssize_t got = read(fd, block + n, BLOCK - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (!got) break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

static enum sheaf_status hash_file(const char *path, uint64_t *block, uint64_t *hash) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum sheaf_status status = SHEAF_STATUS_SUCCESS;
    if (fd < 0)
        return sheaf_set_error(SHEAF_STATUS_IO, "cannot open %s: %s", path,
                               sheaf__errno_text(errno));
    for (;;) {
        const ssize_t n = read_block(fd, (char *)block);
        if (n < 0)
            status = sheaf_set_error(SHEAF_STATUS_IO, "cannot read %s: %s", path, strerror(errno));
        if (n <= 0) break;
        memset((char *)block + n, 0, BLOCK - (size_t)n); /* the last word */
        *hash =
            sheaf__mix(sheaf__hash_words(*hash, block, ((int)n + WORD - 1) / WORD), (uint64_t)n);
    }
    close(fd);
    return status;
}

enum sheaf_status copies_hash(const char *path, uint64_t *hash) {
    struct sheaf__weights *model = NULL;
    uint64_t *block = malloc(BLOCK);
    enum sheaf_status status =
        block ? sheaf__weights_open(path, &model)
              : sheaf_set_error(SHEAF_STATUS_ALLOC_FAILED, "no memory to read %s", path);
    *hash = 0;
    for (int i = 0; !status && i < model->n_files; i++)
        status = hash_file(sheaf_gguf_path(model->files[i]), block, hash);
    sheaf__weights_free(model);
    free(block);
    return status;
}
