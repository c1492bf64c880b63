/*
 * Matches allocations with their frees, which a history names by address alone, and walks the history for what was held at its peaks. No
 * locks; everything belongs to the call. Called by tools and by the writers.
 */
#include "trace/build.h"
#include <stdlib.h>
#include <string.h>

enum { LIVE_UNIT = 512 };

typedef struct matcher {
    const cmi_picture *p;
    uint32_t device;
    cmi_picture_lives *out;
    cmi_index open; /* by hash of the address: the last life there */
    uint32_t *last; /* by number in the index */
    size_t last_count;
} matcher;

static uint64_t rounded(uint64_t bytes) { return (bytes + LIVE_UNIT - 1) / LIVE_UNIT * LIVE_UNIT; }

/* Where the number of the last life at an address is kept; NULL without host memory. */
static uint32_t *last_at(matcher *m, uint64_t address)
{
    uint32_t hash = cmi_index_hash(&address, sizeof address), number;
    size_t at = SIZE_MAX;
    if (!cmi_index_reserve(&m->open))
        return NULL;
    while ((number = cmi_index_next(&m->open, hash, &at)) != CMI_NONE)
        if (m->out->lives[m->last[number]].address == address)
            return &m->last[number];
    if (!cmi_grow(&m->last, m->last_count, sizeof *m->last))
        return NULL;
    cmi_index_put(&m->open, at, hash, (uint32_t)m->last_count);
    m->last[m->last_count] = CMI_NONE;
    return &m->last[m->last_count++];
}

static cmi_picture_life *add_life(matcher *m, uint32_t *last)
{
    if (m->out->count >= CMI_NONE || !cmi_grow(&m->out->lives, m->out->count, sizeof *m->out->lives))
        return NULL;
    *last = (uint32_t)m->out->count;
    cmi_picture_life *life = &m->out->lives[m->out->count++];
    *life = (cmi_picture_life){.alloc_event = CMI_NONE,
                               .free_event = CMI_NONE,
                               .done_event = CMI_NONE,
                               .block = CMI_NONE,
                               .replaces = CMI_NONE,
                               .device = m->device};
    return life;
}

static cmi_picture_life *life_of_event(matcher *m, uint32_t *last, const cmi_picture_event *event)
{
    cmi_picture_life *life = add_life(m, last);
    if (life != NULL) {
        life->address = event->address;
        life->bytes = event->bytes;
        life->stream = event->stream;
        life->stack = event->stack;
        life->tag = event->tag;
    }
    return life;
}

/* An event that names a block by its address. false without host memory. */
static bool take_event(matcher *m, uint32_t number)
{
    const cmi_picture_event *event = &m->p->events[number];
    uint32_t *last = last_at(m, event->address);
    if (last == NULL)
        return false;
    uint32_t before = *last;
    cmi_picture_life *life = before != CMI_NONE ? &m->out->lives[before] : NULL;
    bool ended = life != NULL && life->done_event != CMI_NONE;
    if (event->kind == CMI_EVENT_ALLOC) {
        if (life != NULL && !ended) {
            life->free_event = life->free_event == CMI_NONE ? number : life->free_event;
            life->done_event = number;
        }
        life = life_of_event(m, last, event);
        if (life == NULL)
            return false;
        life->alloc_event = number;
        life->replaces = before != CMI_NONE && !ended ? before : CMI_NONE;
    } else if (ended) { /* freed twice: the history has a gap, and the second says nothing */
        return true;
    } else if (life == NULL) { /* was there before the history */
        life = life_of_event(m, last, event);
        if (life == NULL)
            return false;
        life->stack = 0; /* that of its end */
    }
    if (event->kind == CMI_EVENT_FREE_REQUESTED || event->kind == CMI_EVENT_FREE_COMPLETED) {
        life->free_event = life->free_event == CMI_NONE ? number : life->free_event;
        life->done_event = event->kind == CMI_EVENT_FREE_COMPLETED ? number : life->done_event;
    }
    m->out->of_event[number] = *last;
    return true;
}

/* What the state holds at the end: blocks of the history, or such as were there before it and all through it. */
static bool take_blocks(matcher *m)
{
    for (uint32_t i = 0; i < m->p->block_count; i++) {
        const cmi_picture_block *block = &m->p->blocks[i];
        if (block->state == CMI_BLOCK_IDLE || m->p->segments[block->segment].device != m->device)
            continue;
        uint32_t *last = last_at(m, block->address);
        if (last == NULL)
            return false;
        cmi_picture_life *life = *last != CMI_NONE ? &m->out->lives[*last] : NULL;
        bool same = life != NULL && life->done_event == CMI_NONE && (block->state == CMI_BLOCK_PENDING || life->free_event == CMI_NONE);
        if (!same && block->state == CMI_BLOCK_PENDING && life == NULL)
            continue; /* freed before the history: nobody's any more */
        if (!same) {
            if (life != NULL) /* the history ended that life, and does not tell of the next */
                continue;
            life = add_life(m, last);
            if (life == NULL)
                return false;
            life->address = block->address;
            life->bytes = block->requested_bytes != 0 ? block->requested_bytes : block->bytes;
            life->stream = block->stream;
            life->stack = block->stack;
            life->tag = block->tag;
        }
        life->block = i;
    }
    return true;
}

/* ---- order ----------------------------------------------------------------------------------------------------------------------------
 */

typedef struct place {
    uint64_t address;
    uint32_t number;
} place;

static int by_address(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* Those of before the history come first, by address; the others are in order as they are. */
static bool order_lives(const matcher *m)
{
    cmi_picture_lives *out = m->out;
    size_t count = out->count, early = 0, late = 0;
    cmi_picture_life *ordered = malloc((count + 1) * sizeof *ordered);
    place *places = malloc((count + 1) * sizeof *places);
    uint32_t *moved = malloc((count + 1) * sizeof *moved);
    bool done = ordered != NULL && places != NULL && moved != NULL;
    for (uint32_t i = 0; done && i < count; i++)
        if (out->lives[i].alloc_event == CMI_NONE)
            places[early++] = (place){out->lives[i].address, i};
    if (done && early > 1)
        qsort(places, early, sizeof *places, by_address);
    for (uint32_t i = 0; done && i < early; i++)
        moved[places[i].number] = i;
    for (uint32_t i = 0; done && i < count; i++) {
        if (out->lives[i].alloc_event != CMI_NONE)
            moved[i] = (uint32_t)(early + late++);
        ordered[moved[i]] = out->lives[i];
    }
    for (size_t i = 0; done && i < count; i++)
        if (ordered[i].replaces != CMI_NONE)
            ordered[i].replaces = moved[ordered[i].replaces];
    for (size_t i = 0; done && i < m->p->event_count; i++)
        if (out->of_event[i] != CMI_NONE)
            out->of_event[i] = moved[out->of_event[i]];
    if (done) {
        free(out->lives);
        out->lives = ordered;
    } else
        free(ordered);
    free(places);
    free(moved);
    return done;
}

/* ---- what was held --------------------------------------------------------------------------------------------------------------------
 */

static int64_t reserved_step(const cmi_picture_event *event)
{
    if (event->kind == CMI_EVENT_SEGMENT_ALLOC || event->kind == CMI_EVENT_SEGMENT_MAP)
        return (int64_t)event->bytes;
    return event->kind == CMI_EVENT_SEGMENT_FREE || event->kind == CMI_EVENT_SEGMENT_UNMAP ? -(int64_t)event->bytes : 0;
}

/* Reserved bytes before the history: what the state holds less all steps, or, without a state, enough for the lowest point. */
static uint64_t reserved_before(const matcher *m)
{
    cmi_picture_totals totals;
    __int128 sum = 0, lowest = 0;
    bool any = false;
    for (size_t i = 0; i < m->p->event_count; i++) {
        int64_t step = m->p->events[i].device == m->device ? reserved_step(&m->p->events[i]) : 0;
        sum += step;
        lowest = sum < lowest ? sum : lowest;
        any = any || step != 0;
    }
    if (!m->p->has_state)
        return any ? (uint64_t)-lowest : CMI_UNKNOWN;
    cmi_picture_total(m->p, m->device, &totals);
    __int128 before = (__int128)totals.reserved_bytes - sum;
    return before > -lowest ? (uint64_t)before : (uint64_t)-lowest;
}

static void walk(const matcher *m)
{
    const cmi_picture_lives *lives = m->out;
    cmi_picture_run *run = &m->out->run;
    uint64_t live = 0;
    *run = (cmi_picture_run){.peak_live_event = CMI_NONE, .peak_reserved_event = CMI_NONE, .first_reserved_bytes = reserved_before(m)};
    for (size_t i = 0; i < lives->count && lives->lives[i].alloc_event == CMI_NONE; i++)
        live += rounded(lives->lives[i].bytes);
    uint64_t reserved = run->first_reserved_bytes;
    run->first_live_bytes = run->peak_live_bytes = live;
    run->peak_reserved_bytes = reserved;
    for (uint32_t i = 0; i < m->p->event_count; i++) {
        const cmi_picture_event *event = &m->p->events[i];
        const cmi_picture_life *life = lives->of_event[i] != CMI_NONE ? &lives->lives[lives->of_event[i]] : NULL;
        if (event->device != m->device)
            continue;
        if (reserved != CMI_UNKNOWN)
            reserved += (uint64_t)reserved_step(event);
        if (reserved != CMI_UNKNOWN && reserved > run->peak_reserved_bytes) {
            run->peak_reserved_bytes = reserved;
            run->peak_reserved_event = i;
        }
        if (life != NULL && life->free_event == i)
            live -= rounded(life->bytes);
        if (life != NULL && life->alloc_event == i) {
            const cmi_picture_life *before = life->replaces != CMI_NONE ? &lives->lives[life->replaces] : NULL;
            live -= before != NULL && before->free_event == i ? rounded(before->bytes) : 0;
            live += rounded(life->bytes);
        }
        if (live > run->peak_live_bytes) {
            run->peak_live_bytes = live;
            run->peak_live_event = i;
        }
    }
    run->stranded_bytes = CMI_UNKNOWN;
    if (run->peak_reserved_bytes != CMI_UNKNOWN)
        run->stranded_bytes = run->peak_reserved_bytes > run->peak_live_bytes ? run->peak_reserved_bytes - run->peak_live_bytes : 0;
}

int cmi_picture_match(const cmi_picture *picture, uint32_t device, cmi_picture_lives *lives)
{
    matcher m = {.p = picture, .device = device, .out = lives};
    memset(lives, 0, sizeof *lives);
    lives->of_event = malloc((picture->event_count + 1) * sizeof *lives->of_event);
    bool done = lives->of_event != NULL;
    if (done)
        memset(lives->of_event, 0xff, (picture->event_count + 1) * sizeof *lives->of_event);
    for (uint32_t i = 0; done && i < picture->event_count; i++)
        if (picture->events[i].device == device && picture->events[i].kind <= CMI_EVENT_USE)
            done = take_event(&m, i);
    done = done && take_blocks(&m) && order_lives(&m);
    if (done)
        walk(&m);
    else
        cmi_picture_lives_free(lives);
    free(m.open.slots);
    free(m.last);
    return done ? 0 : -1;
}

void cmi_picture_lives_free(cmi_picture_lives *lives)
{
    free(lives->lives);
    free(lives->of_event);
    memset(lives, 0, sizeof *lives);
}
