/*
 * RMM's logs as events of a picture: the columns of today (Thread,Time,Action,Pointer,Size,Stream; also without their header, as Spark
 * prints them) and those of the first versions (Event Type,Device ID,Address,Stream,Size (bytes),...), told apart by their names. No locks;
 * everything belongs to the call. Called by read.c.
 */
#include "trace/build.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_COLUMNS = 32, MOST_ORDINAL = 4095 };

typedef struct field {
    const char *text;
    size_t length;
} field;

typedef struct columns {
    int time, action, address, bytes, stream, device; /* -1: not there */
} columns;

static size_t split(const char *at, const char *end, field fields[MOST_COLUMNS])
{
    size_t count = 0;
    while (end > at && (end[-1] == '\r' || end[-1] == ' '))
        end--;
    while (count < MOST_COLUMNS) {
        const char *comma = memchr(at, ',', (size_t)(end - at)), *stop = comma != NULL ? comma : end;
        while (at < stop && *at == ' ')
            at++;
        fields[count++] = (field){at, (size_t)(stop - at)};
        if (comma == NULL)
            break;
        at = comma + 1;
    }
    return count;
}

static bool is(const field *f, const char *word) { return strlen(word) == f->length && strncasecmp(f->text, word, f->length) == 0; }

/* Which column is what, by the header; false when this line is none. */
static bool read_header(const field *fields, size_t count, columns *c)
{
    *c = (columns){-1, -1, -1, -1, -1, -1};
    for (int i = 0; i < (int)count; i++) {
        const field *f = &fields[i];
        if (is(f, "Time") || is(f, "Start"))
            c->time = i;
        else if (is(f, "Action") || is(f, "Event Type"))
            c->action = i;
        else if (is(f, "Pointer") || is(f, "Address"))
            c->address = i;
        else if (is(f, "Size") || is(f, "Size (bytes)"))
            c->bytes = i;
        else if (is(f, "Stream"))
            c->stream = i;
        else if (is(f, "Device ID"))
            c->device = i;
    }
    return c->action >= 0 && c->address >= 0 && c->bytes >= 0;
}

/* Decimal or 0x. */
static bool natural(const field *f, uint64_t *number)
{
    char text[32], *end;
    if (f->length == 0 || f->length >= sizeof text || f->text[0] < '0' || f->text[0] > '9')
        return false;
    memcpy(text, f->text, f->length);
    text[f->length] = '\0';
    bool hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    *number = strtoull(text, &end, hexadecimal ? 16 : 10);
    return *end == '\0';
}

/* A time of day with parts of a second behind a dot or a colon, or seconds; 0 for any other. */
static int64_t time_of(const field *f)
{
    int64_t whole[4] = {0}, parts = 0, unit = 1000000000;
    int colons = 0;
    bool fraction = false;
    for (size_t i = 0; i < f->length; i++) {
        char c = f->text[i];
        if (c >= '0' && c <= '9' && fraction) {
            unit /= 10;
            parts += unit * (c - '0');
        } else if (c >= '0' && c <= '9' && whole[colons] < 100000000000)
            whole[colons] = 10 * whole[colons] + (c - '0');
        else if (c == ':' && colons < 2)
            colons++;
        else if ((c == '.' || c == ':') && !fraction)
            fraction = true;
        else
            return 0;
    }
    int64_t seconds = colons == 2 ? (60 * whole[0] + whole[1]) * 60 + whole[2] : whole[0];
    return colons == 1 || seconds > INT64_C(9000000000) ? 0 : 1000000000 * seconds + parts;
}

static int shown_fault(cmi_reader *reader, const char *what, const field *f)
{
    char text[40];
    size_t kept = f->length < sizeof text - 1 ? f->length : sizeof text - 1;
    for (size_t i = 0; i < kept; i++)
        text[i] = f->text[i] >= ' ' && f->text[i] <= '~' ? f->text[i] : '?';
    text[kept] = '\0';
    return cmi_reader_fault(reader, "the %s '%s' is not known", what, text);
}

static int row(cmi_reader *reader, cmi_builder *builder, const columns *c, const field *fields, size_t count)
{
    static const field none = {"", 0};
    cmi_picture_event event = {0};
    uint64_t stream = 0, device = 0;
#define FIELD(which) ((which) >= 0 && (size_t)(which) < count ? &fields[which] : &none)
    const field *action = FIELD(c->action), *address = FIELD(c->address), *bytes = FIELD(c->bytes);
    event.time_ns = time_of(FIELD(c->time));
    if (is(action, "allocate") || is(action, "Alloc"))
        event.kind = CMI_EVENT_ALLOC;
    else if (is(action, "free") || is(action, "deallocate"))
        event.kind = CMI_EVENT_FREE_REQUESTED;
    else if (is(action, "allocate failure"))
        event.kind = CMI_EVENT_REFUSED;
    else
        return shown_fault(reader, "action", action);
    if (!natural(bytes, &event.bytes) || event.bytes > INT64_MAX)
        return shown_fault(reader, "size", bytes);
    if (event.kind == CMI_EVENT_REFUSED)
        event.address = CMI_UNKNOWN;
    else if (!natural(address, &event.address))
        return shown_fault(reader, "pointer", address);
    if (c->stream >= 0 && !natural(FIELD(c->stream), &stream))
        stream = 0; /* a name: the default streams have some */
    if (c->device >= 0 && natural(FIELD(c->device), &device) && device > MOST_ORDINAL)
        return shown_fault(reader, "device", FIELD(c->device));
#undef FIELD
    event.device = (uint32_t)device;
    if ((event.bytes == 0 && event.kind == CMI_EVENT_ALLOC) || (event.address == 0 && event.kind != CMI_EVENT_REFUSED))
        return 0; /* nothing was allocated */
    if (cmi_build_stream(builder, stream, &event.stream) != 0 || cmi_build_event(builder, &event) != 0)
        return -1;
    event.kind = event.kind == CMI_EVENT_FREE_REQUESTED ? CMI_EVENT_FREE_COMPLETED : CMI_EVENT_KINDS;
    return event.kind == CMI_EVENT_FREE_COMPLETED ? cmi_build_event(builder, &event) : 0;
}

int cmi_rmm_parse(cmi_reader *reader, cmi_builder *builder)
{
    columns c = {.time = 1, .action = 2, .address = 3, .bytes = 4, .stream = 5, .device = -1};
    field fields[MOST_COLUMNS];
    const char *begin, *end;
    int more;
    while ((more = cmi_reader_line(reader, &begin, &end)) == 1) {
        columns header;
        size_t count = split(begin, end, fields);
        if (count == 1 && fields[0].length == 0)
            continue;
        if (read_header(fields, count, &header)) /* a log that was appended to has several */
            c = header;
        else if (row(reader, builder, &c, fields, count) != 0)
            return -1;
    }
    if (more == 0 && builder->picture->event_count == 0)
        return cmi_reader_fault(reader, "the file holds no allocation");
    builder->picture->has_history = true;
    return more < 0 ? -1 : cmi_build_finish(builder);
}
