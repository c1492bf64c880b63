/*
 * Mappings: which physical bytes an address shows. A table with one entry per page of address space makes the way from address to bytes
 * two array steps. Also the reserved ranges of cuMemAddressReserve, and memory that comes with its addresses (cuMemAlloc, pools, pinned
 * host memory). Guarded by sim.lock; called by vmm.c, malloc.c, host.c, pool.c and the checker.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ADDRESS_BITS 48                 /* what user space has on x86-64 and aarch64 */
#define LEAF_BITS 30                    /* a leaf of the table covers 1 GiB */
#define SMALL_BYTES (UINT64_C(1) << 20) /* below, cuMemAlloc shares pages: charge by 512 bytes */

static sim_mapping **leaves[1u << (ADDRESS_BITS - LEAF_BITS)];
static size_t first_leaf = SIZE_MAX, last_leaf; /* of those there are */

typedef struct mapping_list {
    sim_mapping **list;
    uint32_t count, room;
} mapping_list;
static mapping_list vmm, others;
static uint64_t vmm_peak;
static sim_mapping *spare_mappings; /* linked through owner */

static struct {
    sim_range **list; /* in order of address */
    uint32_t count, room;
    uint64_t bytes, peak_bytes;
} ranges;

/* ---- the table --------------------------------------------------------------------------------------------------------------------- */

sim_mapping *sim_mapping_find(uint64_t address)
{
    if (address >> ADDRESS_BITS)
        return NULL;
    sim_mapping **leaf = leaves[address >> LEAF_BITS];
    if (!leaf)
        return NULL;
    sim_mapping *mapping = leaf[(address & ((UINT64_C(1) << LEAF_BITS) - 1)) >> sim.page_shift];
    return mapping && address - mapping->address < mapping->bytes ? mapping : NULL;
}

static bool set_entries(uint64_t address, uint64_t bytes, sim_mapping *mapping)
{
    for (uint64_t at = address; at < address + bytes; at += sim.page_bytes) {
        size_t number = at >> LEAF_BITS;
        sim_mapping ***leaf = &leaves[number];
        if (!*leaf) {
            *leaf = calloc((size_t)1 << (LEAF_BITS - sim.page_shift), sizeof **leaf);
            if (!*leaf)
                return false;
            first_leaf = number < first_leaf ? number : first_leaf;
            last_leaf = number > last_leaf ? number : last_leaf;
        }
        (*leaf)[(at & ((UINT64_C(1) << LEAF_BITS) - 1)) >> sim.page_shift] = mapping;
    }
    return true;
}

static bool list_add(mapping_list *to, sim_mapping *mapping)
{
    if (to->count == to->room) {
        uint32_t room = to->room ? to->room * 2 : 256;
        sim_mapping **list = realloc(to->list, room * sizeof *list);
        if (!list)
            return false;
        to->list = list;
        to->room = room;
    }
    mapping->slot = to->count;
    to->list[to->count++] = mapping;
    return true;
}

static void list_remove(mapping_list *from, sim_mapping *mapping)
{
    sim_mapping *last = from->list[--from->count];
    from->list[mapping->slot] = last;
    last->slot = mapping->slot;
}

sim_mapping *sim_mapping_new(uint64_t address, uint64_t bytes, sim_physical *physical, sim_memory_kind kind)
{
    sim_mapping *mapping = spare_mappings;
    if (mapping)
        spare_mappings = mapping->owner;
    else if (!(mapping = malloc(sizeof *mapping)))
        return NULL;
    *mapping = (sim_mapping){.address = address, .bytes = bytes, .physical = physical, .kind = kind};
    mapping_list *list = kind == SIM_MEMORY_VMM ? &vmm : &others;
    if (!list_add(list, mapping)) {
        free(mapping);
        return NULL;
    }
    if (!set_entries(address, bytes, mapping)) {
        set_entries(address, bytes, NULL);
        list_remove(list, mapping);
        free(mapping);
        return NULL;
    }
    mapping->buffer_id = ++sim.next_id;
    physical->mappings++;
    if (kind == SIM_MEMORY_VMM && vmm.count > vmm_peak)
        vmm_peak = vmm.count;
    return mapping;
}

void sim_mapping_drop(sim_mapping *mapping)
{
    set_entries(mapping->address, mapping->bytes, NULL);
    list_remove(mapping->kind == SIM_MEMORY_VMM ? &vmm : &others, mapping);
    sim_epochs_clear(&mapping->touches);
    if (mapping->accessible)
        sim.accessible--;
    mapping->physical->mappings--;
    sim_physical_unref(mapping->physical);
    mapping->owner = spare_mappings;
    spare_mappings = mapping;
}

/* ---- memory with its addresses --------------------------------------------------------------------------------------------------- */

static uint64_t whole_pages(uint64_t bytes) { return (bytes + sim.page_bytes - 1) & ~(sim.page_bytes - 1); }

sim_mapping *sim_memory_new(sim_memory_kind kind, int device, uint64_t bytes, CUresult *code)
{
    *code = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > UINT64_C(1) << (ADDRESS_BITS - 1))
        return NULL;
    uint64_t span = whole_pages(bytes), charge = bytes < SMALL_BYTES ? (bytes + 511) & ~UINT64_C(511) : span;
    bool host = kind == SIM_MEMORY_HOST;
    sim_physical *physical = sim_physical_new(host ? -1 : device, bytes, host ? 0 : charge, code);
    if (!physical)
        return NULL;
    *code = CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t address = sim_address_take(span, sim.page_bytes, 0);
    bool usable = address != 0;
    if (usable && host) {
        usable = mprotect((void *)(uintptr_t)address, span, PROT_READ | PROT_WRITE) == 0;
        physical->view = (uint8_t *)(uintptr_t)address;
    } else if (usable) {
        usable = sim_content_map(address, physical, bytes);
    }
    sim_mapping *mapping = usable ? sim_mapping_new(address, bytes, physical, kind) : NULL;
    if (!mapping) {
        if (address) {
            sim_content_unmap(address, span);
            sim_address_give(address, span);
        }
        sim_physical_unref(physical);
        return NULL;
    }
    if (kind == SIM_MEMORY_POOL)
        mapping->readers = mapping->writers = UINT64_C(1) << device;
    *code = CUDA_SUCCESS;
    return mapping;
}

void sim_memory_delete(sim_mapping *mapping)
{
    uint64_t address = mapping->address, span = whole_pages(mapping->bytes);
    bool real = mapping->physical->view != NULL;
    sim_mapping_drop(mapping);
    if (real)
        sim_content_unmap(address, span);
    sim_address_give(address, span);
}

void sim_mapping_forget_context(sim_context *context)
{
    for (uint32_t i = others.count; i-- > 0;)
        if (others.list[i]->context == context)
            sim_memory_delete(others.list[i]);
}

/* ---- reserved ranges ------------------------------------------------------------------------------------------------------------- */

/* How many ranges begin at or below the address. */
static uint32_t ranges_up_to(uint64_t address)
{
    uint32_t low = 0, high = ranges.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ranges.list[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

sim_range *sim_range_find(uint64_t address)
{
    uint32_t index = ranges_up_to(address);
    sim_range *range = index ? ranges.list[index - 1] : NULL;
    return range && address - range->base < range->bytes ? range : NULL;
}

sim_range *sim_range_new(uint64_t base, uint64_t bytes)
{
    if (ranges.count == ranges.room) {
        uint32_t room = ranges.room ? ranges.room * 2 : 64;
        sim_range **list = realloc(ranges.list, room * sizeof *list);
        if (!list)
            return NULL;
        ranges.list = list;
        ranges.room = room;
    }
    sim_range *range = malloc(sizeof *range);
    if (!range)
        return NULL;
    *range = (sim_range){base, bytes, 0};
    uint32_t index = ranges_up_to(base);
    memmove(&ranges.list[index + 1], &ranges.list[index], (ranges.count - index) * sizeof *ranges.list);
    ranges.list[index] = range;
    ranges.count++;
    ranges.bytes += bytes;
    if (ranges.bytes > ranges.peak_bytes)
        ranges.peak_bytes = ranges.bytes;
    return range;
}

void sim_range_drop(sim_range *range)
{
    uint32_t index = ranges_up_to(range->base) - 1;
    ranges.count--;
    memmove(&ranges.list[index], &ranges.list[index + 1], (ranges.count - index) * sizeof *ranges.list);
    ranges.bytes -= range->bytes;
    free(range);
}

/* ---- census and the end -------------------------------------------------------------------------------------------------------- */

void sim_mapping_census(simcuda_census *census)
{
    census->mappings = vmm.count;
    census->peak_mappings = vmm_peak;
    census->reservations = ranges.count;
    census->reserved_address_bytes = ranges.bytes;
    census->peak_address_bytes = ranges.peak_bytes;
    for (uint32_t i = 0; i < others.count; i++) {
        const sim_mapping *mapping = others.list[i];
        if (mapping->kind == SIM_MEMORY_HOST) {
            census->pinned++;
            census->pinned_bytes += mapping->bytes;
        } else {
            census->mallocs++;
            census->malloc_bytes += mapping->bytes;
        }
    }
}

static void describe(simcuda_mapping *to, const sim_mapping *from)
{
    *to = (simcuda_mapping){from->address, from->bytes, from->physical->number};
}

int simcuda_mapping_at(size_t index, simcuda_mapping *mapping)
{
    uint64_t start = sim_panel_enter();
    bool there = index < vmm.count;
    if (there)
        describe(mapping, vmm.list[index]);
    sim_panel_leave(start);
    return there;
}

static int by_address(const void *a, const void *b)
{
    const simcuda_mapping *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

size_t simcuda_mappings(simcuda_mapping *mapping, size_t room)
{
    uint64_t start = sim_panel_enter();
    size_t count = vmm.count;
    for (size_t i = 0; i < count && i < room; i++)
        describe(&mapping[i], vmm.list[i]);
    if (room)
        qsort(mapping, count < room ? count : room, sizeof *mapping, by_address);
    sim_panel_leave(start);
    return count;
}

static void list_reset(mapping_list *list)
{
    while (list->count) {
        sim_mapping *mapping = list->list[list->count - 1];
        sim_mapping_drop(mapping);
    }
    free(list->list);
    *list = (mapping_list){NULL, 0, 0};
}

/* Before addresses and physical memory are reset. */
void sim_mapping_reset(void)
{
    void *object;
    for (size_t i = 0; sim_handle_at(SIM_PHYSICAL, i, &object); i++)
        if (object) {
            sim_physical *physical = object;
            physical->handles = 0;
            sim_physical_unref(physical); /* if mapped, it goes with its last mapping */
        }
    list_reset(&vmm);
    list_reset(&others);
    vmm_peak = 0;
    while (spare_mappings) {
        sim_mapping *mapping = spare_mappings;
        spare_mappings = mapping->owner;
        free(mapping);
    }
    for (size_t i = first_leaf; i <= last_leaf; i++) {
        free(leaves[i]);
        leaves[i] = NULL;
    }
    first_leaf = SIZE_MAX;
    last_leaf = 0;
    for (uint32_t i = 0; i < ranges.count; i++)
        free(ranges.list[i]);
    free(ranges.list);
    memset(&ranges, 0, sizeof ranges);
}
