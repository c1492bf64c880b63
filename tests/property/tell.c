/*
 * Owns what a random program says and asks about its memory: tags, steps, snapshots, figures, what was refused and why. Nothing of it may
 * change what the pools do. One thread. Called by run.c through the list of operations.
 */
#include "world.h"

#include <fcntl.h>
#include <unistd.h>

enum { TAGS_DEEP = 2 };
static const char *const tag_names[] = {"layer", "optimizer"};

bool do_tag(world *w, const operation *step)
{
    bool push = step->flags & 1 && w->tags < TAGS_DEEP;
    if (push) {
        w->tags++;
        return world_expect(w, "cmpool_tag_push", cmpool_tag_push(tag_names[step->flags >> 1 & 1]), CMPOOL_OK);
    }
    cmpool_status expected = w->tags ? CMPOOL_OK : CMPOOL_ERR_INVALID_ARGUMENT;
    w->tags -= w->tags != 0;
    return world_expect(w, "cmpool_tag_pop", cmpool_tag_pop(), expected);
}

bool world_drop_tags(world *w)
{
    bool good = true;
    while (good && w->tags) {
        good = do_tag(w, &(operation){.flags = 0});
    }
    return good;
}

void world_warm_tags(void)
{
    for (unsigned i = 0; i < 4; i++) { /* names stay for the life of the process, each under each */
        if (cmpool_tag_push(tag_names[i & 1]) == CMPOOL_OK) {
            if (cmpool_tag_push(tag_names[i >> 1]) == CMPOOL_OK) {
                cmpool_tag_pop();
            }
            cmpool_tag_pop();
        }
    }
}

bool world_pause_some(world *w, cmpool_t pool, unsigned flags, cmpool_status *status)
{
    cmpool_pause_request request = {.struct_size = sizeof request,
                                    .contents = flags & 1 ? CMPOOL_KEEP : CMPOOL_DISCARD,
                                    .flags = flags & 1 ? CMPOOL_PAUSE_VERIFY : 0,
                                    .tag_name = tag_names[flags >> 1 & 1]};
    *status = cmpool_pause_ex(pool, &request);
    return *status == CMPOOL_ERR_BUSY || request.fixed_count == 0 || world_fault(w, "pause: fixed memory, and no refusal");
}

/* What a refusal says of itself has to fit together. */
static bool is_plausible(const cmpool_refusal *refusal)
{
    char text[4096];
    size_t length = cmpool_refusal_text(refusal, text, sizeof text);
    bool known = refusal->status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || refusal->status == CMPOOL_ERR_LIMIT;
    return known && length > 0 && length < sizeof text && text[length] == '\0' && refusal->number > 0 && refusal->request_bytes > 0 &&
           refusal->live_bytes <= refusal->reserved_bytes && refusal->reserved_bytes <= refusal->process_bytes &&
           refusal->process_bytes <= refusal->device_bytes && refusal->idle_bytes <= refusal->reserved_bytes &&
           refusal->largest_free_bytes <= refusal->reserved_bytes;
}

/* By the thread that was refused, which may be the second one. */
static void note_refusal(void *user, const cmpool_refusal *refusal)
{
    world *w = user;
    cmpool_refusal again = {.struct_size = sizeof again};
    bool same = cmpool_refusal_get(refusal->pool, &again) == CMPOOL_OK && again.number >= refusal->number;
    if (!same || !is_plausible(refusal)) {
        atomic_store(&w->bad_refusal, true);
    }
}

bool do_refusal_callback(world *w, const operation *step)
{
    cmpool_t pool = w->pools[step->pool].handle;
    cmpool_status status = cmpool_set_refusal_callback(pool, step->flags & 1 ? note_refusal : NULL, w);
    return world_expect(w, "cmpool_set_refusal_callback", status, pool ? CMPOOL_OK : CMPOOL_ERR_INVALID_POOL);
}

static bool write_snapshot(world *w, bool by_path)
{
    if (by_path) {
        return world_expect(w, "cmpool_snapshot_write", cmpool_snapshot_write("/dev/null"), CMPOOL_OK);
    }
    int file = open("/dev/null", O_WRONLY | O_CLOEXEC);
    cmpool_status status = cmpool_snapshot_write_fd(file);
    close(file);
    return world_expect(w, "cmpool_snapshot_write_fd", status, CMPOOL_OK);
}

bool do_tell(world *w, const operation *step)
{
    cmpool_t pool = w->pools[step->pool].handle;
    const world_block *block = &w->blocks[step->block];
    cmpool_block_info info = {.struct_size = sizeof info};
    bool is_pinned = block->bytes && cmpool_pinned_lookup((void *)(uintptr_t)block->address, &info) != CMPOOL_ERR_NOT_OURS;
    if (is_pinned) {
        return world_fault(w, "pinned: device memory is said to be pinned");
    }
    if (!world_expect(w, "cmpool_step", cmpool_step(), CMPOOL_OK) || !write_snapshot(w, step->flags & 1)) {
        return false;
    }
    if (!pool) {
        return true;
    }
    cmpool_refusal refusal = {.struct_size = sizeof refusal};
    cmpool_status status = cmpool_refusal_get(pool, &refusal);
    if (status == CMPOOL_OK ? !is_plausible(&refusal) : status != CMPOOL_ERR_INVALID_ARGUMENT) {
        return world_fault(w, "refusal: cmpool_refusal_get gave %s and what does not fit together", cmpool_status_name(status));
    }
    cmpool_pinned_stats pinned = {.struct_size = sizeof pinned};
    return world_expect(w, "cmpool_pinned_stats_get", cmpool_pinned_stats_get(pool, &pinned), CMPOOL_OK) &&
           world_expect(w, "cmpool_context_add", cmpool_context_add(0, w->context), CMPOOL_OK) &&
           world_expect(w, "cmpool_context_remove", cmpool_context_remove(0, w->context), CMPOOL_OK) &&
           (!(step->flags & 2) || world_expect(w, "cmpool_stats_reset_peaks", cmpool_stats_reset_peaks(pool), CMPOOL_OK));
}
