/*
 * What messages look like, and the figures of one of them. Private to the reader of out-of-memory messages: oom_shapes.c has the words,
 * oom_figures.c reads what stands beside them, oom_message.c finds the messages.
 */
#ifndef CMI_TRACE_OOM_SHAPES_H
#define CMI_TRACE_OOM_SHAPES_H

#include "trace/oom_message.h"
#include "trace/squeeze.h"

/* Raw figures, in the words of the messages. */
typedef enum raw_figure {
    REQUEST,
    TOTAL,
    LIVE,
    DRIVER_FREE,
    IDLE,
    RESERVED,
    LIMIT,
    PRIVATE_LIVE,
    THIS_PROCESS,
    UNALLOCATED, /* held and not live, whole or in pieces */
    SIBLING_IDLE,
    PENDING,
    PRIVATE_IDLE,
    LARGEST,
    OUTSIDE,
    SHORT,
    RAW_FIGURES,
} raw_figure;

typedef enum side { AT_END, BEFORE } side; /* the figure follows the words, or stands before them */

typedef struct figure_words {
    raw_figure figure;
    side side;
    const char *words; /* squeezed */
} figure_words;

typedef struct oom_beginning {
    cmi_oom_format format;
    const char *words; /* squeezed */
} oom_beginning;

typedef struct oom_shape {
    const char *name;
    const figure_words *words;
    size_t word_count;
    size_t reach; /* how far behind its beginning a message may go on, in squeezed characters */
    size_t back;  /* how far before its beginning figures of it may stand */
} oom_shape;

/* The words that messages begin with, up to one that has none. */
extern const oom_beginning cmi_oom_beginnings[];
extern const oom_shape cmi_oom_shapes[CMI_OOM_FORMATS];

/* Fill in what a message says whose squeezed text lies in [begin, end); its format is known. */
void cmi_oom_read_figures(const cmi_squeezed *log, size_t begin, size_t end, cmi_oom_message *message);

#endif
