/*
 * Values written out one after the other: as JSON, or as a pickle that PyTorch's viewer opens, whose limits are kept here: protocol 2, the
 * opcodes it knows, at most 1,000 items in a batch. Text goes through one buffer.
 */
#ifndef CMI_TRACE_EMIT_H
#define CMI_TRACE_EMIT_H

#include "trace/convert.h"

enum { CMI_EMIT_DEEPEST = 16, CMI_EMIT_BUFFER = 1 << 16 };

typedef struct cmi_emitter {
    cmi_write *write;
    void *user;
    bool json, failed;
    bool after_key;
    unsigned depth;
    struct {
        bool list;
        uint32_t items; /* of the open batch; in JSON of the group */
    } group[CMI_EMIT_DEEPEST];
    uint32_t *memo; /* pickle: by string of the picture, its memo + 1; 0: not yet written */
    uint32_t memo_count;
    size_t used;
    char buffer[CMI_EMIT_BUFFER];
} cmi_emitter;

/* strings: how many a picture has, for cmi_emit_string. */
void cmi_emit_begin(cmi_emitter *emitter, bool json, size_t strings, cmi_write *write, void *user);
/* 0, or -1 when something could not be written or there was no host memory. */
int cmi_emit_end(cmi_emitter *emitter);

void cmi_emit_open(cmi_emitter *emitter, bool list);
void cmi_emit_close(cmi_emitter *emitter);
void cmi_emit_key(cmi_emitter *emitter, const char *key);
void cmi_emit_text(cmi_emitter *emitter, const char *text);
/* A string of the picture: written once in a pickle. */
void cmi_emit_string(cmi_emitter *emitter, const cmi_picture *picture, cmi_string_id id);
void cmi_emit_integer(cmi_emitter *emitter, int64_t number);
void cmi_emit_natural(cmi_emitter *emitter, uint64_t number);
void cmi_emit_bool(cmi_emitter *emitter, bool value);
/* Nanoseconds as microseconds with a fraction: JSON only. */
void cmi_emit_microseconds(cmi_emitter *emitter, int64_t ns);
/* A tuple; in JSON a list. */
void cmi_emit_two(cmi_emitter *emitter, uint64_t first, uint64_t second);
/* Pickle: what was written last gets a memo, of which the number is returned; and what such a number stands for. */
uint32_t cmi_emit_remember(cmi_emitter *emitter);
void cmi_emit_again(cmi_emitter *emitter, uint32_t memo);
/* Text as it is, between values: line ends of JSON. */
void cmi_emit_raw(cmi_emitter *emitter, const void *data, size_t bytes);

#endif
