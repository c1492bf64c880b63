/* What library.c needs of library_tables.c: a snapshot's tables, and the names behind their numbers. */
#ifndef CMI_TRACE_LIBRARY_TABLES_H
#define CMI_TRACE_LIBRARY_TABLES_H

#include "trace/values.h"

enum { CMI_LIBRARY_COLUMNS = 12 };

typedef struct library_table {
    const cmi_object *rows; /* NULL: none */
    uint32_t column[CMI_LIBRARY_COLUMNS];
} library_table;

typedef struct library_reader {
    cmi_values *v;
    cmi_picture *p;
    library_table tags, stacks;
    cmi_stack_id *stack_of; /* by row of stacks */
    uint32_t ordinal;
    uint16_t *stream_of; /* by number of the device's stream records */
    size_t stream_room;
    library_table fixed, slabs, notes; /* of the pool */
    uint32_t slab_row;
} library_reader;

/* The string in a value, "" when it is none; the number in one, or another. */
const char *cmi_library_text(const library_reader *r, const cmi_value *value);
uint64_t cmi_library_natural(const cmi_value *value, uint64_t otherwise);
/* What a dictionary, which may be NULL, has under a key; NULL for nothing. */
const cmi_value *cmi_library_member(const library_reader *r, const cmi_object *dict, const char *key);

/* The table under a key, with the places of the columns that are wanted; names end with NULL. */
library_table cmi_library_table(const library_reader *r, const cmi_object *dict, const char *key, const char *const *names);
uint32_t cmi_library_rows(const library_table *t);
/* A cell of a row, NULL where the table has no such column; the number in it, or 0. */
const cmi_value *cmi_library_cell(const library_reader *r, const library_table *t, uint32_t row, uint32_t column);
uint64_t cmi_library_number(const library_reader *r, const library_table *t, uint32_t row, uint32_t column);
/* The row with a number in its first column: rows are in order of it. CMI_NONE when there is none. */
uint32_t cmi_library_find(const library_reader *r, const library_table *t, uint64_t number);

/* A tag's name; a number of the program's own stays a number. 0, or -1 with the fault line set. */
int cmi_library_tag(library_reader *r, uint64_t tag, cmi_string_id *id);
cmi_stack_id cmi_library_stack(const library_reader *r, uint64_t number);
uint16_t cmi_library_stream(const library_reader *r, uint64_t number);
/* Stacks of the snapshot, streams of a device, by their numbers. 0, or -1 with the fault line set. */
int cmi_library_read_stacks(library_reader *r);
int cmi_library_read_streams(library_reader *r, const cmi_object *device);

#endif
