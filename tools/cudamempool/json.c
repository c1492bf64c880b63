/*
 * Owns the text of one JSON line until it is whole. Strings are escaped and made valid UTF-8, since file names need not be; numbers that
 * JSON has no word for become null. No locks; one thread. Called by every subcommand that knows --json.
 */
#include "json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put(json *out, const char *text, size_t bytes)
{
    if (out->failed)
        return;
    if (out->used + bytes > out->room) {
        size_t room = 2 * (out->used + bytes) + 256;
        char *larger = realloc(out->text, room);
        if (larger == NULL) {
            out->failed = true;
            return;
        }
        out->text = larger;
        out->room = room;
    }
    memcpy(out->text + out->used, text, bytes);
    out->used += bytes;
}

static void put_text(json *out, const char *text) { put(out, text, strlen(text)); }

/* Length of the valid UTF-8 sequence at text, 0 when there is none. */
static size_t utf8_length(const unsigned char *text)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (text[0] < 0x80)
        return 1;
    size_t length = text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    if (length == 0)
        return 0;
    uint32_t code = text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (text[i] >> 6 != 2)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < smallest[length] || code > 0x10ffff || surrogate ? 0 : length;
}

static void put_quoted(json *out, const char *value)
{
    const unsigned char *p = (const unsigned char *)value;
    char escape[8];
    put(out, "\"", 1);
    while (*p != '\0') {
        size_t length = utf8_length(p);
        if (length == 0) {
            put_text(out, "\xef\xbf\xbd");
            length = 1;
        } else if (*p < 0x20 || *p == 0x7f) {
            snprintf(escape, sizeof escape, "\\u%04x", *p);
            put_text(out, escape);
        } else {
            if (*p == '"' || *p == '\\')
                put(out, "\\", 1);
            put(out, (const char *)p, length);
        }
        p += length;
    }
    put(out, "\"", 1);
}

static void begin_member(json *out, const char *key)
{
    if (out->comma)
        put(out, ",", 1);
    out->comma = true;
    if (key != NULL) {
        put_quoted(out, key);
        put(out, ":", 1);
    }
}

void json_begin_object(json *out, const char *key)
{
    begin_member(out, key);
    put(out, "{", 1);
    out->comma = false;
}

void json_end_object(json *out)
{
    put(out, "}", 1);
    out->comma = true;
}

void json_begin_array(json *out, const char *key)
{
    begin_member(out, key);
    put(out, "[", 1);
    out->comma = false;
}

void json_end_array(json *out)
{
    put(out, "]", 1);
    out->comma = true;
}

void json_string(json *out, const char *key, const char *value)
{
    begin_member(out, key);
    put_quoted(out, value);
}

void json_integer(json *out, const char *key, uint64_t value)
{
    char text[24];
    begin_member(out, key);
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    put_text(out, text);
}

void json_real(json *out, const char *key, double value, int decimals)
{
    char text[64];
    if (!isfinite(value) || fabs(value) > 1e30) {
        json_null(out, key);
        return;
    }
    begin_member(out, key);
    snprintf(text, sizeof text, "%.*f", decimals, value);
    put_text(out, text);
}

void json_bool(json *out, const char *key, bool value)
{
    begin_member(out, key);
    put_text(out, value ? "true" : "false");
}

void json_null(json *out, const char *key)
{
    begin_member(out, key);
    put_text(out, "null");
}

void json_figure(json *out, const char *key, uint64_t value)
{
    if (value == UINT64_MAX)
        json_null(out, key);
    else
        json_integer(out, key, value);
}

void json_address(json *out, const char *key, uint64_t address)
{
    char text[24];
    snprintf(text, sizeof text, "0x%llx", (unsigned long long)address);
    json_string(out, key, text);
}

void json_forget(json *out)
{
    free(out->text);
    *out = (json){0};
}

void json_put(json *out, const char *key, json *value)
{
    begin_member(out, key);
    put(out, value->text, value->used);
    out->failed = out->failed || value->failed;
    json_forget(value);
}

int json_print(json *out, FILE *file)
{
    put(out, "\n", 1);
    int code = out->failed || fwrite(out->text, 1, out->used, file) != out->used || fflush(file) != 0 ? -1 : 0;
    json_forget(out);
    return code;
}
