/*
 * The table of call stacks. Owns the frames and a hash table over them (metadata memory, kept for the life of the process), guarded by its
 * own lock (rank RECORD); a stack does not change once it is counted. Stacks are taken before any lock, by the C library's backtrace, which
 * allocates at its first call only: that is made when stacks are asked for. Called by api and read by inspect.
 */
#include "record/stacks.h"

#include "base/base.h"

#include <execinfo.h>
#include <string.h>

enum { CHUNK_SHIFT = 10, CHUNK = 1 << CHUNK_SHIFT, CHUNKS = 64, FIRST_BUCKETS = 1024, OWN_FRAMES = 1 };

typedef struct record {
    uint32_t hash, next; /* of the same bucket */
    uint32_t length;
    void **frames;
} record;

_Atomic uint32_t cmi_stack_every;

static _Atomic uint32_t turn;
static cmi_lock lock = CMI_LOCK_INITIALIZER(CMI_RANK_RECORD);
static _Atomic(record *) chunks[CHUNKS];
static _Atomic uint32_t count; /* number 0 is none */
static uint32_t *buckets;      /* lock */
static uint32_t bucket_count;  /* lock */

static record *record_of(uint32_t stack)
{
    return &atomic_load_explicit(&chunks[stack >> CHUNK_SHIFT], memory_order_acquire)[stack & (CHUNK - 1)];
}

void cmi_stacks_set(uint32_t every)
{
    if (every) {
        void *frames[CMI_STACK_FRAMES];
        (void)backtrace(frames, CMI_STACK_FRAMES);
    }
    atomic_store_explicit(&cmi_stack_every, every, memory_order_relaxed);
}

static uint32_t hash_of(void *const *frames, size_t length)
{
    uint64_t hash = length;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (uint64_t)(uintptr_t)frames[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash >> 32);
}

static bool grow_buckets(void)
{
    uint32_t larger = bucket_count ? bucket_count * 2 : FIRST_BUCKETS;
    uint32_t *made = cmi_meta_alloc(larger * sizeof *made);
    if (!made) {
        return bucket_count != 0;
    }
    for (uint32_t i = 1; i <= atomic_load_explicit(&count, memory_order_relaxed); i++) {
        record *at = record_of(i);
        at->next = made[at->hash & (larger - 1)];
        made[at->hash & (larger - 1)] = i;
    }
    cmi_meta_free(buckets, bucket_count * sizeof *buckets);
    buckets = made;
    bucket_count = larger;
    return true;
}

static uint32_t find(uint32_t hash, void *const *frames, size_t length)
{
    for (uint32_t i = bucket_count ? buckets[hash & (bucket_count - 1)] : 0; i; i = record_of(i)->next) {
        const record *at = record_of(i);
        if (at->hash == hash && at->length == length && memcmp(at->frames, frames, length * sizeof *frames) == 0) {
            return i;
        }
    }
    return 0;
}

static uint32_t add(uint32_t hash, void *const *frames, size_t length)
{
    uint32_t number = atomic_load_explicit(&count, memory_order_relaxed) + 1;
    if (number >= CHUNK * CHUNKS || (number > bucket_count && !grow_buckets())) {
        return 0;
    }
    if (!atomic_load_explicit(&chunks[number >> CHUNK_SHIFT], memory_order_relaxed)) {
        record *chunk = cmi_meta_alloc(sizeof *chunk * CHUNK);
        if (!chunk) {
            return 0;
        }
        atomic_store_explicit(&chunks[number >> CHUNK_SHIFT], chunk, memory_order_release);
    }
    void **kept = cmi_meta_alloc(length * sizeof *kept);
    if (!kept) {
        return 0;
    }
    memcpy(kept, frames, length * sizeof *kept);
    uint32_t *bucket = &buckets[hash & (bucket_count - 1)];
    *record_of(number) = (record){hash, *bucket, (uint32_t)length, kept};
    *bucket = number;
    atomic_store_explicit(&count, number, memory_order_release);
    return number;
}

uint32_t cmi_stack_take(void)
{
    uint32_t every = atomic_load_explicit(&cmi_stack_every, memory_order_relaxed);
    if (every > 1 && atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % every) {
        return 0;
    }
    void *frames[CMI_STACK_FRAMES + OWN_FRAMES];
    int taken = backtrace(frames, CMI_STACK_FRAMES + OWN_FRAMES);
    if (taken <= OWN_FRAMES) {
        return 0;
    }
    size_t length = (size_t)taken - OWN_FRAMES;
    uint32_t hash = hash_of(frames + OWN_FRAMES, length);
    cmi_lock_acquire(&lock);
    uint32_t number = find(hash, frames + OWN_FRAMES, length);
    if (!number) {
        number = add(hash, frames + OWN_FRAMES, length);
    }
    cmi_lock_release(&lock);
    return number;
}

uint32_t cmi_stack_count(void) { return atomic_load_explicit(&count, memory_order_acquire); }

size_t cmi_stack_get(uint32_t stack, void *const **frames)
{
    const record *found = record_of(stack);
    *frames = found->frames;
    return found->length;
}
