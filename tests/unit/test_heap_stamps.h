/*
 * A stand-in for the pool's stamps, for tests of the heap: every number has exactly one holder, so that a stamp that is leaked, used
 * after it was dropped or held twice is noticed at once. A stamp says up to which ticket each stream must have come.
 */
#ifndef TEST_HEAP_STAMPS_H
#define TEST_HEAP_STAMPS_H

#include "heap/heap.h"

enum { STAMP_STREAMS = 4, STAMP_ROOM = 8192 }; /* stream 0 is none */

typedef struct need {
    uint32_t upto[STAMP_STREAMS];
} need;

typedef struct stamps {
    need of[STAMP_ROOM];
    bool held[STAMP_ROOM];
    uint32_t held_count, next, joins, copies, drops, made;
    const char *fault;
} stamps;

static inline need need_join(need a, need b)
{
    for (unsigned i = 0; i < STAMP_STREAMS; i++) {
        a.upto[i] = a.upto[i] > b.upto[i] ? a.upto[i] : b.upto[i];
    }
    return a;
}

static inline bool need_covers(need a, need b)
{
    for (unsigned i = 0; i < STAMP_STREAMS; i++) {
        if (a.upto[i] < b.upto[i]) {
            return false;
        }
    }
    return true;
}

static inline need need_of_stream(uint32_t key, uint64_t ticket)
{
    need result = {{0}};
    result.upto[key] = (uint32_t)ticket;
    return result;
}

/* Numbers are used round robin, so that one that was dropped stays unheld for long. */
static inline uint32_t stamps_make(stamps *all, need content)
{
    if (all->held_count == STAMP_ROOM) {
        all->fault = "no room for another stamp: they leak";
        return 0;
    }
    while (all->held[all->next]) {
        all->next = (all->next + 1) % STAMP_ROOM;
    }
    uint32_t number = all->next;
    all->next = (all->next + 1) % STAMP_ROOM;
    all->held[number] = true;
    all->of[number] = content;
    all->held_count++;
    all->made++;
    return number;
}

static inline bool stamps_is_held(stamps *all, uint32_t number)
{
    if (number >= STAMP_ROOM || !all->held[number]) {
        all->fault = "a stamp was used that nobody holds";
        return false;
    }
    return true;
}

static inline need stamps_need(stamps *all, uint32_t number) { return stamps_is_held(all, number) ? all->of[number] : (need){{0}}; }

static inline void stamps_drop(void *user, uint32_t number)
{
    stamps *all = user;
    if (stamps_is_held(all, number)) {
        all->held[number] = false;
        all->held_count--;
        all->drops++;
    }
}

/* The result is neither of the two, as a caller must not rely on. */
static inline uint32_t stamps_join(void *user, uint32_t a, uint32_t b)
{
    stamps *all = user;
    if (a == b) {
        all->fault = "a stamp was joined with itself: held twice";
        return a;
    }
    need content = need_join(stamps_need(all, a), stamps_need(all, b));
    stamps_drop(all, a);
    stamps_drop(all, b);
    all->joins++;
    return stamps_make(all, content);
}

static inline uint32_t stamps_copy(void *user, uint32_t number)
{
    stamps *all = user;
    all->copies++;
    return stamps_make(all, stamps_need(all, number));
}

static inline uint32_t stamps_of_stream(void *user, uint32_t key, uint64_t ticket)
{
    return stamps_make(user, need_of_stream(key, ticket));
}

static inline cmi_heap_source stamps_source(stamps *all, uint64_t page_bytes)
{
    return (cmi_heap_source){.page_bytes = page_bytes,
                             .user = all,
                             .join_stamps = stamps_join,
                             .copy_stamp = stamps_copy,
                             .drop_stamp = stamps_drop,
                             .stamp_of = stamps_of_stream};
}

#endif
