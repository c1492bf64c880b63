/*
 * The recorder of traces. Owns a list of pieces that is guarded by the device lock, and the file, the ids of live blocks and the text
 * buffer, guarded by its own lock (rank TRACE, taken before the device lock). Called by pool/history.c and, to write, by api.
 */
#include "record/tracer.h"

#include "record/gzip.h"
#include "record/notes.h"

#include <cudamempool/cudamempool.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_ITEMS = 4096, TEXT_BYTES = UINT16_MAX, LONGEST_LINE = 80 };

typedef struct item {
    uint64_t address, bytes;
    uint32_t stream;
    uint32_t kind; /* cmi_trace_item_kind */
} item;

typedef struct piece {
    struct piece *next;
    uint32_t count;
    item items[PIECE_ITEMS];
} piece;

struct cmi_tracer {
    piece *first, *last; /* device lock; all but the last are full */
    uint64_t lost;       /* device lock */

    cmi_lock lock;
    int file;
    bool zipped, failed;
    cmi_notes live; /* id of a live block by its address, in time_ns */
    uint64_t next_id;
    size_t used;
    char text[TEXT_BYTES];
};

/* ---- under the device lock ----------------------------------------------------------------------------- */

void cmi_tracer_append(cmi_tracer *tracer, cmi_trace_item_kind kind, uint64_t address, uint64_t bytes, uint32_t stream)
{
    piece *last = tracer->last;
    if (!last || last->count == PIECE_ITEMS) {
        piece *fresh = cmi_meta_alloc(sizeof *fresh);
        if (!fresh) {
            tracer->lost++;
            return;
        }
        *(last ? &last->next : &tracer->first) = fresh;
        tracer->last = last = fresh;
    }
    last->items[last->count++] = (item){address, bytes, stream, (uint32_t)kind};
}

bool cmi_tracer_is_due(const cmi_tracer *tracer) { return tracer->first != tracer->last; }

/* The pieces to be written: all but the last, or all. */
static piece *detach(cmi_tracer *tracer, bool all)
{
    piece *found = NULL, **end = &found;
    while (tracer->first && (all || tracer->first != tracer->last)) {
        *end = tracer->first;
        tracer->first = tracer->first->next;
        (*end)->next = NULL;
        end = &(*end)->next;
    }
    if (!tracer->first) {
        tracer->last = NULL;
    }
    return found;
}

/* ---- under the recorder's lock -------------------------------------------------------------------------- */

static void write_out(cmi_tracer *tracer, const void *bytes, size_t length)
{
    const char *at = bytes;
    while (length && !tracer->failed) {
        ssize_t written = write(tracer->file, at, length);
        if (written >= 0) {
            at += written;
            length -= (size_t)written;
        } else if (errno != EINTR) {
            tracer->failed = true;
            cmi_log(CMI_LOG_ERROR, "trace: %s; what follows is not recorded", strerror(errno));
        }
    }
}

static void flush(cmi_tracer *tracer)
{
    if (tracer->used && tracer->zipped) {
        unsigned char head[CMI_GZIP_HEAD], tail[CMI_GZIP_TAIL];
        cmi_gzip_frame(tracer->text, (uint16_t)tracer->used, head, tail);
        write_out(tracer, head, sizeof head);
        write_out(tracer, tracer->text, tracer->used);
        write_out(tracer, tail, sizeof tail);
    } else {
        write_out(tracer, tracer->text, tracer->used);
    }
    tracer->used = 0;
}

static void add_number(cmi_tracer *tracer, char before, uint64_t value)
{
    char digits[20];
    unsigned at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
    } while (value /= 10);
    tracer->text[tracer->used++] = before;
    memcpy(tracer->text + tracer->used, digits + at, sizeof digits - at);
    tracer->used += sizeof digits - at;
}

static void add_line(cmi_tracer *tracer, char letter, const uint64_t *numbers, unsigned count)
{
    if (tracer->used + LONGEST_LINE >= TEXT_BYTES) {
        flush(tracer);
    }
    tracer->text[tracer->used++] = letter;
    for (unsigned i = 0; i < count; i++) {
        add_number(tracer, ' ', numbers[i]);
    }
    tracer->text[tracer->used++] = '\n';
}

/* Blocks that were live before the recording began have no id: their frees and uses are left out. */
static void add_item(cmi_tracer *tracer, const item *of)
{
    uint64_t id = 0;
    const cmi_note *known;
    switch ((cmi_trace_item_kind)of->kind) {
    case CMI_TRACED_ALLOC:
        id = ++tracer->next_id;
        cmi_notes_put(&tracer->live, &(cmi_note){.address = of->address, .time_ns = id});
        add_line(tracer, 'a', (const uint64_t[]){id, of->bytes, of->stream}, 3);
        break;
    case CMI_TRACED_FREE:
        id = cmi_notes_take(&tracer->live, of->address).time_ns;
        if (id) {
            add_line(tracer, 'f', (const uint64_t[]){id, of->stream}, 2);
        }
        break;
    case CMI_TRACED_USE:
        known = cmi_notes_find(&tracer->live, of->address);
        if (known) {
            add_line(tracer, 'u', (const uint64_t[]){known->time_ns, of->stream}, 2);
        }
        break;
    case CMI_TRACED_STEP:
        add_line(tracer, 's', &of->bytes, 1);
        break;
    }
}

void cmi_tracer_drain(cmi_tracer *tracer, cmi_lock *device_lock, bool all)
{
    cmi_lock_acquire(&tracer->lock);
    cmi_lock_acquire(device_lock);
    piece *next, *list = detach(tracer, all);
    uint64_t lost = all ? tracer->lost : 0;
    cmi_lock_release(device_lock);
    for (; list; list = next) {
        next = list->next;
        for (uint32_t i = 0; i < list->count; i++) {
            add_item(tracer, &list->items[i]);
        }
        cmi_meta_free(list, sizeof *list);
    }
    if (all) {
        flush(tracer);
        if (lost) {
            cmi_log(CMI_LOG_ERROR, "trace: %llu calls are missing for lack of host memory", (unsigned long long)lost);
        }
    }
    cmi_lock_release(&tracer->lock);
}

/* ---- making and ending ---------------------------------------------------------------------------------- */

static int make_file(const char *pattern, int device)
{
    char path[CMI_TEXT_BYTES], own[CMI_TEXT_BYTES + 16];
    if (!cmi_path_fill(path, sizeof path, pattern, &(cmi_path_values){.process = true, .device = &device})) {
        errno = EINVAL;
        return -1;
    }
    bool shared = device != 0 && !cmi_path_has(pattern, 'd'); /* one file for each device */
    snprintf(own, sizeof own, shared ? "%s.%d" : "%s", path, device);
    return open(own, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

cmi_tracer *cmi_tracer_open(const char *pattern, int device, uint64_t device_bytes)
{
    cmi_tracer *tracer = cmi_meta_alloc(sizeof *tracer);
    if (!tracer) {
        return NULL;
    }
    cmi_lock_init(&tracer->lock, CMI_RANK_TRACE);
    size_t length = strlen(pattern);
    tracer->zipped = length > 3 && strcmp(pattern + length - 3, ".gz") == 0;
    tracer->file = make_file(pattern, device);
    if (tracer->file < 0) {
        cmi_log(CMI_LOG_ERROR, "trace: %s: %s", pattern, strerror(errno));
        cmi_meta_free(tracer, sizeof *tracer);
        return NULL;
    }
    tracer->used =
        (size_t)snprintf(tracer->text, TEXT_BYTES, "# format cmtrace-1\n# source cudamempool %s\n# device %d\n# device_bytes %llu\n",
                         cmpool_version(), device, (unsigned long long)device_bytes);
    return tracer;
}

void cmi_tracer_close(cmi_tracer *tracer)
{
    close(tracer->file);
    cmi_lock_fini(&tracer->lock);
    cmi_notes_fini(&tracer->live);
    cmi_meta_free(tracer, sizeof *tracer);
}
