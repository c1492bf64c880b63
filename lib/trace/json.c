/*
 * JSON as a stream of values: strict, in one pass, in memory that does not grow with what is of no interest. A tree of a profiler's trace
 * of a gigabyte would take several, which is why no library that makes trees is used here. No locks; everything belongs to the call.
 * Called by read.c.
 */
#include "trace/values.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_STRING = 1 << 15, LONGEST_NUMBER = 64 };

/* What a group began with: values of the file that no record kept are forgotten at its end. */
typedef struct group {
    size_t items, objects;
    bool dict;
} group;

typedef struct parser {
    cmi_reader *reader;
    cmi_values values;
    group groups[CMI_VALUES_DEEPEST];
    size_t depth;
    char text[LONGEST_STRING];
} parser;

static int fault(parser *p, const char *what) { return cmi_reader_fault(p->reader, "%s", what); }

/* The next byte without taking it; -1 at the end, -2 on a fault. */
static int peek(parser *p)
{
    cmi_reader *r = p->reader;
    if (r->next == r->end) {
        int got = cmi_reader_need(r, 1);
        if (got <= 0)
            return got - 1;
    }
    return (unsigned char)r->text[r->next];
}

static int peek_token(parser *p)
{
    int c = peek(p);
    while (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        p->reader->line += c == '\n';
        p->reader->next++;
        c = peek(p);
    }
    return c;
}

/* ---- text --------------------------------------------------------------------------------------------------------------------------- */

static int hex_digits(parser *p, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, p->reader->next++) {
        int c = peek(p), lower = c | 0x20;
        if (c >= '0' && c <= '9')
            *code = *code << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return c == -2 ? -1 : fault(p, "a \\u that no four hexadecimal digits follow");
    }
    return 0;
}

static size_t utf8(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    out[0] = (char)((0xf00u >> more & 0xf0u) | code >> 6 * more);
    for (size_t i = 1; i <= more; i++)
        out[i] = (char)(0x80u | (code >> 6 * (more - i) & 0x3fu));
    return more + 1;
}

/* After a backslash. A pair of surrogates is one letter; a lone one is U+FFFD. */
static int escape(parser *p, char out[4], size_t *length)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t code, low;
    int c = peek(p);
    if (c < 0)
        return c == -2 ? -1 : fault(p, "a string without an end");
    p->reader->next++;
    const char *simple = strchr(from, c);
    if (c != 0 && simple != NULL) {
        out[0] = to[simple - from];
        *length = 1;
        return 0;
    }
    if (c != 'u')
        return fault(p, "a backslash before what it does not go before");
    if (hex_digits(p, &code) != 0)
        return -1;
    if (code >= 0xd800 && code < 0xdc00 && cmi_reader_need(p->reader, 2) == 1 && memcmp(p->reader->text + p->reader->next, "\\u", 2) == 0) {
        p->reader->next += 2;
        if (hex_digits(p, &low) != 0)
            return -1;
        code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : 0xfffd;
    }
    *length = utf8(code >= 0xd800 && code < 0xe000 ? 0xfffd : code, out);
    return 0;
}

/* The string whose quote comes next, as a number of the picture's strings. What is longer than any name is cut. */
static int string(parser *p, cmi_string_id *id)
{
    size_t used = 0;
    p->reader->next++;
    for (int c = peek(p); c != '"'; c = peek(p)) {
        char letter[4] = {(char)c};
        size_t length = 1;
        if (c < 0)
            return c == -2 ? -1 : fault(p, "a string without an end");
        if (c < ' ')
            return fault(p, "a control character in a string");
        p->reader->next++;
        if (c == '\\' && escape(p, letter, &length) != 0)
            return -1;
        if (used + length <= sizeof p->text) {
            memcpy(p->text + used, letter, length);
            used += length;
        }
    }
    p->reader->next++;
    return cmi_build_string(p->values.builder, p->text, used, id);
}

/* ---- numbers and words ----------------------------------------------------------------------------------------------------------------
 */

static int number(parser *p)
{
    char digits[LONGEST_NUMBER + 1];
    size_t used = 0;
    bool whole = true;
    for (int c = peek(p); c >= 0 && strchr("+-.0123456789eE", c) != NULL && c != 0; c = peek(p)) {
        if (used == LONGEST_NUMBER)
            return fault(p, "a number longer than 64 digits");
        whole = whole && c != '.' && c != 'e' && c != 'E';
        digits[used++] = (char)c;
        p->reader->next++;
    }
    digits[used] = '\0';
    const char *first = digits + (digits[0] == '-');
    if (*first < '0' || *first > '9' || (first[0] == '0' && first[1] >= '0' && first[1] <= '9'))
        return fault(p, "a number that is none");
    char *end;
    cmi_value value = {.kind = CMI_VALUE_INTEGER};
    errno = 0;
    if (whole && digits[0] == '-')
        value.integer = strtoll(digits, &end, 10);
    else if (whole) {
        value.natural = strtoull(digits, &end, 10);
        value.kind = value.natural > INT64_MAX ? CMI_VALUE_NATURAL : CMI_VALUE_INTEGER;
    }
    if (!whole || errno == ERANGE) {
        value.real = strtod(digits, &end);
        value.kind = CMI_VALUE_REAL;
    }
    if (*end != '\0')
        return fault(p, "a number that is none");
    return cmi_values_push(&p->values, value);
}

static int word(parser *p)
{
    static const struct {
        const char *text;
        cmi_value value;
    } words[] = {
        {"true", {.integer = 1, .kind = CMI_VALUE_BOOL}},
        {"false", {.integer = 0, .kind = CMI_VALUE_BOOL}},
        {"null", {.kind = CMI_VALUE_NONE}},
        /* not JSON, but Python writes them */
        {"NaN", {.kind = CMI_VALUE_NONE}},
        {"Infinity", {.kind = CMI_VALUE_NONE}},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i].text);
        if (cmi_reader_need(p->reader, length) == 1 && memcmp(p->reader->text + p->reader->next, words[i].text, length) == 0) {
            p->reader->next += length;
            return cmi_values_push(&p->values, words[i].value);
        }
    }
    return fault(p, "a word that is none of JSON's");
}

/* ---- groups ------------------------------------------------------------------------------------------------------------------------- */

static int begin(parser *p, bool dict)
{
    cmi_values *v = &p->values;
    group *g = &p->groups[p->depth];
    p->reader->next++;
    *g = (group){.items = v->item_count, .dict = dict};
    if (cmi_values_push_object(v, dict ? CMI_OBJECT_DICT : CMI_OBJECT_LIST) != 0)
        return -1;
    g->objects = v->object_count;
    if (cmi_values_mark(v) != 0) /* a fault when it is too deep, so that groups is never left */
        return -1;
    p->depth++;
    return 0;
}

static int finish(parser *p)
{
    cmi_values *v = &p->values;
    const group *g = &p->groups[--p->depth];
    size_t from;
    p->reader->next++;
    if (cmi_values_above_mark(v, &from) != 0 || (g->dict ? cmi_values_set_items(v, from) : cmi_values_append(v, from)) != 0)
        return -1;
    if (v->objects[g->objects - 1].kind != CMI_OBJECT_PAIRS && v->objects[g->objects - 1].kind != CMI_OBJECT_ITEMS) {
        v->item_count = g->items;
        v->object_count = g->objects;
    }
    return 0;
}

static int value(parser *p, int c)
{
    cmi_value text = {.kind = CMI_VALUE_STRING};
    if (c == '{' || c == '[')
        return begin(p, c == '{');
    if (c == '"')
        return string(p, &text.id) != 0 ? -1 : cmi_values_push(&p->values, text);
    return c == '-' || (c >= '0' && c <= '9') ? number(p) : word(p);
}

/* A key and its colon. */
static int key(parser *p)
{
    cmi_value text = {.kind = CMI_VALUE_STRING};
    if (peek_token(p) != '"')
        return fault(p, "a key that is no string");
    if (string(p, &text.id) != 0 || cmi_values_push(&p->values, text) != 0)
        return -1;
    if (peek_token(p) != ':')
        return fault(p, "a key without a colon");
    p->reader->next++;
    return 0;
}

/* One value, or the end of a group, with the comma that goes before. */
static int item(parser *p)
{
    const group *g = p->depth > 0 ? &p->groups[p->depth - 1] : NULL;
    int c = peek_token(p);
    bool first = g == NULL || p->values.stack_count == p->values.marks[p->values.mark_count - 1];
    if (c == -2)
        return -1;
    if (g != NULL && c == (g->dict ? '}' : ']'))
        return finish(p);
    if (!first) {
        if (c != ',')
            return fault(p, c == -1 ? "the file is cut off" : "a comma is missing");
        p->reader->next++;
    }
    if (g != NULL && g->dict && key(p) != 0)
        return -1;
    c = peek_token(p);
    return c == -1 ? fault(p, "the file is cut off") : c == -2 ? -1 : value(p, c);
}

int cmi_json_parse(cmi_reader *reader, cmi_builder *builder)
{
    parser *p = calloc(1, sizeof *p);
    int result = 0;
    if (p == NULL)
        return cmi_reader_fault(reader, "no host memory for what it holds");
    p->reader = reader;
    p->values.builder = builder;
    reader->line = 1;
    do
        result = item(p);
    while (result == 0 && p->depth > 0);
    if (result == 0 && peek_token(p) != -1)
        result = fault(p, "text after the end");
    if (result == 0)
        result = cmi_values_finish(&p->values);
    cmi_values_free(&p->values);
    free(p);
    return result;
}
