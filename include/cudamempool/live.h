/*
 * The live page: the figures of a running process, in a file that other processes of the same user can map and read at any time, also while
 * the process hangs. Written where a pool has the option live:on. `cudamempool top` and `cudamempool serve-metrics` are readers of it.
 *
 * The file is <folder>/cudamempool.<user>.<process>.<n>, with mode 0600; the folder is that of the environment variable
 * CUDAMEMPOOL_LIVE_DIR, else /dev/shm; <user> and <process> are numbers and <n> tells processes of several containers apart. It holds
 * figures and the name of the program, no addresses, no names of tags, no contents of memory. It goes when the process exits or the library
 * is closed.
 *
 * A file is that of a living process while byte 0 is locked for writing by another process (fcntl, F_GETLK), a lock that ends with the
 * process, is not passed on by fork and ends with an exec. A file of full length that nobody has locked and whose process is not there is
 * left over, and readers remove it. A page of another version, or with other lengths or counts than below, is not read.
 *
 * Numbers are of the machine's own byte order, words of 8 bytes that are written whole. A pool's words are of one moment when `sequence`
 * was even and the same before and after they were read; if it stays odd the process stopped half-way, and each word is right by itself.
 *
 * Figures are written at the end of each call that takes the pool's lock. What needs counting (idle_bytes, and live figures without what
 * lies ready in thread caches) is counted no more often than each 100 ms and for at most 1% of the time. Calls that thread caches serve do
 * not write: a reader sets `wanted` to 1, and the next call of the process on any pool sets it to 0 and writes all.
 */
#ifndef CUDAMEMPOOL_LIVE_H
#define CUDAMEMPOOL_LIVE_H

#include <stdint.h>

#define CMPOOL_LIVE_MAGIC "cmplive" /* with its end, 8 bytes; written last */

enum {
    CMPOOL_LIVE_VERSION = 1, /* another one when anything below or the order in counters.def changes */
    CMPOOL_LIVE_POOLS = 64,  /* pools that are shown; a process may have more */
    CMPOOL_LIVE_PROGRAM_BYTES = 32
};

/* How many words: those of counters.def and verdicts.def, in their order. */
#define CMPOOL_COUNTER(name, kind, help) CMPOOL_LIVE_COUNTER_##name,
#define CMPOOL_VERDICT(name, number, key, sentence) CMPOOL_LIVE_VERDICT_##name,
enum {
#include <cudamempool/counters.def>
    CMPOOL_LIVE_COUNTERS
};
enum {
#include <cudamempool/verdicts.def>
    CMPOOL_LIVE_VERDICTS
};
#undef CMPOOL_COUNTER
#undef CMPOOL_VERDICT

typedef struct cmpool_live_pool {
    uint64_t sequence;                          /* odd while the rest is written */
    uint64_t number;                            /* of the pool in its process, from 1, never used twice; 0: no pool is shown here */
    uint64_t device;                            /* ordinal in the process */
    uint64_t device_bytes;                      /* memory of the device */
    uint64_t limit_bytes;                       /* 0: none */
    uint64_t published_ns;                      /* CLOCK_MONOTONIC */
    uint64_t counted_ns;                        /* when what needs counting was counted last */
    uint64_t refusals_by[CMPOOL_LIVE_VERDICTS]; /* refusals by what was the matter; their sum may lag behind the counter `refusals` */
    uint64_t counters[CMPOOL_LIVE_COUNTERS];
} cmpool_live_pool;

typedef struct cmpool_live_page {
    char magic[8];
    uint32_t version;
    uint32_t page_bytes, pool_bytes; /* lengths of these two structures */
    uint32_t pool_count, verdict_count, counter_count;
    uint64_t process;    /* as the process itself is numbered */
    uint64_t started_ns; /* when the page was made, CLOCK_REALTIME */
    char program[CMPOOL_LIVE_PROGRAM_BYTES];
    uint64_t unused[6];
    uint64_t wanted; /* the one word that readers write */
    uint64_t unused_too[7];
    cmpool_live_pool pools[CMPOOL_LIVE_POOLS];
} cmpool_live_page;

#endif
