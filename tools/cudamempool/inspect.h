/* What `inspect` says of one device of a picture: sums, runs, what would fit, who holds what, and what keeps a segment from going back. */
#ifndef TOOL_INSPECT_H
#define TOOL_INSPECT_H

#include "json.h"
#include "trace/picture.h"

/* Bytes of one stream or one pool. */
typedef struct inspect_share {
    uint64_t reserved, live, pending, idle, fixed; /* idle: reserved less live less pending; fixed: part of any of them */
    size_t live_blocks;
} inspect_share;

/* Runs of idle bytes of at least 4^k bytes and less than 4^(k+1). */
enum { INSPECT_RUN_CLASSES = 32 };
typedef struct inspect_runs {
    uint64_t bytes[INSPECT_RUN_CLASSES];
    size_t runs[INSPECT_RUN_CLASSES];
} inspect_runs;

/*
 * The largest request that would be served, by what is done for it. Each holds what the driver would still give (driver_room), where that
 * is known. Idle memory of private pools serves only them and is left out.
 */
typedef struct inspect_largest {
    uint64_t driver_room;    /* free on the device within the allocator's limit; CMI_UNKNOWN */
    uint64_t now;            /* the longest idle run as it lies, or new memory of the driver */
    uint64_t after_waiting;  /* pending memory counts as idle */
    uint64_t after_moving;   /* all whole pages without a live byte, mapped side by side, with new ones */
    uint64_t after_trim;     /* all that can be given back is given back first: whole segments, of expandable ones whole pages */
    uint64_t without_moving; /* the best of an allocator that returns whole segments only and cannot join pieces */
} inspect_largest;

typedef struct inspect_holder {
    uint64_t bytes;
    size_t blocks;
    uint32_t key; /* a string or a stack of the picture */
} inspect_holder;

typedef struct inspect_holders {
    inspect_holder *holders; /* the largest first; only those with live bytes */
    size_t count;
} inspect_holders;

typedef struct inspect_report {
    const cmi_picture *picture;
    uint32_t device; /* index */
    cmi_picture_totals totals;
    inspect_share *streams, *pools; /* by index of the picture */
    inspect_runs runs;
    inspect_largest largest;
    inspect_holders tags, stacks;
    uint32_t stuck_segment; /* of the segments with a live or pending block the one with the most idle bytes; CMI_NONE */
    uint64_t stuck_bytes;   /* idle and pending bytes in it */
    cmi_picture_lives lives;
    uint32_t *life_of_block; /* CMI_NONE: none */
} inspect_report;

/* 0, or -1 without host memory, with nothing left allocated. */
int inspect_make(const cmi_picture *picture, uint32_t device, inspect_report *report);
void inspect_free(inspect_report *report);

/* Nanoseconds from a block's allocation to the last event of the history; -1: not known. */
int64_t inspect_age_ns(const inspect_report *report, uint32_t block);

typedef struct inspect_options {
    bool json;
    uint64_t top; /* most lines of each list */
    const char *html;
} inspect_options;

void inspect_print(const char *file, const inspect_report *report, const inspect_options *options);
/* Members of an object. */
/* A figure of pinned host memory, over all pools of a snapshot; 0 where it tells none. */
uint64_t inspect_pinned(const cmi_picture *picture, const char *figure);
void inspect_put_totals(json *out, const cmi_picture_totals *totals);
void inspect_put(json *out, const inspect_report *report, const inspect_options *options);
/* Several files: what they hold together. */
void inspect_print_sum(size_t files, const cmi_picture_totals *sum);

/* "function (file:line)" of a frame; text has 512 bytes. */
const char *inspect_frame(const cmi_picture *picture, uint32_t frame, char text[512]);
/* How a stream and a pool are called; text has 64 bytes. */
const char *inspect_stream_name(const cmi_picture *picture, uint16_t stream, char text[64]);
const char *inspect_pool_name(const cmi_picture *picture, uint32_t pool, char text[64]);

/* The page; exit status. inspect_page.c */
int inspect_write_page(const char *file, const cmi_picture *picture, const char *out);

/*
 * Have a running process write a snapshot, by the signal it listens to (option snapshot_signal). Exit status with a message; EXIT_FINE and
 * the file's path in malloc'ed memory. inspect_process.c
 */
int inspect_ask_process(uint64_t pid, uint64_t wait_seconds, char **path);

#endif
