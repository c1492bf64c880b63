/*
 * Owns the stack of values and the lists that are put together on it. What a dictionary means is for records.c. No locks; everything
 * belongs to the call. Called by pickle.c and json.c.
 */
#include "trace/values.h"
#include <stdlib.h>
#include <string.h>

enum {
    MOST_LISTED = (1 << 27) - 1,
    MOST_PAIRS = 256,   /* no known dictionary without records in it has more */
    MOST_FRAMES = 1000, /* the rest of a deeper stack is left out */
    MOST_SCATTERED = 256,
};

static int no_memory(cmi_values *v) { return cmi_reader_fault(v->builder->reader, "no host memory for what it holds"); }

bool cmi_value_natural(const cmi_value *value, uint64_t *number)
{
    if (value->kind == CMI_VALUE_NATURAL || ((value->kind == CMI_VALUE_INTEGER || value->kind == CMI_VALUE_BOOL) && value->integer >= 0)) {
        *number = value->natural;
        return true;
    }
    if (value->kind == CMI_VALUE_REAL && value->real >= 0 && value->real < 9007199254740992.0) { /* JSON written by JavaScript */
        *number = (uint64_t)value->real;
        return true;
    }
    return false;
}

int cmi_values_push(cmi_values *v, cmi_value value)
{
    if (!cmi_grow(&v->stack, v->stack_count, sizeof *v->stack))
        return no_memory(v);
    v->stack[v->stack_count++] = value;
    v->whole = v->whole || (value.kind == CMI_VALUE_STRING && value.id == CMI_WORD_cudamempool_snapshot);
    return 0;
}

int cmi_values_push_object(cmi_values *v, cmi_object_kind kind)
{
    if (v->object_count >= CMI_NONE)
        return cmi_reader_fault(v->builder->reader, "more dictionaries and lists than this reader counts");
    if (!cmi_grow(&v->objects, v->object_count, sizeof *v->objects))
        return no_memory(v);
    v->objects[v->object_count] = (cmi_object){.kind = kind & 15};
    return cmi_values_push(v, (cmi_value){.id = (uint32_t)v->object_count++, .kind = CMI_VALUE_OBJECT});
}

int cmi_values_mark(cmi_values *v)
{
    if (v->mark_count >= CMI_VALUES_DEEPEST)
        return cmi_reader_fault(v->builder->reader, "nested deeper than %d", CMI_VALUES_DEEPEST);
    if (!cmi_grow(&v->marks, v->mark_count, sizeof *v->marks))
        return no_memory(v);
    v->marks[v->mark_count++] = v->stack_count;
    return 0;
}

int cmi_values_above_mark(cmi_values *v, size_t *from)
{
    if (v->mark_count == 0)
        return cmi_reader_fault(v->builder->reader, "a group ends that did not begin");
    *from = v->marks[--v->mark_count];
    return 0;
}

/* The object below position `from`, with nothing but whole values in between. */
static cmi_object *object_below(cmi_values *v, size_t from)
{
    if (from == 0 || from > v->stack_count || (v->mark_count > 0 && v->marks[v->mark_count - 1] >= from) ||
        v->stack[from - 1].kind != CMI_VALUE_OBJECT)
        return NULL;
    return &v->objects[v->stack[from - 1].id];
}

/* Items of an object that may already have some: they end up together. false without host memory. */
static bool keep_items(cmi_values *v, cmi_object *object, const cmi_value *values, size_t count, size_t each)
{
    size_t had = object->count * each;
    if (had > 0 && object->first + had != v->item_count) {
        size_t first = v->item_count;
        for (size_t i = 0; i < had; i++) {
            if (!cmi_grow(&v->items, v->item_count, sizeof *v->items))
                return false;
            v->items[v->item_count++] = v->items[object->first + i];
        }
        object->first = (uint32_t)first;
    } else if (had == 0)
        object->first = (uint32_t)v->item_count;
    for (size_t i = 0; i < count; i++) {
        if (!cmi_grow(&v->items, v->item_count, sizeof *v->items))
            return false;
        v->items[v->item_count++] = values[i];
    }
    object->count = (uint32_t)((had + count) / each) & MOST_LISTED;
    return true;
}

/* ---- dictionaries ------------------------------------------------------------------------------------------------------------------- */

/* A dictionary without a record so far: perhaps all pairs together make one. */
static int add_pairs(cmi_values *v, cmi_object *object, const cmi_value *pairs, size_t count)
{
    if ((!v->whole && object->count + count > MOST_PAIRS) || v->item_count + 2 * count >= CMI_NONE) {
        *object = (cmi_object){.kind = CMI_OBJECT_OTHER};
        return 0;
    }
    if (!keep_items(v, object, pairs, 2 * count, 2))
        return no_memory(v);
    object->kind = CMI_OBJECT_PAIRS;
    return v->whole ? 0 : cmi_record_make(v, object, v->items + object->first, object->count);
}

int cmi_values_set_items(cmi_values *v, size_t from)
{
    cmi_object *object = object_below(v, from);
    size_t count = (v->stack_count - from) / 2;
    int result = 0;
    if (object == NULL || (v->stack_count - from) % 2 != 0)
        return cmi_reader_fault(v->builder->reader, "items are set in what is no dictionary");
    if (count == 0)
        return 0;
    const cmi_value *pairs = v->stack + from;
    switch ((cmi_object_kind)object->kind) {
    case CMI_OBJECT_DICT:
        result = v->whole ? 0 : cmi_record_make(v, object, pairs, count);
        if (result == 0 && object->kind == CMI_OBJECT_DICT)
            result = add_pairs(v, object, pairs, count);
        break;
    case CMI_OBJECT_PAIRS:
        result = add_pairs(v, object, pairs, count);
        break;
    case CMI_OBJECT_OTHER:
        break;
    default:
        if (object->listed || object->kind == CMI_OBJECT_LIST || object->kind == CMI_OBJECT_ITEMS || object->kind == CMI_OBJECT_TWO)
            return cmi_reader_fault(v->builder->reader, "items are set in what is no dictionary");
        result = cmi_record_add(v, object, pairs, count);
    }
    v->stack_count = from;
    return result;
}

/* ---- lists -------------------------------------------------------------------------------------------------------------------------- */

static const cmi_object *as_object(const cmi_values *v, const cmi_value *value)
{
    return value->kind == CMI_VALUE_OBJECT ? &v->objects[value->id] : NULL;
}

static int make_stack(cmi_values *v, cmi_object *object, const cmi_value *values, size_t count)
{
    uint32_t frames[MOST_FRAMES];
    size_t used = 0;
    cmi_stack_id id;
    for (size_t i = 0; i < count && used < MOST_FRAMES; i++) {
        const cmi_object *item = as_object(v, &values[i]);
        if (item != NULL && item->kind == CMI_OBJECT_FRAME && !item->listed)
            frames[used++] = item->first;
    }
    if (cmi_build_stack(v->builder, frames, used, &id) != 0)
        return -1;
    *object = (cmi_object){.first = id, .kind = CMI_OBJECT_STACK};
    return 0;
}

/* Records of one kind that follow each other, as in every file that a program wrote; others mean that parts are shared or mixed. */
static int list_records(cmi_values *v, cmi_object *object, const cmi_value *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const cmi_object *item = as_object(v, &values[i]);
        if (object->kind == CMI_OBJECT_LIST && item != NULL)
            *object = (cmi_object){.first = item->first, .listed = 1, .kind = item->kind};
        if (item == NULL || item->listed || item->kind != object->kind || item->first != object->first + object->count)
            return cmi_reader_fault(v->builder->reader, "a list that mixes records, or names one twice");
        if (object->count == MOST_LISTED)
            return cmi_reader_fault(v->builder->reader, "more than %d records in a list", MOST_LISTED);
        object->count++;
    }
    return 0;
}

static int list_others(cmi_values *v, cmi_object *object, const cmi_value *values, size_t count)
{
    bool containers = v->whole;
    for (size_t i = 0; i < count; i++)
        containers = containers || (values[i].kind == CMI_VALUE_OBJECT && v->objects[values[i].id].kind != CMI_OBJECT_OTHER);
    bool scattered = object->count > MOST_SCATTERED && object->first + object->count != v->item_count;
    if (!containers || scattered || object->count + count > MOST_LISTED || v->item_count + count >= CMI_NONE) {
        *object = (cmi_object){.kind = CMI_OBJECT_OTHER};
        return 0;
    }
    object->kind = CMI_OBJECT_ITEMS;
    return keep_items(v, object, values, count, 1) ? 0 : no_memory(v);
}

/* Two small numbers are an identity, and may be a list in one format and a tuple in another. */
static bool make_two(cmi_object *object, const cmi_value *values, size_t count)
{
    uint64_t first, second;
    if (count != 2 || values[0].kind != CMI_VALUE_INTEGER || values[1].kind != CMI_VALUE_INTEGER || !cmi_value_natural(values, &first) ||
        !cmi_value_natural(values + 1, &second) || first > UINT32_MAX || second > MOST_LISTED)
        return false;
    *object = (cmi_object){.first = (uint32_t)first, .count = (uint32_t)second & MOST_LISTED, .kind = CMI_OBJECT_TWO};
    return true;
}

static int append_values(cmi_values *v, cmi_object *object, const cmi_value *values, size_t count)
{
    const cmi_object *first = as_object(v, &values[0]);
    bool record = first != NULL && !first->listed && first->kind >= CMI_OBJECT_PAST;
    if (v->whole && (object->kind == CMI_OBJECT_LIST || object->kind == CMI_OBJECT_ITEMS))
        return list_others(v, object, values, count);
    switch ((cmi_object_kind)object->kind) {
    case CMI_OBJECT_LIST:
        if (make_two(object, values, count))
            return 0;
        if (first != NULL && first->kind == CMI_OBJECT_FRAME)
            return make_stack(v, object, values, count);
        return record ? list_records(v, object, values, count) : list_others(v, object, values, count);
    case CMI_OBJECT_ITEMS:
        return list_others(v, object, values, count);
    case CMI_OBJECT_OTHER:
    case CMI_OBJECT_STACK: /* the first frames are enough */
    case CMI_OBJECT_TWO:
        return 0;
    default:
        if (!object->listed)
            return cmi_reader_fault(v->builder->reader, "items are appended to what is no list");
        return list_records(v, object, values, count);
    }
}

int cmi_values_append(cmi_values *v, size_t from)
{
    cmi_object *object = object_below(v, from);
    if (object == NULL)
        return cmi_reader_fault(v->builder->reader, "items are appended to what is no list");
    int result = from < v->stack_count ? append_values(v, object, v->stack + from, v->stack_count - from) : 0;
    v->stack_count = from;
    return result;
}

/* ---- end ---------------------------------------------------------------------------------------------------------------------------- */

int cmi_values_finish(cmi_values *v)
{
    const cmi_object *root = v->stack_count == 1 && v->mark_count == 0 ? as_object(v, v->stack) : NULL;
    if (root == NULL)
        return cmi_reader_fault(v->builder->reader, "it does not hold one dictionary or list");
    return cmi_record_root(v, root) != 0 ? -1 : cmi_build_finish(v->builder);
}

void cmi_values_free(cmi_values *v)
{
    free(v->stack);
    free(v->marks);
    free(v->objects);
    free(v->items);
    free(v->pasts);
    free(v->ranges);
    free(v->memory);
    memset(v, 0, sizeof *v);
}
