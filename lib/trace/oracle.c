/*
 * An independent judge of refusals: counts the physical pages that carry no live byte and those that can still be had. It sees the
 * device's mapping tables and the caller's list of live blocks, and asks the pool nothing. No locks, no state. Called by the replayer.
 */
#include "trace/replay.h"
#include <stdlib.h>

static int by_address(const void *a, const void *b)
{
    const cmi_live_block *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

static int by_handle(const void *a, const void *b)
{
    const cmi_replay_mapping *x = a, *y = b;
    return x->handle < y->handle ? -1 : x->handle > y->handle;
}

/*
 * Bytes of handles that carry a live byte. A handle can be mapped at several addresses, some of them left over; a live block lies in the
 * pages mapped at its own address, so only those mappings that overlap a block count, each handle once.
 */
static uint64_t live_handle_bytes(cmi_replay_mapping *mapping, size_t mappings, const cmi_live_block *live, size_t live_count)
{
    size_t used = 0, block = 0;
    for (size_t i = 0; i < mappings; i++) {
        while (block < live_count && live[block].address + live[block].bytes <= mapping[i].address)
            block++;
        if (block < live_count && live[block].address < mapping[i].address + mapping[i].bytes)
            mapping[used++] = mapping[i];
    }
    qsort(mapping, used, sizeof *mapping, by_handle);
    uint64_t sum = 0;
    for (size_t i = 0; i < used; i++)
        if (i == 0 || mapping[i].handle != mapping[i - 1].handle)
            sum += mapping[i].bytes;
    return sum;
}

static uint64_t above(uint64_t have, uint64_t taken) { return have > taken ? have - taken : 0; }

bool cmi_oracle_fits(const cmi_oracle *oracle, uint64_t bytes, cmi_live_block *live, size_t live_count)
{
    const cmi_replay_device *device = oracle->device;
    const uint64_t page = oracle->page_bytes;
    cmi_replay_memory memory;
    device->memory(device->self, &memory);

    uint64_t obtainable = above(memory.free_bytes, oracle->headroom_bytes);
    if (oracle->limit_bytes != 0 && above(oracle->limit_bytes, memory.handle_bytes) < obtainable)
        obtainable = above(oracle->limit_bytes, memory.handle_bytes);
    uint64_t rounded = (bytes + CMI_TRACE_BLOCK_UNIT - 1) / CMI_TRACE_BLOCK_UNIT * CMI_TRACE_BLOCK_UNIT;
    uint64_t needed = (rounded + page - 1) / page, pages = obtainable / page;
    if (pages >= needed)
        return true;

    /* Live bytes fill at least so many pages: most refusals are settled without looking further. */
    uint64_t live_bytes = 0;
    for (size_t i = 0; i < live_count; i++)
        live_bytes += live[i].bytes;
    if (pages + above(memory.handle_bytes, live_bytes) / page < needed)
        return false;

    cmi_replay_mapping none, *mapping;
    size_t room = device->mappings(device->self, &none, 0);
    mapping = malloc((room + 1) * sizeof *mapping);
    if (mapping == NULL)
        return false;
    device->mappings(device->self, mapping, room);
    qsort(live, live_count, sizeof *live, by_address);
    uint64_t idle = above(memory.handle_bytes, live_handle_bytes(mapping, room, live, live_count));
    free(mapping);
    return pages + idle / page >= needed;
}
