/* Between the formats and the picture: what grows while a file is read. Strings, frames and stacks are held once each. */
#ifndef CMI_TRACE_BUILD_H
#define CMI_TRACE_BUILD_H

#include "trace/picture.h"
#include "trace/read.h"

/* Numbers under 32-bit hashes: open addressing, nothing is ever taken out. */
typedef struct cmi_index_slot {
    uint32_t hash, number; /* number + 1; 0: empty */
} cmi_index_slot;
typedef struct cmi_index {
    cmi_index_slot *slots;
    size_t room, count;
} cmi_index;

uint32_t cmi_index_hash(const void *data, size_t bytes);
/* The slot after *at (SIZE_MAX: from the start) whose number has that hash; CMI_NONE and *at where it would be put. */
uint32_t cmi_index_next(const cmi_index *index, uint32_t hash, size_t *at);
/* Room for one more, to be called before a search that may end in a put; false without host memory. */
bool cmi_index_reserve(cmi_index *index);
void cmi_index_put(cmi_index *index, size_t at, uint32_t hash, uint32_t number);

/* A block's stream while it is read, where only its segment says one. */
enum { CMI_STREAM_OF_SEGMENT = UINT16_MAX };

/* Words that readers look for, interned first, so that a key is compared as a number. */
enum {
    CMI_WORD_empty,
#define CMI_WORD(name, text) CMI_WORD_##name,
#include "trace/words.def"
#undef CMI_WORD
    CMI_WORDS,
};

typedef struct cmi_builder {
    cmi_reader *reader; /* for faults */
    cmi_picture *picture;
    cmi_index strings, frames, stacks;
    uint32_t last_stream, last_pool;
} cmi_builder;

/* Begins an empty picture: the words, the empty stack, the default pool, the default stream. All of these return 0, or -1 with the fault
 * line set. */
int cmi_build_begin(cmi_builder *builder, cmi_reader *reader, cmi_picture *picture);
int cmi_build_string(cmi_builder *builder, const char *text, size_t bytes, cmi_string_id *id);
int cmi_build_frame(cmi_builder *builder, const cmi_picture_frame *frame, uint32_t *number);
int cmi_build_stack(cmi_builder *builder, const uint32_t *frames, size_t count, cmi_stack_id *id);
int cmi_build_stream(cmi_builder *builder, uint64_t value, uint16_t *number);
int cmi_build_pool(cmi_builder *builder, uint64_t first, uint64_t second, uint32_t *number);
int cmi_build_event(cmi_builder *builder, const cmi_picture_event *event);
int cmi_build_note(cmi_builder *builder, const char *group, cmi_string_id key, cmi_string_id value);
/* Gives back what only building needed. */
void cmi_build_end(cmi_builder *builder);

/* Room for one more item in an array of count that grows by doubling; false without host memory. */
bool cmi_grow_array(void *array, size_t count, size_t item_bytes);
static inline bool cmi_grow(void *array, size_t count, size_t item_bytes)
{
    return (count != 0 && (count & (count - 1)) != 0) || cmi_grow_array(array, count, item_bytes); /* room is the next power of two */
}

/*
 * Puts a picture in order once everything is read: devices by ordinal (segments and events hold ordinals until then), segments by address,
 * blocks tiling them. Says what does not fit together.
 */
int cmi_build_finish(cmi_builder *builder);
/* Its part for segments: in order, and tiled by their blocks. */
int cmi_build_segments(cmi_builder *builder);
/* refusals.c: what was held when requests of the history were refused. */
int cmi_build_refusals(cmi_builder *builder);

#endif
