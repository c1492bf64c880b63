/*
 * Owns what the judge remembers of physical pages: which pool's they are, which capture set keeps them, and who has used them since the
 * live capture began. From that it says which idle pages a capture leaves to whom: a captured stream gets what the pools saw finished when
 * the capture began; any other one that and what only it has used since. It also gets what was free at the beginning, whoever has to finish
 * with it, since there is an event behind that to wait for; but memory that others free meanwhile has none, and may have joined any of it.
 * One thread. Called by judge.c and by the operations.
 */
#include "judge.h"

static world_page *page_of(world *w, uint64_t handle)
{
    for (unsigned i = 0; i < w->page_count; i++) {
        if (w->pages[i].handle == handle) {
            return &w->pages[i];
        }
    }
    return NULL;
}

bool past_is_graph_page(const world *w, uint64_t handle)
{
    for (unsigned i = 0; i < w->page_count; i++) {
        if (w->pages[i].handle == handle) {
            return w->pages[i].set < POOL_SLOTS;
        }
    }
    return false;
}

static bool is_mapped(const simcuda_mapping *mappings, size_t count, uint64_t handle)
{
    for (size_t i = 0; i < count; i++) {
        if (mappings[i].handle == handle) {
            return true;
        }
    }
    return false;
}

static bool is_live(const view *v, uint64_t handle)
{
    for (size_t i = 0; i < v->part_count; i++) {
        if (v->parts[i].handle == handle) {
            return true;
        }
    }
    return false;
}

/* Pages that went back to the driver are forgotten, and sets that were released keep none. */
static void forget_gone(world *w, const simcuda_mapping *mappings, size_t count)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < w->page_count; i++) {
        world_page page = w->pages[i];
        page.set = page.set < POOL_SLOTS && w->pools[page.set].is_set ? page.set : POOL_SLOTS;
        if (is_mapped(mappings, count, page.handle)) {
            w->pages[kept++] = page;
        }
    }
    w->page_count = kept;
}

bool past_look(world *w, view *v, const simcuda_mapping *mappings, size_t count)
{
    forget_gone(w, mappings, count);
    for (size_t i = 0; i < v->part_count; i++) {
        const part *one = &v->parts[i];
        bool stays = w->pools[one->root].segments || w->blocks[one->block].exportable; /* it goes to the driver, or to nobody */
        if (stays || (i && one->handle == v->parts[i - 1].handle && one->set == POOL_SLOTS)) {
            continue;
        }
        world_page *page = page_of(w, one->handle);
        if (!page && w->page_count == PAGES_MOST) {
            return world_fault(w, "judge: more pages than the device has");
        }
        if (!page) { /* what came during a capture is not known to be idle */
            page = &w->pages[w->page_count++];
            *page = (world_page){.handle = one->handle, .set = POOL_SLOTS, .users = w->capturing ? BY_ANYBODY : 0};
        }
        page->root = one->root;
        page->set = one->set < POOL_SLOTS ? one->set : page->set;
    }
    for (unsigned i = 0; i < w->page_count; i++) {
        bool kept = w->pages[i].set < POOL_SLOTS && !is_live(v, w->pages[i].handle);
        v->live_pages[kept ? w->pools[w->pages[i].set].parent : 0] += kept;
    }
    return true;
}

static uint32_t users_of(const world_block *block, unsigned stream)
{
    uint32_t users = UINT32_C(1) << stream;
    for (unsigned i = 0; i < STREAM_SLOTS; i++) {
        users |= (uint32_t)(block->touches[i] != NOT_TOUCHED) << i;
    }
    return block->stream < STREAM_SLOTS && !block->sealed ? users | 1u << block->stream : BY_ANYBODY;
}

void past_free(world *w, const world_block *block, unsigned stream)
{
    if (!w->capturing) {
        return;
    }
    w->have_called |= users_of(block, stream);
    static simcuda_mapping mappings[8192];
    size_t count = w->device.mappings(mappings, sizeof mappings / sizeof mappings[0]);
    for (size_t i = 0; i < count && i < sizeof mappings / sizeof mappings[0]; i++) {
        const simcuda_mapping *at = &mappings[i];
        world_page *page =
            at->address < block->address + block->bytes && block->address < at->address + at->bytes ? page_of(w, at->handle) : NULL;
        if (page) {
            page->users |= users_of(block, stream);
        }
    }
}

void past_begin_capture(world *w)
{
    /* Only where the device does everything at once does an event that is recorded now tell now that all is done. */
    w->all_was_done = w->settings->order == 0 && !w->gate_count;
    w->have_called = 0;
    for (unsigned i = 0; i < w->page_count; i++) {
        w->pages[i].users = 0;
    }
}

void past_forget(world *w)
{
    w->all_was_done = false;
    w->have_called = BY_ANYBODY;
}

uint64_t past_idle_in_capture(const world *w, const view *v, unsigned root, unsigned stream, bool may_wait)
{
    bool captured = stream == w->capture_stream;
    uint32_t allowed = captured ? 0 : 1u << stream;
    bool waits = may_wait && !captured && !(w->have_called & ~allowed);
    uint64_t pages = 0;
    for (unsigned i = 0; i < w->page_count && (w->all_was_done || waits); i++) {
        const world_page *page = &w->pages[i];
        pages += page->root == root && page->set == POOL_SLOTS && !(page->users & ~allowed) && !is_live(v, page->handle);
    }
    return pages;
}
