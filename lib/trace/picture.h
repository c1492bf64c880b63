/*
 * What a memory picture is: the state of a device allocator at one moment, and the events that led to it, as flat arrays in host memory.
 * One model for everything that is read (PyTorch snapshots, profiler traces, RMM logs, cmtrace, this library's own snapshots), so that
 * inspecting, explaining, converting and replaying are written once. For tools and tests; plain malloc, no locks: a picture is not
 * changed after reading.
 *
 * Whatever a format does not say is 0, CMI_NONE or CMI_UNKNOWN, and never guessed. Bytes are bytes, times nanoseconds on the file's clock.
 */
#ifndef CMI_TRACE_PICTURE_H
#define CMI_TRACE_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CMI_NONE UINT32_MAX    /* an index that names nothing */
#define CMI_UNKNOWN UINT64_MAX /* a number of bytes that the file does not say */

typedef uint32_t cmi_string_id; /* index into strings; 0 is the empty string */
typedef uint32_t cmi_stack_id;  /* index into stacks; 0 is the empty stack */

typedef struct cmi_picture_frame {
    cmi_string_id function, file;
    uint32_t line; /* 0: not known */
} cmi_picture_frame;

typedef struct cmi_picture_stack {
    uint32_t first, count; /* of stack_frames; innermost frame first */
} cmi_picture_stack;

typedef struct cmi_picture_device {
    uint32_t ordinal;
    cmi_string_id name;
    uint64_t total_bytes, free_bytes, limit_bytes; /* of the device, free on it, the allocator's own limit; CMI_UNKNOWN */
} cmi_picture_device;

typedef struct cmi_picture_stream {
    uint64_t value; /* as the file names it: a handle or a number; 0 is the default stream */
} cmi_picture_stream;

/* Pool 0 is the default pool; the others are private (graphs, MemPool) or further pools of the program. */
typedef struct cmi_picture_pool {
    uint64_t id[2]; /* PyTorch's pair; this library's handle in the first */
    cmi_string_id name;
    bool is_private;
} cmi_picture_pool;

typedef enum cmi_block_state {
    CMI_BLOCK_IDLE,    /* free, at once or after an ordering on its stream */
    CMI_BLOCK_PENDING, /* freed by the program; work on a stream is not known to be done */
    CMI_BLOCK_LIVE,
} cmi_block_state;

/* A run of one state inside a segment. Blocks tile their segment in order of address, with no gap. */
typedef struct cmi_picture_block {
    uint64_t address, bytes;
    uint64_t requested_bytes; /* as asked for; 0 where that is not known or the block is idle */
    int64_t allocated_ns;     /* when it was handed out; 0: not known */
    cmi_stack_id stack;       /* of its allocation; for an idle block of its last one, if known */
    cmi_string_id tag;
    uint32_t segment;
    uint16_t stream;
    uint8_t state; /* cmi_block_state */
    uint8_t fixed; /* must not move: used by a graph, exported, pinned for transfer */
} cmi_picture_block;

/* A contiguous range backed by device memory. */
typedef struct cmi_picture_segment {
    uint64_t address, bytes;
    uint32_t first_block, block_count;
    cmi_stack_id stack;
    uint32_t pool;
    uint32_t device; /* index of devices, here and in events */
    uint16_t stream;
    bool expandable; /* pages can be mapped and unmapped in it; else it goes back only whole */
} cmi_picture_segment;

typedef enum cmi_event_kind {
    CMI_EVENT_ALLOC,
    CMI_EVENT_FREE_REQUESTED, /* the program's free */
    CMI_EVENT_FREE_COMPLETED, /* the block is idle again */
    CMI_EVENT_USE,            /* the block is also used on another stream */
    CMI_EVENT_SEGMENT_ALLOC,
    CMI_EVENT_SEGMENT_FREE,
    CMI_EVENT_SEGMENT_MAP,
    CMI_EVENT_SEGMENT_UNMAP,
    CMI_EVENT_REFUSED,  /* bytes: the request; address: what the device had free (CMI_UNKNOWN) */
    CMI_EVENT_SNAPSHOT, /* the state above was taken here */
    CMI_EVENT_STEP,     /* bytes: its number */
    CMI_EVENT_PHASE,    /* tag: its name */
    CMI_EVENT_RANGE_BEGIN,
    CMI_EVENT_RANGE_END,   /* tag: what the program says it was doing */
    CMI_EVENT_MOVE,        /* bytes of idle pages were mapped at address as well */
    CMI_EVENT_WAIT_DEVICE, /* stream was made to wait for another one's freed memory */
    CMI_EVENT_WAIT_HOST,
    CMI_EVENT_KINDS,
} cmi_event_kind;

typedef struct cmi_picture_event {
    uint64_t address, bytes;
    int64_t time_ns; /* 0: not known */
    cmi_stack_id stack;
    cmi_string_id tag;
    uint32_t device;
    uint16_t stream;
    uint16_t pool;
    uint8_t kind; /* cmi_event_kind */
} cmi_picture_event;

/* Anything that the file says of itself and the model has no place for: options, settings, counters, versions. */
typedef struct cmi_picture_note {
    cmi_string_id group; /* "setting", "counter", "pinned", "about" */
    cmi_string_id key, value;
} cmi_picture_note;

/* One rung of the ladder that this library climbed before it refused, in order. */
typedef struct cmi_picture_rung {
    cmi_string_id name;
    uint64_t bytes; /* gained by it */
} cmi_picture_rung;

/*
 * A request that was refused, with what a verdict needs, as it was at that moment. A snapshot is often taken after the exception has
 * unwound the program, when most blocks are free again: then `idle_bytes` of the snapshot says nothing of the refusal, these figures do.
 * Where the refusal comes from the event history, they are worked out from it (cmi_picture_finish); where the file states them, they are
 * the file's.
 */
typedef struct cmi_picture_refusal {
    uint32_t event; /* index of events; CMI_NONE when the file tells of it apart */
    uint32_t device;
    uint64_t request_bytes;
    uint64_t live_bytes, pending_bytes, reserved_bytes; /* CMI_UNKNOWN here and below when it cannot be told */
    uint64_t idle_bytes;                                /* reserved less live less pending */
    uint64_t largest_idle_bytes;                        /* longest run of idle bytes inside one segment */
    uint64_t private_idle_bytes;                        /* of idle_bytes: in pools that did not serve the request */
    uint64_t device_free_bytes, limit_bytes;
    cmi_stack_id stack;
    cmi_string_id reason; /* in the file's words */
    uint32_t first_rung, rung_count;
} cmi_picture_refusal;

typedef struct cmi_picture {
    const char *format; /* "pytorch", "memory_viz-json", "rmm-csv", "kineto", "cudamempool", "cmtrace"...; static */
    bool has_state;     /* segments and blocks say what was held when the file was written */
    bool has_history;   /* events */
    char **strings;
    struct cmi_picture_text *text; /* what they are made of (build.c) */
    size_t string_count;
    cmi_picture_frame *frames;
    size_t frame_count;
    uint32_t *stack_frames; /* indices of frames */
    size_t stack_frame_count;
    cmi_picture_stack *stacks;
    size_t stack_count;
    cmi_picture_device *devices; /* in order of ordinal */
    size_t device_count;
    cmi_picture_stream *streams; /* the first is the default one */
    size_t stream_count;
    cmi_picture_pool *pools; /* the first is the default one */
    size_t pool_count;
    cmi_picture_segment *segments; /* in order of device, then address */
    size_t segment_count;
    cmi_picture_block *blocks; /* those of a segment together, segments in their order */
    size_t block_count;
    cmi_picture_event *events; /* per device in order of time */
    size_t event_count;
    cmi_picture_refusal *refusals; /* in order of time */
    size_t refusal_count;
    cmi_picture_rung *rungs;
    size_t rung_count;
    cmi_picture_note *notes;
    size_t note_count;
} cmi_picture;

/*
 * Read a file of any format that is known, plain or gzip; told by its content, not by its name. Returns 0, or -1 with one line
 * "PATH:LINE: fault" (no newline) in fault, for a pickle "PATH:1: byte N: fault"; then *picture is empty and nothing is left allocated.
 */
int cmi_picture_read(const char *path, cmi_picture *picture, char *fault, size_t fault_bytes);
/* The same from memory; name stands in fault lines. */
int cmi_picture_read_memory(const char *name, const void *data, size_t bytes, cmi_picture *picture, char *fault, size_t fault_bytes);
/* Give back what a picture holds; an empty (zeroed) one is fine. */
void cmi_picture_free(cmi_picture *picture);

const char *cmi_event_kind_name(cmi_event_kind kind);
const char *cmi_block_state_name(cmi_block_state state);

/* ---- figures (picture_totals.c) --------------------------------------------------------------------------------------------------- */

typedef struct cmi_picture_totals {
    uint64_t reserved_bytes, live_bytes, pending_bytes, idle_bytes, fixed_bytes; /* idle: reserved less live less pending */
    uint64_t requested_bytes;                                                    /* of live blocks; 0 when no block says it */
    uint64_t largest_idle_bytes;                                                 /* longest idle run inside one segment */
    uint64_t whole_idle_bytes;                                                   /* segments without a live or pending block */
    uint64_t private_bytes, private_live_bytes, private_idle_bytes;              /* in private pools; parts of the above */
    size_t segments, live_blocks, pending_blocks, idle_blocks;
} cmi_picture_totals;

/* The state of one device (an index), or of all with CMI_NONE. */
/* Whether what is idle in a pool serves no other: private pools of this library use their own blocks first, but lend them. */
bool cmi_picture_is_shut(const cmi_picture *picture, uint32_t pool);
void cmi_picture_total(const cmi_picture *picture, uint32_t device, cmi_picture_totals *totals);

/* ---- lives (picture_lives.c) -------------------------------------------------------------------------------------------------------- */

/* One block from its allocation to its end. Blocks are matched by address, in order of events, on their device. */
typedef struct cmi_picture_life {
    uint64_t address, bytes; /* as asked for where the file says it, else as held */
    uint32_t alloc_event;    /* CMI_NONE: was there before the first event */
    uint32_t free_event;     /* FREE_REQUESTED, or FREE_COMPLETED where there is no other; CMI_NONE: not freed in the history */
    uint32_t done_event;     /* FREE_COMPLETED; CMI_NONE: not in the history */
    uint32_t block;          /* in the final state; CMI_NONE */
    uint32_t replaces;       /* the life at this address that must have ended unseen before this one; CMI_NONE */
    cmi_stack_id stack;
    cmi_string_id tag;
    uint32_t device;
    uint16_t stream;
} cmi_picture_life;

/* Of one device, as the program ran: what was held over the whole history. Reserved figures are CMI_UNKNOWN where no segment is known. */
typedef struct cmi_picture_run {
    uint64_t first_live_bytes, first_reserved_bytes; /* before the first event */
    uint64_t peak_live_bytes, peak_reserved_bytes;   /* live: each block rounded up to 512 bytes */
    uint32_t peak_live_event, peak_reserved_event;   /* CMI_NONE: before the first event, or no event */
    uint64_t stranded_bytes;                         /* peak_reserved_bytes less peak_live_bytes; CMI_UNKNOWN */
} cmi_picture_run;

typedef struct cmi_picture_lives {
    cmi_picture_life *lives; /* those of before the first event first, then in order of alloc_event */
    size_t count;
    uint32_t *of_event; /* for each event of the picture: its life, CMI_NONE for other kinds and other devices */
    cmi_picture_run run;
} cmi_picture_lives;

/* Match one device. Returns 0, or -1 without host memory. */
int cmi_picture_match(const cmi_picture *picture, uint32_t device, cmi_picture_lives *lives);
void cmi_picture_lives_free(cmi_picture_lives *lives);

#endif
