/*
 * The table of pinned blocks by address: an open hash, so that a free finds what it needs without touching the memory. Owns the table and
 * the room for pending addresses; guarded by the device lock; called by pinned.c.
 */
#include "pinned/pinned.h"

enum { FIRST_ROOM = 64 };

static uint32_t home(const cmi_pinned *pinned, uint64_t address)
{
    address *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(address >> 32) & (pinned->table_room - 1);
}

static uint32_t place_of(const cmi_pinned *pinned, uint64_t address)
{
    uint32_t at = home(pinned, address);
    while (pinned->table[at].address && pinned->table[at].address != address) {
        at = (at + 1) & (pinned->table_room - 1);
    }
    return at;
}

static bool grow_table(cmi_pinned *pinned)
{
    uint32_t old_room = pinned->table_room;
    uint32_t room = old_room ? old_room * 2 : FIRST_ROOM;
    cmi_pinned_block *old = pinned->table, *grown = cmi_meta_alloc(room * sizeof *grown);
    if (!grown) {
        return false;
    }
    pinned->table = grown;
    pinned->table_room = room;
    for (uint32_t i = 0; i < old_room; i++) {
        if (old[i].address) {
            grown[place_of(pinned, old[i].address)] = old[i];
        }
    }
    cmi_meta_free(old, old_room * sizeof *old);
    return true;
}

bool cmi_pinned_reserve_block(cmi_pinned *pinned)
{
    if (pinned->small_count >= pinned->pending_room) {
        uint32_t room = pinned->pending_room ? pinned->pending_room * 2 : FIRST_ROOM;
        uint64_t *grown = cmi_meta_resize(pinned->pending, pinned->pending_room * sizeof *grown, room * sizeof *grown);
        if (!grown) {
            return false;
        }
        pinned->pending = grown;
        pinned->pending_room = room;
    }
    return pinned->table_count < pinned->table_room / 2 || grow_table(pinned);
}

void cmi_pinned_add_block(cmi_pinned *pinned, const cmi_pinned_block *block)
{
    pinned->table[place_of(pinned, block->address)] = *block;
    pinned->table_count++;
    pinned->small_count += block->small;
}

cmi_pinned_block *cmi_pinned_find_block(const cmi_pinned *pinned, uint64_t address)
{
    if (!address || !pinned->table_room) {
        return NULL;
    }
    cmi_pinned_block *block = &pinned->table[place_of(pinned, address)];
    return block->address ? block : NULL;
}

/* Close the gap: whatever lies behind it and would not be found across it moves up. */
void cmi_pinned_drop_block(cmi_pinned *pinned, cmi_pinned_block *block)
{
    uint32_t mask = pinned->table_room - 1, gap = (uint32_t)(block - pinned->table);
    pinned->small_count -= block->small;
    pinned->table_count--;
    for (uint32_t at = (gap + 1) & mask; pinned->table[at].address; at = (at + 1) & mask) {
        uint32_t from = home(pinned, pinned->table[at].address);
        if (((at - from) & mask) >= ((at - gap) & mask)) {
            pinned->table[gap] = pinned->table[at];
            gap = at;
        }
    }
    pinned->table[gap] = (cmi_pinned_block){0};
}
