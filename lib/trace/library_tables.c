/*
 * The tables of this library's own snapshot, whose columns are found by their names, and what stands in them under numbers: tags, call
 * stacks, streams. No locks; everything belongs to the call. Called by library.c.
 */
#include "trace/library_tables.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = 65536 };

/* ---- the tree -------------------------------------------------------------------------------- */

const char *cmi_library_text(const library_reader *r, const cmi_value *value)
{
    return value != NULL && value->kind == CMI_VALUE_STRING ? r->p->strings[value->id] : "";
}

uint64_t cmi_library_natural(const cmi_value *value, uint64_t otherwise)
{
    uint64_t number;
    return value != NULL && cmi_value_natural(value, &number) ? number : otherwise;
}

const cmi_value *cmi_library_member(const library_reader *r, const cmi_object *dict, const char *key)
{
    for (uint32_t i = 0; dict != NULL && i < 2 * dict->count; i += 2)
        if (strcmp(cmi_library_text(r, &r->v->items[dict->first + i]), key) == 0)
            return &r->v->items[dict->first + i + 1];
    return NULL;
}

library_table cmi_library_table(const library_reader *r, const cmi_object *dict, const char *key, const char *const *names)
{
    const cmi_object *object = cmi_value_object(r->v, cmi_library_member(r, dict, key), CMI_OBJECT_PAIRS);
    const cmi_object *columns = cmi_value_object(r->v, cmi_library_member(r, object, "columns"), CMI_OBJECT_ITEMS);
    library_table t = {.rows = cmi_value_object(r->v, cmi_library_member(r, object, "rows"), CMI_OBJECT_ITEMS)};
    for (size_t i = 0; names[i] != NULL && i < CMI_LIBRARY_COLUMNS; i++) {
        t.column[i] = CMI_NONE;
        for (uint32_t j = 0; columns != NULL && j < columns->count; j++)
            if (strcmp(cmi_library_text(r, &r->v->items[columns->first + j]), names[i]) == 0)
                t.column[i] = j;
    }
    return t;
}

uint32_t cmi_library_rows(const library_table *t) { return t->rows != NULL ? t->rows->count : 0; }

const cmi_value *cmi_library_cell(const library_reader *r, const library_table *t, uint32_t row, uint32_t column)
{
    const cmi_object *cells = cmi_value_object(r->v, &r->v->items[t->rows->first + row], CMI_OBJECT_ITEMS);
    return cells != NULL && t->column[column] < cells->count ? &r->v->items[cells->first + t->column[column]] : NULL;
}

uint64_t cmi_library_number(const library_reader *r, const library_table *t, uint32_t row, uint32_t column)
{
    return cmi_library_natural(cmi_library_cell(r, t, row, column), 0);
}

uint32_t cmi_library_find(const library_reader *r, const library_table *t, uint64_t number)
{
    uint32_t low = 0, high = cmi_library_rows(t);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (cmi_library_number(r, t, middle, 0) < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < cmi_library_rows(t) && cmi_library_number(r, t, low, 0) == number ? low : CMI_NONE;
}

/* ---- names ----------------------------------------------------------------------------------- */

int cmi_library_tag(library_reader *r, uint64_t tag, cmi_string_id *id)
{
    char digits[24];
    *id = 0;
    if (tag == 0)
        return 0;
    for (uint32_t row = 0; row < cmi_library_rows(&r->tags); row++)
        if (cmi_library_number(r, &r->tags, row, 0) == tag) {
            const char *name = cmi_library_text(r, cmi_library_cell(r, &r->tags, row, 1));
            return cmi_build_string(r->v->builder, name, strlen(name), id);
        }
    return cmi_build_string(r->v->builder, digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, tag), id);
}

cmi_stack_id cmi_library_stack(const library_reader *r, uint64_t number)
{
    uint32_t row = number != 0 ? cmi_library_find(r, &r->stacks, number) : CMI_NONE;
    return row != CMI_NONE ? r->stack_of[row] : 0;
}

/* "function+0x1 (module+0x2)", or the module alone. */
static int frame_of(library_reader *r, const char *text, uint32_t *number)
{
    cmi_picture_frame frame = {0};
    const char *open = strstr(text, " ("), *close = open != NULL ? strrchr(open, ')') : NULL;
    int result;
    if (close == NULL)
        result = cmi_build_string(r->v->builder, text, strlen(text), &frame.function);
    else
        result = cmi_build_string(r->v->builder, text, (size_t)(open - text), &frame.function) != 0
                     ? -1
                     : cmi_build_string(r->v->builder, open + 2, (size_t)(close - open - 2), &frame.file);
    return result != 0 ? -1 : cmi_build_frame(r->v->builder, &frame, number);
}

int cmi_library_read_stacks(library_reader *r)
{
    r->stack_of = calloc((size_t)cmi_library_rows(&r->stacks) + 1, sizeof *r->stack_of);
    if (r->stack_of == NULL)
        return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
    for (uint32_t row = 0; row < cmi_library_rows(&r->stacks); row++) {
        const cmi_object *frames = cmi_value_object(r->v, cmi_library_cell(r, &r->stacks, row, 1), CMI_OBJECT_ITEMS);
        uint32_t numbers[256], count = 0;
        for (uint32_t i = 0; frames != NULL && i < frames->count && count < 256; i++)
            if (frame_of(r, cmi_library_text(r, &r->v->items[frames->first + i]), &numbers[count++]) != 0)
                return -1;
        if (cmi_build_stack(r->v->builder, numbers, count, &r->stack_of[row]) != 0)
            return -1;
    }
    return 0;
}

/* Stream records by their numbers; 0 is none. A legacy stream is the default one, others have the driver's id where it is known. */
int cmi_library_read_streams(library_reader *r, const cmi_object *device)
{
    static const char *const names[] = {"stream", "kind", "id", NULL};
    const library_table t = cmi_library_table(r, device, "streams", names);
    free(r->stream_of);
    r->stream_room = 1;
    for (uint32_t row = 0; row < cmi_library_rows(&t); row++)
        if (cmi_library_number(r, &t, row, 0) >= r->stream_room && cmi_library_number(r, &t, row, 0) < MOST_STREAMS)
            r->stream_room = (size_t)cmi_library_number(r, &t, row, 0) + 1;
    r->stream_of = calloc(r->stream_room, sizeof *r->stream_of);
    if (r->stream_of == NULL)
        return cmi_reader_fault(r->v->builder->reader, "no host memory for what it holds");
    if (cmi_build_stream(r->v->builder, 0, &r->stream_of[0]) != 0)
        return -1;
    for (uint32_t row = 0; row < cmi_library_rows(&t); row++) {
        uint64_t number = cmi_library_number(r, &t, row, 0), id = cmi_library_number(r, &t, row, 2);
        bool legacy = strcmp(cmi_library_text(r, cmi_library_cell(r, &t, row, 1)), "legacy") == 0;
        if (number < r->stream_room && cmi_build_stream(r->v->builder, legacy ? 0 : id != 0 ? id : number, &r->stream_of[number]) != 0)
            return -1;
    }
    return 0;
}

uint16_t cmi_library_stream(const library_reader *r, uint64_t number) { return r->stream_of[number < r->stream_room ? number : 0]; }
