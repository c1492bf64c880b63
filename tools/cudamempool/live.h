/* Live pages of running processes (<cudamempool/live.h>), as a reader sees them. No state; one thread. */
#ifndef LIVE_H
#define LIVE_H

#include <cudamempool/live.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A pool of a process, copied out of its page. */
typedef struct live_pool {
    uint64_t process, user;
    char program[CMPOOL_LIVE_PROGRAM_BYTES]; /* printable */
    cmpool_live_pool figures;
} live_pool;

typedef struct live_view {
    live_pool *pools; /* by process and pool number */
    size_t count, room;
    unsigned processes;  /* pages that were read */
    unsigned unreadable; /* pages of living processes with another version of the library */
    uint64_t time_ns;    /* CLOCK_MONOTONIC, when it was read */
} live_view;

/* Where the pages are. */
const char *live_folder(void);
/* Read the pages of all living processes of this user (root: of all) into the view, and remove what dead ones left. Each is asked to write
 * what it has at its next call. false: no host memory, or the folder cannot be read; errno says which. */
bool live_read(live_view *view);
void live_free(live_view *view);

enum { LIVE_GAUGE, LIVE_PEAK, LIVE_COUNT };
typedef struct live_counter {
    const char *name, *help;
    int kind;
} live_counter;
extern const live_counter live_counters[CMPOOL_LIVE_COUNTERS];
/* The key of a verdict. */
extern const char *const live_verdicts[CMPOOL_LIVE_VERDICTS];

#endif
