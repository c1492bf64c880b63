/*
 * Owns what grows while a picture is read: tables of strings, frames and stacks that hold each once, and small sets of streams and pools.
 * No locks; everything belongs to the call. Called by the formats.
 */
#include "trace/build.h"
#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1 << 8, MOST_STREAMS = UINT16_MAX, MOST_POOLS = UINT16_MAX, CHUNK_BYTES = 1 << 16 };

/* Text of strings, in chunks that do not move. */
struct cmi_picture_text {
    struct cmi_picture_text *before;
    size_t used, room;
    char text[];
};

bool cmi_grow_array(void *array, size_t count, size_t item_bytes)
{
    void *old, *larger;
    memcpy(&old, array, sizeof old);
    larger = realloc(old, (count == 0 ? 1 : 2 * count) * item_bytes);
    if (larger == NULL)
        return false;
    memcpy(array, &larger, sizeof larger);
    return true;
}

static int no_memory(cmi_builder *b) { return cmi_reader_fault(b->reader, "no host memory for what it holds"); }

/* ---- index ------------------------------------------------------------------------------------------------------------------------- */

uint32_t cmi_index_hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t sum = UINT64_C(0x9e3779b97f4a7c15) ^ bytes;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        sum = (sum ^ word) * UINT64_C(0xff51afd7ed558ccd);
        sum ^= sum >> 32;
    }
    for (; bytes > 0; bytes--, p++)
        sum = (sum ^ *p) * UINT64_C(0x100000001b3);
    return (uint32_t)((sum * UINT64_C(0xc4ceb9fe1a85ec53)) >> 32);
}

uint32_t cmi_index_next(const cmi_index *index, uint32_t hash, size_t *at)
{
    size_t mask = index->room - 1, i = *at == SIZE_MAX ? hash & mask : (*at + 1) & mask;
    while (index->slots[i].number != 0 && index->slots[i].hash != hash)
        i = (i + 1) & mask;
    *at = i;
    return index->slots[i].number != 0 ? index->slots[i].number - 1 : CMI_NONE;
}

void cmi_index_put(cmi_index *index, size_t at, uint32_t hash, uint32_t number)
{
    index->slots[at] = (cmi_index_slot){hash, number + 1};
    index->count++;
}

bool cmi_index_reserve(cmi_index *index)
{
    if (index->room != 0 && index->count < index->room / 4 * 3)
        return true;
    cmi_index larger = {.room = index->room == 0 ? FIRST_SLOTS : 2 * index->room};
    larger.slots = calloc(larger.room, sizeof *larger.slots);
    if (larger.slots == NULL)
        return false;
    for (size_t i = 0; i < index->room; i++) {
        size_t at = index->slots[i].hash & (larger.room - 1);
        if (index->slots[i].number == 0)
            continue;
        while (larger.slots[at].number != 0)
            at = (at + 1) & (larger.room - 1);
        cmi_index_put(&larger, at, index->slots[i].hash, index->slots[i].number - 1);
    }
    free(index->slots);
    *index = larger;
    return true;
}

/* ---- strings, frames, stacks ----------------------------------------------------------------------------------------------------------
 */

/* A copy with a zero behind it that lives as long as the picture; NULL without host memory. */
static char *keep_text(cmi_picture *picture, const char *text, size_t bytes)
{
    struct cmi_picture_text *chunk = picture->text;
    if (chunk == NULL || chunk->room - chunk->used <= bytes) {
        size_t room = bytes < CHUNK_BYTES ? CHUNK_BYTES : bytes + 1;
        chunk = malloc(sizeof *chunk + room);
        if (chunk == NULL)
            return NULL;
        *chunk = (struct cmi_picture_text){.before = picture->text, .room = room};
        picture->text = chunk;
    }
    char *copy = chunk->text + chunk->used;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    chunk->used += bytes + 1;
    return copy;
}

int cmi_build_string(cmi_builder *b, const char *text, size_t bytes, cmi_string_id *id)
{
    cmi_picture *p = b->picture;
    const char *zero = memchr(text, '\0', bytes); /* strings end at their first zero */
    if (zero != NULL)
        bytes = (size_t)(zero - text);
    uint32_t hash = cmi_index_hash(text, bytes), number;
    size_t at = SIZE_MAX;
    if (!cmi_index_reserve(&b->strings))
        return no_memory(b);
    while ((number = cmi_index_next(&b->strings, hash, &at)) != CMI_NONE)
        if (strncmp(p->strings[number], text, bytes) == 0 && p->strings[number][bytes] == '\0') {
            *id = number;
            return 0;
        }
    if (p->string_count >= CMI_NONE - 1)
        return cmi_reader_fault(b->reader, "more strings than this reader counts");
    if (!cmi_grow(&p->strings, p->string_count, sizeof *p->strings))
        return no_memory(b);
    p->strings[p->string_count] = keep_text(p, text, bytes);
    if (p->strings[p->string_count] == NULL)
        return no_memory(b);
    *id = (uint32_t)p->string_count++;
    cmi_index_put(&b->strings, at, hash, *id);
    return 0;
}

int cmi_build_frame(cmi_builder *b, const cmi_picture_frame *frame, uint32_t *number)
{
    cmi_picture *p = b->picture;
    uint32_t hash = cmi_index_hash(frame, sizeof *frame), found;
    size_t at = SIZE_MAX;
    if (!cmi_index_reserve(&b->frames))
        return no_memory(b);
    while ((found = cmi_index_next(&b->frames, hash, &at)) != CMI_NONE)
        if (memcmp(&p->frames[found], frame, sizeof *frame) == 0) {
            *number = found;
            return 0;
        }
    if (p->frame_count >= CMI_NONE - 1)
        return cmi_reader_fault(b->reader, "more stack frames than this reader counts");
    if (!cmi_grow(&p->frames, p->frame_count, sizeof *p->frames))
        return no_memory(b);
    p->frames[p->frame_count] = *frame;
    *number = (uint32_t)p->frame_count++;
    cmi_index_put(&b->frames, at, hash, *number);
    return 0;
}

int cmi_build_stack(cmi_builder *b, const uint32_t *frames, size_t count, cmi_stack_id *id)
{
    cmi_picture *p = b->picture;
    uint32_t hash = cmi_index_hash(frames, count * sizeof *frames), found;
    size_t at = SIZE_MAX;
    if (!cmi_index_reserve(&b->stacks))
        return no_memory(b);
    while ((found = cmi_index_next(&b->stacks, hash, &at)) != CMI_NONE) {
        const cmi_picture_stack *stack = &p->stacks[found];
        if (stack->count == count && (count == 0 || memcmp(p->stack_frames + stack->first, frames, count * sizeof *frames) == 0)) {
            *id = found;
            return 0;
        }
    }
    if (p->stack_count >= CMI_NONE - 1 || p->stack_frame_count + count >= CMI_NONE)
        return cmi_reader_fault(b->reader, "more call stacks than this reader counts");
    if (!cmi_grow(&p->stacks, p->stack_count, sizeof *p->stacks))
        return no_memory(b);
    p->stacks[p->stack_count] = (cmi_picture_stack){(uint32_t)p->stack_frame_count, (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        if (!cmi_grow(&p->stack_frames, p->stack_frame_count, sizeof *p->stack_frames))
            return no_memory(b);
        p->stack_frames[p->stack_frame_count++] = frames[i];
    }
    *id = (uint32_t)p->stack_count++;
    cmi_index_put(&b->stacks, at, hash, *id);
    return 0;
}

/* ---- the rest -------------------------------------------------------------------------------------------------------------------------
 */

int cmi_build_stream(cmi_builder *b, uint64_t value, uint16_t *number)
{
    cmi_picture *p = b->picture;
    size_t i = b->last_stream;
    if (i >= p->stream_count || p->streams[i].value != value)
        for (i = 0; i < p->stream_count && p->streams[i].value != value; i++)
            ;
    if (i == p->stream_count) {
        if (i == MOST_STREAMS)
            return cmi_reader_fault(b->reader, "more than %d streams", MOST_STREAMS);
        if (!cmi_grow(&p->streams, i, sizeof *p->streams))
            return no_memory(b);
        p->streams[p->stream_count++].value = value;
    }
    b->last_stream = (uint32_t)i;
    *number = (uint16_t)i;
    return 0;
}

int cmi_build_pool(cmi_builder *b, uint64_t first, uint64_t second, uint32_t *number)
{
    cmi_picture *p = b->picture;
    size_t i = b->last_pool;
    if (i >= p->pool_count || p->pools[i].id[0] != first || p->pools[i].id[1] != second)
        for (i = 0; i < p->pool_count && (p->pools[i].id[0] != first || p->pools[i].id[1] != second); i++)
            ;
    if (i == p->pool_count) {
        if (i == MOST_POOLS)
            return cmi_reader_fault(b->reader, "more than %d pools", MOST_POOLS);
        if (!cmi_grow(&p->pools, i, sizeof *p->pools))
            return no_memory(b);
        p->pools[p->pool_count++] = (cmi_picture_pool){.id = {first, second}, .is_private = first != 0 || second != 0};
    }
    b->last_pool = (uint32_t)i;
    *number = (uint32_t)i;
    return 0;
}

int cmi_build_event(cmi_builder *b, const cmi_picture_event *event)
{
    cmi_picture *p = b->picture;
    if (p->event_count >= CMI_NONE - 1)
        return cmi_reader_fault(b->reader, "more events than this reader counts");
    if (!cmi_grow(&p->events, p->event_count, sizeof *p->events))
        return no_memory(b);
    p->events[p->event_count++] = *event;
    return 0;
}

int cmi_build_note(cmi_builder *b, const char *group, cmi_string_id key, cmi_string_id value)
{
    cmi_picture *p = b->picture;
    cmi_picture_note note = {0, key, value};
    if (cmi_build_string(b, group, strlen(group), &note.group) != 0)
        return -1;
    if (!cmi_grow(&p->notes, p->note_count, sizeof *p->notes))
        return no_memory(b);
    p->notes[p->note_count++] = note;
    return 0;
}

int cmi_build_begin(cmi_builder *b, cmi_reader *reader, cmi_picture *picture)
{
    static const char *const words[CMI_WORDS] = {
        "",
#define CMI_WORD(name, text) text,
#include "trace/words.def"
#undef CMI_WORD
    };
    cmi_string_id id;
    cmi_stack_id stack;
    uint32_t pool;
    uint16_t stream;
    *b = (cmi_builder){.reader = reader, .picture = picture};
    for (size_t i = 0; i < CMI_WORDS; i++)
        if (cmi_build_string(b, words[i], strlen(words[i]), &id) != 0)
            return -1;
    if (cmi_build_stack(b, NULL, 0, &stack) != 0 || cmi_build_pool(b, 0, 0, &pool) != 0)
        return -1;
    return cmi_build_stream(b, 0, &stream);
}

void cmi_build_end(cmi_builder *b)
{
    free(b->strings.slots);
    free(b->frames.slots);
    free(b->stacks.slots);
    memset(b, 0, sizeof *b);
}

void cmi_picture_free(cmi_picture *p)
{
    for (struct cmi_picture_text *chunk = p->text, *before; chunk != NULL; chunk = before) {
        before = chunk->before;
        free(chunk);
    }
    free(p->strings);
    free(p->frames);
    free(p->stack_frames);
    free(p->stacks);
    free(p->devices);
    free(p->streams);
    free(p->pools);
    free(p->segments);
    free(p->blocks);
    free(p->events);
    free(p->refusals);
    free(p->rungs);
    free(p->notes);
    memset(p, 0, sizeof *p);
}
