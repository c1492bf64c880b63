/*
 * Public functions on pools: making and ending, limits, trims, reserve, figures. Argument checks, then one call into lib/pool. Owns
 * nothing.
 */
#include "api/inspect.h"
#include "api/registry.h"
#include "pool/cache.h"

#include <stdlib.h>

static cmpool_status read_options(cmi_options *options, const char *text)
{
    char fault[256];
    cmi_options_default(options);
    int faults = cmi_options_parse(options, getenv("CUDAMEMPOOL_CONF"), "CUDAMEMPOOL_CONF", fault, sizeof fault);
    faults += cmi_options_parse(options, text, "cmpool_config.options", fault, sizeof fault);
    cmi_log_set_level((int)options->verbose);
    if (options->nvtx) { /* tools are told of each block */
        options->thread_cache = 0;
    }
    return faults && options->strict ? CMPOOL_ERR_BAD_OPTION : CMPOOL_OK;
}

static bool config_is_sound(const cmpool_config *config)
{
    bool sound = config->struct_size == sizeof *config && config->device >= 0 && config->device < CMI_MAX_DEVICES &&
                 config->peer_count < CMI_MAX_DEVICES && (config->peers || !config->peer_count);
    for (size_t i = 0; sound && i < config->peer_count; i++) {
        sound = config->peers[i] >= 0 && config->peers[i] < CMI_MAX_DEVICES && config->peers[i] != config->device;
    }
    return sound;
}

cmpool_status cmpool_create(cmpool_t *pool, const cmpool_config *config)
{
    const cmpool_config standard = {.struct_size = sizeof standard};
    config = config ? config : &standard;
    cmpool_status status = cmi_registry_usable();
    if (pool) {
        *pool = 0;
    }
    if (status == CMPOOL_OK && (!pool || !config_is_sound(config))) {
        status = CMPOOL_ERR_INVALID_ARGUMENT;
    }
    cmi_options options;
    if (status == CMPOOL_OK) {
        status = read_options(&options, config->options);
    }
    if (status == CMPOOL_OK && options.stacks) {
        cmi_stacks_set((uint32_t)options.stacks);
    }
    if (status == CMPOOL_OK) {
        cmi_watch_process(&options);
        status = cmi_registry_create(pool, config->device, &options, config->peers, (unsigned)config->peer_count);
    }
    return cmi_registry_finish(status, "cmpool_create");
}

cmpool_status cmpool_private_create(cmpool_t *pool, cmpool_t parent)
{
    cmpool_status status = cmi_registry_usable();
    if (pool) {
        *pool = 0;
    }
    if (status == CMPOOL_OK) {
        status = pool ? cmi_registry_create_inside(pool, parent, CMI_OWNER_PRIVATE) : CMPOOL_ERR_INVALID_ARGUMENT;
    }
    return cmi_registry_finish(status, "cmpool_private_create");
}

cmpool_status cmpool_destroy(cmpool_t pool)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK) {
        status = cmi_registry_destroy(pool);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_destroy");
}

/* ---- how much a pool holds ---------------------------------------------------------------------- */

cmpool_status cmpool_trim(cmpool_t pool, size_t keep_bytes, size_t *released)
{
    cmi_entry entry;
    uint64_t pages = 0;
    if (released) {
        *released = 0;
    }
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        unsigned shift = entry.pool->heap.page_shift;
        status = cmi_trim_pool(entry.pool, keep_bytes >> shift, true, &pages);
        if (released) {
            *released = pages << shift;
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_trim");
}

cmpool_status cmpool_device_trim(int device, size_t bytes, size_t *released)
{
    cmpool_status status = cmi_registry_usable();
    if (released) {
        *released = 0;
    }
    if (status == CMPOOL_OK && (device < 0 || device >= CMI_MAX_DEVICES)) {
        status = CMPOOL_ERR_INVALID_ARGUMENT;
    }
    cmi_device *record = status == CMPOOL_OK ? cmi_registry_device(device) : NULL;
    if (record) {
        cmi_lock_acquire(&record->lock);
        if (record->pools) {
            uint64_t pages = 0;
            status = cmi_trim_device(record, cmi_div_up(bytes, record->page_bytes), true, &pages);
            if (released) {
                *released = pages * record->page_bytes;
            }
        }
        cmi_lock_release(&record->lock);
    }
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_device_trim");
}

cmpool_status cmpool_reserve(cmpool_t pool, size_t bytes)
{
    cmi_entry entry;
    cmpool_status status = bytes <= CMI_MAX_BYTES ? cmi_registry_enter(pool, &entry) : CMPOOL_ERR_INVALID_ARGUMENT;
    if (status == CMPOOL_OK) {
        status = cmi_pool_hold(entry.pool, cmi_div_up(bytes, entry.device->page_bytes));
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_reserve");
}

/* The three settings that can change while a pool lives. */
static cmpool_status change(cmpool_t pool, size_t offset, size_t bytes, cmi_entry *entry)
{
    cmpool_status status = cmi_registry_enter(pool, entry);
    if (status == CMPOOL_OK && entry->owner) {
        cmi_registry_leave(entry);
        status = CMPOOL_ERR_UNSUPPORTED;
    }
    if (status == CMPOOL_OK) {
        *(uint64_t *)((char *)&entry->pool->options + offset) = bytes;
    }
    return status;
}

cmpool_status cmpool_set_limit(cmpool_t pool, size_t bytes)
{
    cmi_entry entry;
    cmpool_status status = change(pool, offsetof(cmi_options, limit), bytes, &entry);
    if (status == CMPOOL_OK) {
        uint64_t released = 0, keep = bytes >> entry.pool->heap.page_shift;
        if (bytes && entry.pool->reserved_pages > keep) {
            (void)cmi_trim_pool(entry.pool, keep, true, &released); /* live blocks may hold it above; then nothing new is taken */
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_set_limit");
}

cmpool_status cmpool_set_floor(cmpool_t pool, size_t bytes)
{
    cmi_entry entry;
    cmpool_status status = change(pool, offsetof(cmi_options, floor), bytes, &entry);
    if (status == CMPOOL_OK) {
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_set_floor");
}

cmpool_status cmpool_set_headroom(cmpool_t pool, size_t bytes)
{
    cmi_entry entry;
    cmpool_status status = change(pool, offsetof(cmi_options, headroom), bytes, &entry);
    if (status == CMPOOL_OK) {
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_set_headroom");
}

cmpool_status cmpool_set_low_memory_callback(cmpool_t pool, cmpool_low_memory_fn fn, void *user)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        entry.pool->low_memory = fn;
        entry.pool->low_memory_user = user;
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_set_low_memory_callback");
}

/* ---- figures ------------------------------------------------------------------------------------ */

cmpool_status cmpool_stats_get(cmpool_t pool, cmpool_stats *stats)
{
    cmi_entry entry;
    bool sound = stats && stats->struct_size >= sizeof(size_t) + sizeof(uint64_t) && stats->struct_size <= 65536;
    cmpool_status status = sound ? cmi_registry_enter(pool, &entry) : CMPOOL_ERR_INVALID_ARGUMENT;
    if (status == CMPOOL_OK) {
        cmi_pool_stats(entry.pool, entry.owner, stats);
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_stats_get");
}

const char *cmpool_counter_name(unsigned index)
{
    static const char *const names[] = {
#define CMPOOL_COUNTER(name, kind, help) #name,
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
    };
    return index < sizeof names / sizeof *names ? names[index] : NULL;
}

cmpool_status cmpool_stats_reset_peaks(cmpool_t pool)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        cmi_cache_drain(entry.pool);
        entry.pool->counters.reserved_bytes = entry.pool->reserved_pages << entry.pool->heap.page_shift;
        cmi_counters_reset_peaks(&entry.pool->counters);
        for (uint32_t i = 0; i < entry.pool->owner_count; i++) {
            entry.pool->owners[i].peak_live_bytes = entry.pool->owners[i].live_bytes;
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_stats_reset_peaks");
}

cmpool_status cmpool_validate(cmpool_t pool, const char **finding)
{
    cmi_entry entry;
    if (finding) {
        *finding = NULL;
    }
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        const char *fault = cmi_pool_validate(entry.pool);
        fault = fault ? fault : cmi_pinned_validate(entry.pool);
        if (fault && finding) {
            *finding = fault;
        }
        status = fault ? CMPOOL_ERR_DRIVER : CMPOOL_OK;
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_validate");
}

const cmpool_error *cmpool_last_error(void) { return cmi_error_last(); }

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
const char *cmpool_version(void) { return TEXT(CMPOOL_VERSION_MAJOR) "." TEXT(CMPOOL_VERSION_MINOR) "." TEXT(CMPOOL_VERSION_PATCH); }
