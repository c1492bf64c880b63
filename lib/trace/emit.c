/* Writes values as JSON or as a pickle of protocol 2. Owns the buffer. No locks; everything belongs to the call. Called by the writers. */
#include "trace/emit.h"
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 1000 };

static void flush(cmi_emitter *e)
{
    if (!e->failed && e->used > 0 && e->write(e->user, e->buffer, e->used) != 0)
        e->failed = true;
    e->used = 0;
}

void cmi_emit_raw(cmi_emitter *e, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        size_t part = sizeof e->buffer - e->used < bytes ? sizeof e->buffer - e->used : bytes;
        memcpy(e->buffer + e->used, at, part);
        e->used += part;
        at += part;
        bytes -= part;
        if (e->used == sizeof e->buffer)
            flush(e);
    }
}

static void put_opcode(cmi_emitter *e, unsigned char opcode) { cmi_emit_raw(e, &opcode, 1); }

static void put_little(cmi_emitter *e, unsigned char opcode, uint64_t number, size_t bytes)
{
    uint64_t little = htole64(number);
    put_opcode(e, opcode);
    cmi_emit_raw(e, &little, bytes);
}

/* ---- groups ------------------------------------------------------------------------------------------------------------------------- */

/* Before a value: its comma, or the mark of a new batch. A dictionary's items are counted at their keys. */
static void before_value(cmi_emitter *e)
{
    if (e->after_key || e->depth == 0) {
        e->after_key = false;
        return;
    }
    uint32_t *items = &e->group[e->depth - 1].items;
    if (e->json && *items > 0)
        cmi_emit_raw(e, ",", 1);
    if (!e->json && *items == BATCH) {
        put_opcode(e, e->group[e->depth - 1].list ? 'e' : 'u');
        *items = 0;
    }
    if (!e->json && *items == 0)
        put_opcode(e, '(');
    ++*items;
}

void cmi_emit_open(cmi_emitter *e, bool list)
{
    before_value(e);
    put_opcode(e, (unsigned char)(e->json ? (list ? '[' : '{') : list ? ']' : '}'));
    e->group[e->depth].list = list;
    e->group[e->depth++].items = 0;
}

void cmi_emit_close(cmi_emitter *e)
{
    e->depth--;
    bool list = e->group[e->depth].list;
    if (e->json)
        put_opcode(e, list ? ']' : '}');
    else if (e->group[e->depth].items > 0)
        put_opcode(e, list ? 'e' : 'u');
}

/* ---- text --------------------------------------------------------------------------------------------------------------------------- */

/* The length of one well-formed UTF-8 letter, 0 where there is none. */
static size_t letter(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    size_t length = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool wrong = length > 2 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
                                (s[0] == 0xf4 && s[1] >= 0x90));
    return wrong ? 0 : length;
}

static void json_text(cmi_emitter *e, const char *text)
{
    char code[8];
    cmi_emit_raw(e, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)text; *s != '\0';) {
        size_t length = letter(s);
        if (length == 0)
            cmi_emit_raw(e, "\\ufffd", 6);
        else if (*s == '"' || *s == '\\' || *s < ' ')
            cmi_emit_raw(e, code, (size_t)snprintf(code, sizeof code, "\\u%04x", *s));
        else
            cmi_emit_raw(e, s, length);
        s += length == 0 ? 1 : length;
    }
    cmi_emit_raw(e, "\"", 1);
}

/* The length first, so text that is not UTF-8 is counted with what stands for it. */
static void pickle_text(cmi_emitter *e, const char *text)
{
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (const unsigned char *s = (const unsigned char *)text; *s != '\0';) {
            size_t length = letter(s);
            if (pass == 0)
                bytes += length == 0 ? 3 : length;
            else
                cmi_emit_raw(e, length == 0 ? (const void *)"\xef\xbf\xbd" : s, length == 0 ? 3 : length);
            s += length == 0 ? 1 : length;
        }
        if (pass == 0)
            put_little(e, 'X', bytes, 4);
    }
}

void cmi_emit_text(cmi_emitter *e, const char *text)
{
    before_value(e);
    if (e->json)
        json_text(e, text);
    else
        pickle_text(e, text);
}

void cmi_emit_key(cmi_emitter *e, const char *key)
{
    cmi_emit_text(e, key);
    if (e->json)
        cmi_emit_raw(e, ":", 1);
    e->after_key = true;
}

void cmi_emit_string(cmi_emitter *e, const cmi_picture *picture, cmi_string_id id)
{
    if (e->memo != NULL && e->memo[id] != 0) {
        cmi_emit_again(e, e->memo[id] - 1);
        return;
    }
    cmi_emit_text(e, picture->strings[id]);
    if (e->memo != NULL)
        e->memo[id] = cmi_emit_remember(e) + 1;
}

uint32_t cmi_emit_remember(cmi_emitter *e)
{
    put_little(e, e->memo_count < 256 ? 'q' : 'r', e->memo_count, e->memo_count < 256 ? 1 : 4);
    return e->memo_count++;
}

void cmi_emit_again(cmi_emitter *e, uint32_t memo)
{
    before_value(e);
    put_little(e, memo < 256 ? 'h' : 'j', memo, memo < 256 ? 1 : 4);
}

/* ---- numbers ------------------------------------------------------------------------------------------------------------------------ */

static void pickle_number(cmi_emitter *e, uint64_t number, bool negative)
{
    if (!negative && number < 256)
        put_little(e, 'K', number, 1);
    else if (!negative && number < 65536)
        put_little(e, 'M', number, 2);
    else if (negative ? number >= (uint64_t)INT32_MIN : number <= INT32_MAX)
        put_little(e, 'J', number, 4);
    else {
        bool wide = !negative && number > INT64_MAX; /* a zero above keeps it positive */
        put_opcode(e, 0x8a);
        put_little(e, wide ? 9 : 8, number, 8); /* the length, then the digits */
        if (wide)
            put_opcode(e, 0);
    }
}

void cmi_emit_integer(cmi_emitter *e, int64_t number)
{
    char digits[24];
    before_value(e);
    if (e->json)
        cmi_emit_raw(e, digits, (size_t)snprintf(digits, sizeof digits, "%" PRId64, number));
    else
        pickle_number(e, (uint64_t)number, number < 0);
}

void cmi_emit_natural(cmi_emitter *e, uint64_t number)
{
    char digits[24];
    before_value(e);
    if (e->json)
        cmi_emit_raw(e, digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, number));
    else
        pickle_number(e, number, false);
}

void cmi_emit_bool(cmi_emitter *e, bool value)
{
    before_value(e);
    if (e->json)
        cmi_emit_raw(e, value ? "true" : "false", value ? 4 : 5);
    else
        put_opcode(e, value ? 0x88 : 0x89);
}

void cmi_emit_microseconds(cmi_emitter *e, int64_t ns)
{
    char digits[32];
    uint64_t size = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    before_value(e);
    cmi_emit_raw(e, digits,
                 (size_t)snprintf(digits, sizeof digits, "%s%" PRIu64 ".%03u", ns < 0 ? "-" : "", size / 1000, (unsigned)(size % 1000)));
}

void cmi_emit_two(cmi_emitter *e, uint64_t first, uint64_t second)
{
    if (e->json) {
        cmi_emit_open(e, true);
        cmi_emit_natural(e, first);
        cmi_emit_natural(e, second);
        cmi_emit_close(e);
        return;
    }
    before_value(e);
    pickle_number(e, first, false);
    pickle_number(e, second, false);
    put_opcode(e, 0x86);
}

/* ---- begin and end ------------------------------------------------------------------------------------------------------------------- */

void cmi_emit_begin(cmi_emitter *e, bool json, size_t strings, cmi_write *write, void *user)
{
    e->write = write;
    e->user = user;
    e->json = json;
    e->failed = e->after_key = false;
    e->depth = e->memo_count = 0;
    e->used = 0;
    e->memo = json ? NULL : calloc(strings + 1, sizeof *e->memo);
    if (!json && e->memo == NULL)
        e->failed = true;
    if (!json)
        cmi_emit_raw(e, "\x80\x02", 2);
}

int cmi_emit_end(cmi_emitter *e)
{
    cmi_emit_raw(e, e->json ? "\n" : ".", 1);
    flush(e);
    free(e->memo);
    e->memo = NULL;
    return e->failed ? -1 : 0;
}
