/* The pool of a run and the options it is made with. */
#ifndef TOOL_POOL_H
#define TOOL_POOL_H

#include "device.h"

typedef struct pool_conf {
    const char *text; /* --conf as written, or NULL */
    /* What device and options (CUDAMEMPOOL_CONF, then text) come to. */
    uint64_t page_bytes, limit_bytes, headroom_bytes;
} pool_conf;

/* Check the options before anything runs, and fill in the figures. Exit status; each fault has been printed. */
int pool_conf_check(pool_conf *conf, const device_words *words);
/* Make the pool. Exit status; a message that names file has been printed. */
int pool_open(const pool_conf *conf, const device_words *words, const char *file, cmpool_t *pool);

#endif
