/*
 * The door of lib/trace's reader: a recorded allocation sequence as compact arrays in memory. For tools, benchmarks and tests; it
 * is not part of the library that programs link, so it uses plain malloc and stdio. No locks: a trace is not changed after reading.
 *
 * Format cmtrace-1, one item a line:
 *   # KEY VALUE...     header              p PHASE   what the program is doing from here on       s N   step N begins
 *   a ID BYTES STREAM  allocation          f ID STREAM   free          u ID STREAM   the block is also used on STREAM
 * IDs are never used twice. BYTES is 1 to 2^47 as the program asked for it. STREAM is a number; a free normally names the stream of its
 * allocation. Blocks that are not freed stay live.
 */
#ifndef CMI_TRACE_H
#define CMI_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CMI_TRACE_BLOCK_UNIT 512u                   /* live bytes count each block rounded up to this */
#define CMI_TRACE_LARGEST_BLOCK ((uint64_t)1 << 47) /* as cmpool_malloc */

typedef enum cmi_trace_kind { CMI_TRACE_ALLOC, CMI_TRACE_FREE, CMI_TRACE_USE, CMI_TRACE_PHASE, CMI_TRACE_STEP } cmi_trace_kind;

typedef struct cmi_trace_event {
    uint32_t subject; /* ALLOC, FREE, USE: index of the block; PHASE: index of the name; STEP: its number */
    uint32_t line;    /* of the file, from 1 */
    uint16_t stream;  /* ALLOC, FREE, USE: index of the stream */
    uint8_t kind;     /* cmi_trace_kind */
} cmi_trace_event;

typedef struct cmi_trace_block {
    uint64_t id;
    uint64_t bytes; /* as asked for */
    uint32_t alloc_line;
    uint32_t free_line; /* 0: never freed */
    uint16_t stream;    /* index of the stream it was allocated on */
} cmi_trace_block;

typedef struct cmi_trace_header {
    char *key, *value;
} cmi_trace_header;

/* What a file of another format says of the run that it was recorded from. */
typedef struct cmi_trace_recorded {
    bool known; /* the two sums */
    uint64_t peak_reserved_bytes;
    uint64_t stranded_bytes;  /* that peak less the peak of live bytes */
    uint32_t device, devices; /* the trace is of that one of so many; 0 devices: the file does not say */
} cmi_trace_recorded;

typedef struct cmi_trace {
    const char *format; /* "cmtrace", "cmtrace.gz", or as cmi_picture's; static */
    cmi_trace_recorded recorded;
    cmi_trace_event *events;
    size_t event_count;
    size_t call_count; /* events that are calls: ALLOC, FREE, USE */
    cmi_trace_block *blocks;
    size_t block_count;
    uint64_t *streams; /* the numbers that the file gives them */
    size_t stream_count;
    char **phases;
    size_t phase_count;
    cmi_trace_header *headers;
    size_t header_count;
    size_t step_count;
    uint64_t peak_live_bytes; /* each block rounded up to CMI_TRACE_BLOCK_UNIT */
    uint64_t end_live_bytes;
} cmi_trace;

/*
 * Read a file, plain or gzip as its content says; of any format that cmi_picture_read knows, as the trace of its busiest device. Returns 0,
 * or -1 with one line "PATH:LINE: fault" (no newline) in fault; line 0 is a file that could not be opened or read at all. On failure *trace
 * is empty and nothing is left allocated.
 */
int cmi_trace_read(const char *path, cmi_trace *trace, char *fault, size_t fault_bytes);
/* The same from memory; name stands in fault lines. */
int cmi_trace_read_memory(const char *name, const void *data, size_t bytes, cmi_trace *trace, char *fault, size_t fault_bytes);
/* Give back what a trace holds; an empty (zeroed) one is fine. */
void cmi_trace_free(cmi_trace *trace);

#endif
