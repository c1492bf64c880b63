/*
 * Out-of-memory messages as people paste them: found in a log of any kind, whatever stands around them, and turned into figures.
 * For tools and tests; plain malloc, no locks. Nothing in the text is trusted: sizes, units and numbers may be missing, cut or absurd.
 */
#ifndef CMI_TRACE_OOM_MESSAGE_H
#define CMI_TRACE_OOM_MESSAGE_H

#include "inspect/verdict.h"
#include <stdbool.h>
#include <stddef.h>

typedef enum cmi_oom_format {
    CMI_OOM_PYTORCH,        /* "Tried to allocate ...", all generations */
    CMI_OOM_STREAM_ORDERED, /* PyTorch over cudaMallocAsync: "would exceed allowed memory" and five lines */
    CMI_OOM_RMM,
    CMI_OOM_TENSORFLOW, /* best-fit-with-coalescing arenas: TensorFlow, JAX */
    CMI_OOM_CUPY,
    CMI_OOM_PADDLE,
    CMI_OOM_BARE,        /* says that memory ran out and hardly more */
    CMI_OOM_CUDAMEMPOOL, /* the library's report, and the exception it raises in PyTorch */
    CMI_OOM_FORMATS,
} cmi_oom_format;

/* What the program was at, as far as the lines before the message tell. */
typedef enum cmi_oom_phase { CMI_OOM_SOMEWHERE, CMI_OOM_LOADING, CMI_OOM_BACKWARD, CMI_OOM_OPTIMIZER, CMI_OOM_GENERATING } cmi_oom_phase;

typedef struct cmi_oom_message {
    cmi_oom_format format;
    cmi_oom_phase phase;
    size_t line;           /* of the text, from 1 */
    int device;            /* -1: not said */
    cmi_shortage figures;  /* what the message says, or follows from it; else CMI_FIGURE_UNKNOWN */
    uint64_t reserved;     /* held by the allocator */
    uint64_t this_process; /* on the device, allocator or not; CMI_FIGURE_UNKNOWN, also where the message gives nonsense */
    uint64_t short_by;     /* what the message says was missing */
    cmi_verdict verdict;   /* what it says was the matter, if says_verdict */
    bool says_verdict;
    uint64_t listed_processes; /* sum of those named by number, this one perhaps among them; 0: none */
    bool from_snapshot;        /* its figures are a snapshot's, not a text's: exact, and without a line */
    bool expandable_segments;  /* the text says that they are on already */
} cmi_oom_message;

/*
 * Find the messages in a text of any length; text need not end in 0. A message that repeats another's request and has no other figure is
 * its echo and left out. *messages is one malloc'ed array, NULL for none. Returns their number, or SIZE_MAX without host memory.
 */
size_t cmi_oom_messages_find(const char *text, size_t bytes, cmi_oom_message **messages);

const char *cmi_oom_format_name(cmi_oom_format format);

#endif
