/* Owns how columns of numbers are packed for a page: little-endian, zlib, base64, in pieces. No state; one thread. Called by
 * inspect_page.c. */
#include "inspect_columns.h"
#include <string.h>

enum { PIECE = 1 << 16 };

/* ---- base64 ------------------------------------------------------------------------------------------------------------------------- */

static void put_group(inspect_columns *c, const unsigned char group[3], size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = (unsigned)group[0] << 16 | (unsigned)group[1] << 8 | group[2];
    char text[4] = {digits[bits >> 18], digits[bits >> 12 & 63], bytes > 1 ? digits[bits >> 6 & 63] : '=',
                    bytes > 2 ? digits[bits & 63] : '='};
    c->failed = c->failed || fwrite(text, 1, sizeof text, c->file) != sizeof text;
}

static void put_base64(inspect_columns *c, const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        c->rest[c->rest_bytes++] = data[i];
        if (c->rest_bytes == 3) {
            put_group(c, c->rest, 3);
            c->rest_bytes = 0;
        }
    }
}

/* ---- zlib --------------------------------------------------------------------------------------------------------------------------- */

static void pack(inspect_columns *c, const unsigned char *data, size_t bytes, int flush)
{
    unsigned char packed[PIECE];
    int code;
    c->stream.next_in = (unsigned char *)(uintptr_t)data;
    c->stream.avail_in = (unsigned)bytes;
    do {
        c->stream.next_out = packed;
        c->stream.avail_out = sizeof packed;
        code = deflate(&c->stream, flush);
        put_base64(c, packed, sizeof packed - c->stream.avail_out);
    } while (code == Z_OK && (c->stream.avail_out == 0 || flush == Z_FINISH));
    c->failed = c->failed || (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR);
}

bool inspect_columns_begin(inspect_columns *c, FILE *file)
{
    *c = (inspect_columns){.file = file};
    return deflateInit(&c->stream, 6) == Z_OK;
}

bool inspect_columns_end(inspect_columns *c)
{
    unsigned char group[3] = {0};
    pack(c, group, 0, Z_FINISH);
    memcpy(group, c->rest, c->rest_bytes);
    if (c->rest_bytes > 0)
        put_group(c, group, c->rest_bytes);
    return deflateEnd(&c->stream) == Z_OK && !c->failed;
}

/* ---- columns ------------------------------------------------------------------------------------------------------------------------ */

static size_t width_of(const char *type) { return type[0] == 'f' ? 8 : type[1] == '8' ? 1 : type[1] == '1' ? 2 : 4; }

static void put_little_endian(unsigned char *at, double value, const char *type, size_t width)
{
    uint64_t bits;
    if (type[0] == 'f')
        memcpy(&bits, &value, sizeof bits);
    else
        bits = (uint64_t)value;
    for (size_t i = 0; i < width; i++)
        at[i] = (unsigned char)(bits >> 8 * i);
}

void inspect_column(inspect_columns *c, json *list, const char *name, const char *type, size_t count, inspect_value *value,
                    const void *user)
{
    unsigned char piece[PIECE];
    size_t width = width_of(type), used = 0, fill = (8 - count * width % 8) % 8;
    json_begin_array(list, name);
    json_string(list, NULL, type);
    json_integer(list, NULL, c->written);
    json_integer(list, NULL, count);
    json_end_array(list);
    for (size_t i = 0; i < count; i++, used += width) {
        if (used == sizeof piece) {
            pack(c, piece, used, Z_NO_FLUSH);
            used = 0;
        }
        put_little_endian(piece + used, value(user, i), type, width);
    }
    pack(c, piece, used, Z_NO_FLUSH);
    memset(piece, 0, fill);
    pack(c, piece, fill, Z_NO_FLUSH);
    c->written += count * width + fill;
}
