/*
 * Owns the bytes under a trace: file or memory, gzip recognised by its magic number and inflated as it is read. A gzip stream must
 * be whole: its end, checksum and length are checked, and what follows it must be another gzip member. No locks; one reader's own.
 * Called by the trace reader (read.c).
 */
#include "trace/source.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { RAW_ROOM = 1 << 16 };

struct cmi_source {
    int fd;              /* -1: memory */
    const uint8_t *data; /* memory not yet handed to raw */
    size_t data_left;
    bool gzip, inflating; /* inflating: inside a gzip member */
    bool raw_ended;
    z_stream z;
    const uint8_t *raw; /* compressed or plain bytes not yet consumed */
    size_t raw_left;
    uint8_t buffer[RAW_ROOM];
};

/* Have at least one raw byte, or raw_ended. */
static int refill(cmi_source *s, const char **reason)
{
    if (s->raw_left > 0 || s->raw_ended)
        return 0;
    if (s->fd < 0) {
        s->raw_left = s->data_left < RAW_ROOM ? s->data_left : RAW_ROOM;
        s->raw = s->data;
        s->data += s->raw_left;
        s->data_left -= s->raw_left;
    } else {
        ssize_t got;
        do
            got = read(s->fd, s->buffer, RAW_ROOM);
        while (got < 0 && errno == EINTR);
        if (got < 0) {
            *reason = strerror(errno);
            return -1;
        }
        s->raw = s->buffer;
        s->raw_left = (size_t)got;
    }
    s->raw_ended = s->raw_left == 0;
    return 0;
}

static cmi_source *start(cmi_source *s, const char **reason)
{
    if (refill(s, reason) != 0) {
        cmi_source_close(s);
        return NULL;
    }
    s->gzip = s->raw_left >= 2 && s->raw[0] == 0x1f && s->raw[1] == 0x8b;
    if (s->gzip) {
        if (inflateInit2(&s->z, MAX_WBITS + 16) != Z_OK) {
            s->gzip = false;
            cmi_source_close(s);
            *reason = "no host memory to inflate it";
            return NULL;
        }
        s->inflating = true;
    }
    return s;
}

cmi_source *cmi_source_open(const char *path, const char **reason)
{
    cmi_source *s = calloc(1, sizeof *s);
    struct stat about;
    if (s == NULL) {
        *reason = "no host memory";
        return NULL;
    }
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &about) != 0) {
        *reason = strerror(errno);
        cmi_source_close(s);
        return NULL;
    }
    if (S_ISDIR(about.st_mode)) {
        *reason = "is a directory";
        cmi_source_close(s);
        return NULL;
    }
    return start(s, reason);
}

cmi_source *cmi_source_open_memory(const void *data, size_t bytes, const char **reason)
{
    cmi_source *s = calloc(1, sizeof *s);
    if (s == NULL) {
        *reason = "no host memory";
        return NULL;
    }
    s->fd = -1;
    s->data = data;
    s->data_left = bytes;
    return start(s, reason);
}

bool cmi_source_is_gzip(const cmi_source *source) { return source->gzip; }

/* One step of inflating: 1 went on, 0 the text has ended, -1 a fault, which a later call meets again. */
static int inflate_more(cmi_source *s, const char **reason)
{
    if (refill(s, reason) != 0)
        return -1;
    if (s->raw_ended && !s->inflating)
        return 0;
    if (s->raw_ended) {
        *reason = "truncated gzip data";
        return -1;
    }
    if (!s->inflating) {
        if (s->raw[0] != 0x1f) {
            *reason = "bytes after the end of the gzip data";
            return -1;
        }
        inflateReset(&s->z);
        s->inflating = true;
    }
    s->z.next_in = (Bytef *)(uintptr_t)s->raw;
    s->z.avail_in = (uInt)s->raw_left;
    int code = inflate(&s->z, Z_NO_FLUSH);
    s->raw = s->z.next_in;
    s->raw_left = s->z.avail_in;
    if (code == Z_STREAM_END)
        s->inflating = false;
    else if (code != Z_OK && code != Z_BUF_ERROR) {
        *reason = code == Z_MEM_ERROR ? "no host memory to inflate it" : "corrupt gzip data";
        return -1;
    }
    return 1;
}

/* The text before a fault is handed out first, so that the fault is found at its line. */
static ssize_t read_gzip(cmi_source *s, void *text, size_t room, const char **reason)
{
    int more = 1;
    s->z.next_out = text;
    s->z.avail_out = (uInt)room;
    while (more == 1 && s->z.avail_out > 0)
        more = inflate_more(s, reason);
    size_t got = room - s->z.avail_out;
    return more < 0 && got == 0 ? -1 : (ssize_t)got;
}

ssize_t cmi_source_read(cmi_source *s, void *text, size_t room, const char **reason)
{
    if (s->gzip)
        return read_gzip(s, text, room, reason);
    if (refill(s, reason) != 0)
        return -1;
    size_t part = s->raw_left < room ? s->raw_left : room;
    memcpy(text, s->raw, part);
    s->raw += part;
    s->raw_left -= part;
    return (ssize_t)part;
}

void cmi_source_close(cmi_source *source)
{
    if (source == NULL)
        return;
    if (source->gzip)
        inflateEnd(&source->z);
    if (source->fd >= 0)
        close(source->fd);
    free(source);
}
