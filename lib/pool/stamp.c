/*
 * Stamps: sets of (stream, ticket) that must be done before memory may be used, with "the whole device" as overflow. Owns the device's
 * stamp records, counted by holder; guarded by the device lock; called by the heap through its source table and by the rest of lib/pool.
 */
#include "pool/pool.h"

cmi_stamp *cmi_stamp_get(const cmi_device *device, uint32_t number)
{
    return &device->stamp_chunks[number >> CMI_STAMP_CHUNK_SHIFT][number & (CMI_STAMP_CHUNK - 1)];
}

bool cmi_stamp_reserve(cmi_device *device, uint32_t count)
{
    while (device->unused_stamp_count < count + device->earmarked_stamps) {
        if (device->stamp_chunk_count == device->stamp_chunk_room) {
            uint32_t room = device->stamp_chunk_room ? device->stamp_chunk_room * 2 : 8;
            cmi_stamp **grown = cmi_meta_resize(device->stamp_chunks, device->stamp_chunk_room * sizeof *grown, room * sizeof *grown);
            if (!grown) {
                return false;
            }
            device->stamp_chunks = grown;
            device->stamp_chunk_room = room;
        }
        cmi_stamp *chunk = cmi_meta_alloc(sizeof *chunk * CMI_STAMP_CHUNK);
        if (!chunk) {
            return false;
        }
        uint32_t first = device->stamp_chunk_count << CMI_STAMP_CHUNK_SHIFT;
        if (!first) {
            device->unused_stamp = CMI_NO_STAMP;
        }
        device->stamp_chunks[device->stamp_chunk_count++] = chunk;
        for (uint32_t i = CMI_STAMP_CHUNK; i-- > 0;) { /* unused ones are linked through the first entry's stream */
            chunk[i].entries[0].stream = device->unused_stamp;
            device->unused_stamp = first + i;
        }
        device->unused_stamp_count += CMI_STAMP_CHUNK;
    }
    return true;
}

uint32_t cmi_stamp_new(cmi_device *device, uint32_t stream, uint64_t ticket)
{
    uint32_t number = device->unused_stamp;
    cmi_stamp *stamp = cmi_stamp_get(device, number);
    device->unused_stamp = stamp->entries[0].stream;
    device->unused_stamp_count--;
    *stamp = (cmi_stamp){.holders = 1, .count = 1};
    stamp->entries[0] = (cmi_stamp_entry){ticket, stream};
    return number;
}

uint32_t cmi_stamp_new_whole(cmi_device *device)
{
    uint32_t number = cmi_stamp_new(device, CMI_NO_STREAM, device->ticket);
    cmi_stamp_get(device, number)->whole = true;
    device->whole_ticket = device->ticket;
    return number;
}

uint32_t cmi_stamp_copy(cmi_device *device, uint32_t number)
{
    if (number != CMI_NO_STAMP) {
        cmi_stamp_get(device, number)->holders++;
    }
    return number;
}

void cmi_stamp_drop(cmi_device *device, uint32_t number)
{
    if (number == CMI_NO_STAMP) {
        return;
    }
    cmi_stamp *stamp = cmi_stamp_get(device, number);
    if (--stamp->holders == 0) {
        stamp->entries[0].stream = device->unused_stamp;
        device->unused_stamp = number;
        device->unused_stamp_count++;
    }
}

/* A stamp that only the caller holds, with the same content. */
static uint32_t own(cmi_device *device, uint32_t number)
{
    cmi_stamp *stamp = cmi_stamp_get(device, number);
    if (stamp->holders == 1) {
        return number;
    }
    uint32_t mine = cmi_stamp_new(device, CMI_NO_STREAM, 0);
    cmi_stamp *copy = cmi_stamp_get(device, mine);
    *copy = *stamp;
    copy->holders = 1;
    stamp->holders--;
    return mine;
}

static void widen(cmi_device *device, cmi_stamp *stamp, uint64_t ticket)
{
    for (unsigned i = 0; i < stamp->count; i++) {
        ticket = cmi_max_u64(ticket, stamp->entries[i].ticket);
    }
    stamp->whole = true;
    stamp->count = 1;
    stamp->entries[0] = (cmi_stamp_entry){ticket, CMI_NO_STREAM};
    device->whole_ticket = cmi_max_u64(device->whole_ticket, ticket);
}

static void add_entry(cmi_device *device, cmi_stamp *stamp, uint32_t stream, uint64_t ticket)
{
    if (stamp->whole) {
        stamp->entries[0].ticket = cmi_max_u64(stamp->entries[0].ticket, ticket);
        device->whole_ticket = cmi_max_u64(device->whole_ticket, ticket);
        return;
    }
    for (unsigned i = 0; i < stamp->count; i++) {
        if (stamp->entries[i].stream == stream) {
            stamp->entries[i].ticket = cmi_max_u64(stamp->entries[i].ticket, ticket);
            return;
        }
    }
    if (stamp->count == CMI_STAMP_STREAMS) {
        widen(device, stamp, ticket);
        return;
    }
    stamp->entries[stamp->count++] = (cmi_stamp_entry){ticket, stream};
}

uint32_t cmi_stamp_add(cmi_device *device, uint32_t number, uint32_t stream, uint64_t ticket)
{
    if (number == CMI_NO_STAMP) {
        return cmi_stamp_new(device, stream, ticket);
    }
    number = own(device, number);
    add_entry(device, cmi_stamp_get(device, number), stream, ticket);
    return number;
}

uint32_t cmi_stamp_join(cmi_device *device, uint32_t a, uint32_t b)
{
    if (a == b || b == CMI_NO_STAMP) {
        cmi_stamp_drop(device, b);
        return a;
    }
    if (a == CMI_NO_STAMP) {
        return b;
    }
    a = own(device, a);
    cmi_stamp *into = cmi_stamp_get(device, a), *other = cmi_stamp_get(device, b);
    if (other->whole && !into->whole) {
        widen(device, into, other->entries[0].ticket);
    }
    for (unsigned i = 0; i < other->count && !CMI_MUTATION(JOIN_DROPS_STAMP); i++) {
        add_entry(device, into, other->entries[i].stream, other->entries[i].ticket);
    }
    cmi_stamp_drop(device, b);
    return a;
}

static bool whole_is_done(const cmi_device *device, uint64_t ticket)
{
    for (uint32_t i = 0; i < device->context_count; i++) {
        if (device->contexts[i].done < ticket) {
            return false;
        }
    }
    return true;
}

bool cmi_stamp_is_done(const cmi_device *device, uint32_t number)
{
    if (number == CMI_NO_STAMP) {
        return true;
    }
    const cmi_stamp *stamp = cmi_stamp_get(device, number);
    if (stamp->whole) {
        return whole_is_done(device, stamp->entries[0].ticket);
    }
    for (unsigned i = 0; i < stamp->count; i++) {
        if (!cmi_stream_is_done(device, stamp->entries[i].stream, stamp->entries[i].ticket)) {
            return false;
        }
    }
    return true;
}

/* ---- the heap's source table -------------------------------------------------------------------- */

static uint32_t source_join(void *user, uint32_t a, uint32_t b) { return cmi_stamp_join(user, a, b); }
static uint32_t source_copy(void *user, uint32_t stamp) { return cmi_stamp_copy(user, stamp); }
static void source_drop(void *user, uint32_t stamp) { cmi_stamp_drop(user, stamp); }
static uint32_t source_stamp_of(void *user, uint32_t key, uint64_t ticket) { return cmi_stamp_new(user, key, ticket); }

/* Is there an event to wait for behind each use that the searching stream is not behind anyway? */
static bool source_may_use(void *user, uint32_t key, const cmi_block *block)
{
    const cmi_device *device = user;
    const cmi_stamp one = {.count = 1, .entries = {{block->ticket, key}}};
    const cmi_stamp *stamp = block->stamp == CMI_NO_STAMP ? &one : cmi_stamp_get(device, block->stamp);
    bool covered = true;
    for (unsigned i = 0; i < stamp->count && covered; i++) {
        const cmi_stamp_entry *entry = &stamp->entries[i];
        covered = cmi_fence_covers(device, entry->stream, entry->ticket) ||
                  (!stamp->whole && cmi_stream_is_ordered(device, device->searching_stream, entry->stream, entry->ticket));
    }
    return covered;
}

/* While a capture is live it cannot be learned again that memory is done. */
static bool source_done_stays(void *user)
{
    (void)user;
    return cmi_capture_is_live() && !CMI_MUTATION(DONE_GIVEN_AWAY);
}

void cmi_stamp_fill_source(cmi_device *device, cmi_heap_source *source)
{
    *source = (cmi_heap_source){.page_bytes = device->page_bytes,
                                .user = device,
                                .join_stamps = source_join,
                                .copy_stamp = source_copy,
                                .drop_stamp = source_drop,
                                .stamp_of = source_stamp_of,
                                .may_use = source_may_use,
                                .done_stays = source_done_stays};
}
