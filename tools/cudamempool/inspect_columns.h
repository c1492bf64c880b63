/* Columns of numbers on their way into a page: one zlib stream in base64, and JSON that says where each column lies in it. */
#ifndef TOOL_INSPECT_COLUMNS_H
#define TOOL_INSPECT_COLUMNS_H

#include "json.h"
#include <zlib.h>

typedef struct inspect_columns {
    FILE *file;
    z_stream stream;
    uint64_t written;      /* bytes of columns so far; each begins at a multiple of 8 */
    unsigned char rest[3]; /* packed bytes that wait for a group of three */
    size_t rest_bytes;
    bool failed;
} inspect_columns;

bool inspect_columns_begin(inspect_columns *columns, FILE *file);
/*
 * A column of count numbers, which value gives one after the other: as "u8", "u16", "u32" or "f64", little-endian. It is entered in the
 * open JSON object list as name: [type, offset, count].
 */
typedef double inspect_value(const void *user, size_t index);
void inspect_column(inspect_columns *columns, json *list, const char *name, const char *type, size_t count, inspect_value *value,
                    const void *user);
/* false when something could not be packed or written. */
bool inspect_columns_end(inspect_columns *columns);

#endif
