/*
 * Values as pickles and JSON make them: a stack on which dictionaries and lists are put together from what lies above a mark. A
 * dictionary that is a known record (a segment, a block, an event, a frame...) goes into the picture as soon as its items are there, and
 * only its number stays, so that a file is read in one pass and far less memory than a tree of it would take.
 */
#ifndef CMI_TRACE_VALUES_H
#define CMI_TRACE_VALUES_H

#include "trace/build.h"

typedef enum cmi_value_kind {
    CMI_VALUE_NONE,
    CMI_VALUE_BOOL,
    CMI_VALUE_INTEGER, /* signed */
    CMI_VALUE_NATURAL, /* 2^63 and more */
    CMI_VALUE_REAL,
    CMI_VALUE_STRING, /* id: of the picture's strings */
    CMI_VALUE_OBJECT, /* id: a dictionary or a list */
} cmi_value_kind;

typedef struct cmi_value {
    union {
        int64_t integer;
        uint64_t natural;
        double real;
        uint32_t id;
    };
    cmi_value_kind kind;
} cmi_value;

typedef enum cmi_object_kind {
    CMI_OBJECT_DICT, /* empty so far, could be any */
    CMI_OBJECT_LIST,
    CMI_OBJECT_OTHER, /* nothing in it is wanted */
    CMI_OBJECT_PAIRS, /* count pairs of items */
    CMI_OBJECT_ITEMS, /* count items */
    CMI_OBJECT_TWO,   /* two small numbers: first and count */
    CMI_OBJECT_FRAME,
    CMI_OBJECT_STACK,
    CMI_OBJECT_PAST, /* what a block was before, of the oldest snapshots; number of pasts */
    CMI_OBJECT_BLOCK,
    CMI_OBJECT_SEGMENT,
    CMI_OBJECT_EVENT,
    CMI_OBJECT_RANGE,  /* annotation: number of ranges */
    CMI_OBJECT_MEMORY, /* profiler: number of memory */
    CMI_OBJECT_KINDS,
} cmi_object_kind;

/* A record (count 1, not listed), or a list of those that follow each other (listed). */
typedef struct cmi_object {
    uint32_t first;
    uint32_t count : 27;
    uint32_t listed : 1;
    uint32_t kind : 4;
} cmi_object;

typedef struct cmi_past {
    uint64_t bytes;
    cmi_stack_id stack;
} cmi_past;

typedef struct cmi_profiler_memory {
    uint64_t address, reserved_bytes; /* CMI_UNKNOWN */
    int64_t bytes;                    /* less than 0: freed */
    int64_t time_ns;
    uint32_t ordinal;
    bool on_device, timed;
} cmi_profiler_memory;

typedef struct cmi_values {
    cmi_builder *builder;
    bool whole; /* this library's own snapshot, whose tables are read from the whole tree */
    cmi_value *stack;
    size_t stack_count;
    size_t *marks; /* positions in the stack */
    size_t mark_count;
    cmi_object *objects;
    size_t object_count;
    cmi_value *items;
    size_t item_count;
    cmi_past *pasts;
    size_t past_count;
    cmi_picture_event *ranges;
    size_t range_count;
    cmi_profiler_memory *memory;
    size_t memory_count;
} cmi_values;

enum {
    CMI_VALUES_DEEPEST = 200, /* deeper nesting than any known file has is a fault */
    CMI_MOST_ORDINAL = 4095   /* of a device */
};

/* All return 0, or -1 with the fault line set. */
int cmi_values_push(cmi_values *values, cmi_value value);
int cmi_values_push_object(cmi_values *values, cmi_object_kind kind);
int cmi_values_mark(cmi_values *values);
/* What lies above the last mark, which is taken away: its position in the stack. */
int cmi_values_above_mark(cmi_values *values, size_t *from);
/* The values from `from` on are put into the dictionary or list below them, and are taken off the stack. */
int cmi_values_set_items(cmi_values *values, size_t from);
int cmi_values_append(cmi_values *values, size_t from);
/* The one value that is left says what the file holds: puts the picture together and finishes it. */
int cmi_values_finish(cmi_values *values);
void cmi_values_free(cmi_values *values);

/* The whole number in a value; false when it is none or does not fit. */
bool cmi_value_natural(const cmi_value *value, uint64_t *number);
/* The string in a value; 0, the empty one, when it is none. */
static inline cmi_string_id cmi_value_string(const cmi_value *value) { return value->kind == CMI_VALUE_STRING ? value->id : 0; }
/* The dictionary or list of a kind in a value, which may be NULL; NULL when it is another. */
static inline const cmi_object *cmi_value_object(const cmi_values *values, const cmi_value *value, cmi_object_kind kind)
{
    const cmi_object *object = value != NULL && value->kind == CMI_VALUE_OBJECT ? &values->objects[value->id] : NULL;
    return object != NULL && object->kind == kind ? object : NULL;
}

/* records.c: makes the record that a new dictionary's pairs say it is, or adds to one. */
int cmi_record_make(cmi_values *values, cmi_object *object, const cmi_value *pairs, size_t count);
int cmi_record_add(cmi_values *values, cmi_object *object, const cmi_value *pairs, size_t count);
/* root.c: from the root dictionary or list to the picture. */
int cmi_record_root(cmi_values *values, const cmi_object *root);
/* library.c: this library's own snapshot. */
int cmi_library_root(cmi_values *values, const cmi_object *root);
/* profiler.c: memory events in order of time. */
int cmi_profiler_finish(cmi_values *values);

#endif
