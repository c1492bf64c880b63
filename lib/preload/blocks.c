/*
 * Live blocks that programs got from a pool, by address: what they asked for and in which context, which the pool does not keep. Owns the
 * table, cut into shards of one lock each; nothing is called under a lock. Called by every replacement that is given a device address.
 *
 * A free takes the block out first, so that of two frees at once one gets it and the other is the driver's to refuse.
 */
#include "preload/preload.h"

#include <pthread.h>

enum { SHARDS = 64, FIRST_ROOM = 64 };

typedef struct shard {
    pthread_mutex_t lock;
    preload_block *blocks; /* open addressing, linear, at most half full */
    uint32_t room, count;
} __attribute__((aligned(64))) shard;

static shard shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static uint64_t hash(uint64_t address)
{
    address = (address >> 9) * UINT64_C(0x9e3779b97f4a7c15);
    return address ^ address >> 32;
}

static shard *shard_of(uint64_t address) { return &shards[hash(address) % SHARDS]; }

static uint32_t home(const shard *in, uint64_t address) { return (uint32_t)(hash(address) / SHARDS) & (in->room - 1); }

static uint32_t place_of(const shard *in, uint64_t address)
{
    uint32_t at = home(in, address);
    while (in->blocks[at].address && in->blocks[at].address != address) {
        at = (at + 1) & (in->room - 1);
    }
    return at;
}

static bool make_room(shard *in)
{
    if (in->count < in->room / 2) {
        return true;
    }
    shard larger = {.room = in->room ? in->room * 2 : FIRST_ROOM};
    larger.blocks = cmi_preload_map(larger.room * sizeof *larger.blocks);
    if (!larger.blocks) {
        return false;
    }
    for (uint32_t i = 0; i < in->room; i++) {
        if (in->blocks[i].address) {
            larger.blocks[place_of(&larger, in->blocks[i].address)] = in->blocks[i];
        }
    }
    cmi_preload_unmap(in->blocks, in->room * sizeof *in->blocks);
    in->blocks = larger.blocks;
    in->room = larger.room;
    return true;
}

bool cmi_preload_block_add(const preload_block *block)
{
    shard *in = shard_of(block->address);
    pthread_mutex_lock(&in->lock);
    bool room = make_room(in);
    if (room) {
        in->blocks[place_of(in, block->address)] = *block;
        in->count++;
    }
    pthread_mutex_unlock(&in->lock);
    return room;
}

/* Close the gap: whatever lies behind it and would not be found across it moves up. */
static void drop(shard *in, uint32_t gap)
{
    uint32_t mask = in->room - 1;
    for (uint32_t at = (gap + 1) & mask; in->blocks[at].address; at = (at + 1) & mask) {
        uint32_t from = home(in, in->blocks[at].address);
        if (((at - from) & mask) >= ((at - gap) & mask)) {
            in->blocks[gap] = in->blocks[at];
            gap = at;
        }
    }
    in->blocks[gap] = (preload_block){0};
    in->count--;
}

static bool look(uint64_t address, preload_block *block, bool take)
{
    bool found = false;
    shard *in = shard_of(address);
    pthread_mutex_lock(&in->lock);
    if (address && in->count) {
        uint32_t at = place_of(in, address);
        found = in->blocks[at].address != 0;
        if (found) {
            *block = in->blocks[at];
        }
        if (found && take) {
            drop(in, at);
        }
    }
    pthread_mutex_unlock(&in->lock);
    return found;
}

bool cmi_preload_block_find(uint64_t address, preload_block *block) { return look(address, block, false); }

bool cmi_preload_block_take(uint64_t address, preload_block *block) { return look(address, block, true); }

/* The first block for which it holds that its context is `context`, or (other) that it is not. */
static bool search(int device, CUcontext context, bool other, bool take, preload_block *block)
{
    bool found = false;
    for (int i = 0; i < SHARDS && !found; i++) {
        shard *in = &shards[i];
        pthread_mutex_lock(&in->lock);
        for (uint32_t at = 0; at < in->room && in->count && !found; at++) {
            *block = in->blocks[at];
            bool same = !context || block->context == context;
            found = block->address && block->device == device && same != other;
            if (found && take) {
                drop(in, at);
            }
        }
        pthread_mutex_unlock(&in->lock);
    }
    return found;
}

bool cmi_preload_block_take_any(int device, CUcontext context, preload_block *block) { return search(device, context, false, true, block); }

cmpool_status cmi_preload_block_release(cmpool_t pool, const preload_block *block)
{
    void *memory = (void *)(uintptr_t)(block->address & ~PRELOAD_HOST);
    return block->address & PRELOAD_HOST ? cmpool_pinned_free_unordered(pool, memory) : cmpool_free_unordered(pool, memory);
}

bool cmi_preload_block_others(int device, CUcontext context)
{
    preload_block block;
    return search(device, context, true, false, &block);
}
