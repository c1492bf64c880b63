/*
 * JSON output. Owns the buffer of a writer (metadata memory); no lock, a writer belongs to one thread. Called by the files of lib/inspect,
 * outside of all locks.
 */
#include "inspect/json.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 1 << 17, LONGEST_PIECE = 32 };

bool cmi_json_open(cmi_json *json, int file)
{
    *json = (cmi_json){.file = file, .buffer = cmi_meta_alloc(BUFFER)};
    return json->buffer != NULL;
}

static void flush(cmi_json *json)
{
    size_t done = 0;
    while (done < json->used && !json->error) {
        ssize_t written = write(json->file, json->buffer + done, json->used - done);
        if (written >= 0) {
            done += (size_t)written;
        } else if (errno != EINTR) {
            json->error = errno;
        }
    }
    json->used = 0;
}

int cmi_json_close(cmi_json *json)
{
    flush(json);
    cmi_meta_free(json->buffer, BUFFER);
    json->buffer = NULL;
    return json->error;
}

/* At most LONGEST_PIECE bytes. */
static void put(cmi_json *json, const char *bytes, size_t length)
{
    if (json->used + length > BUFFER) {
        flush(json);
    }
    memcpy(json->buffer + json->used, bytes, length);
    json->used += length;
}

static void put_char(cmi_json *json, char c)
{
    if (json->used == BUFFER) {
        flush(json);
    }
    json->buffer[json->used++] = c;
}

/* Bytes that are no UTF-8 text would make the file unreadable: everything beyond ASCII that does not decode becomes '?'. */
static unsigned sequence_length(const unsigned char *at)
{
    unsigned length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4) {
        return 0;
    }
    for (unsigned i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool beyond = (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf4 && at[1] > 0x8f);
    return overlong || beyond ? 0 : length;
}

static void put_quoted(cmi_json *json, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    put_char(json, '"');
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        unsigned length = 1;
        if (*at < 0x20 || *at == '"' || *at == '\\' || *at == 0x7f) {
            const char escaped[] = {'\\', 'u', '0', '0', digits[*at >> 4], digits[*at & 15]};
            put(json, escaped, sizeof escaped);
        } else if (*at < 0x80) {
            put_char(json, (char)*at);
        } else if ((length = sequence_length(at)) != 0) {
            put(json, (const char *)at, length);
        } else {
            put_char(json, '?');
            length = 1;
        }
        at += length;
    }
    put_char(json, '"');
}

static void put_key(cmi_json *json, const char *key)
{
    if (json->comma) {
        put_char(json, ',');
    }
    json->comma = true;
    if (key) {
        put_quoted(json, key);
        put_char(json, ':');
    }
}

void cmi_json_begin(cmi_json *json, const char *key, char bracket)
{
    put_key(json, key);
    put_char(json, bracket);
    json->comma = false;
}

void cmi_json_end(cmi_json *json, char bracket)
{
    put_char(json, bracket);
    json->comma = true;
}

void cmi_json_number(cmi_json *json, const char *key, uint64_t value)
{
    char digits[20];
    unsigned at = sizeof digits;
    put_key(json, key);
    do {
        digits[--at] = (char)('0' + value % 10);
    } while (value /= 10);
    put(json, digits + at, sizeof digits - at);
}

void cmi_json_text(cmi_json *json, const char *key, const char *text)
{
    put_key(json, key);
    put_quoted(json, text);
}

void cmi_json_flag(cmi_json *json, const char *key, bool value)
{
    put_key(json, key);
    put(json, value ? "true" : "false", value ? 4 : 5);
}

void cmi_json_null(cmi_json *json, const char *key)
{
    put_key(json, key);
    put(json, "null", 4);
}

void cmi_json_table(cmi_json *json, const char *key, const char *columns)
{
    char name[LONGEST_PIECE];
    cmi_json_begin(json, key, '{');
    cmi_json_begin(json, "columns", '[');
    while (*columns) {
        size_t length = strcspn(columns, " ");
        memcpy(name, columns, length);
        name[length] = '\0';
        cmi_json_text(json, NULL, name);
        columns += length + (columns[length] == ' ');
    }
    cmi_json_end(json, ']');
    cmi_json_begin(json, "rows", '[');
}

void cmi_json_row(cmi_json *json)
{
    put_key(json, NULL);
    put(json, "\n[", 2);
    json->comma = false;
}

void cmi_json_table_end(cmi_json *json)
{
    cmi_json_end(json, ']');
    cmi_json_end(json, '}');
}
