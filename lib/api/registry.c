/*
 * The process tables: devices by ordinal, pools by handle. Owns both; guarded by the registry lock (making and ending) and by each device's
 * lock (what an entry stands for); called by every public function. Device records are never freed, so a stale handle can always be looked
 * up safely; a handle is an index and a generation, so it never names a later pool.
 */
#include "api/registry.h"
#include "pool/cache.h"
#include "pool/pause.h"

#include "api/inspect.h"

#include <stdatomic.h>

enum { CHUNK_SHIFT = 8, CHUNK = 1 << CHUNK_SHIFT, CHUNKS = 256 };

typedef struct record {
    _Atomic(cmi_device *) device; /* set once the record is used; changes only while the handle is 0 */
    _Atomic(uint64_t) handle;     /* 0: not in use */
    cmi_pool *pool;
    uint32_t owner;
} record;

static cmi_lock registry_lock = CMI_LOCK_INITIALIZER(CMI_RANK_REGISTRY);
static _Atomic(record *) chunks[CHUNKS];
static uint32_t record_count; /* registry lock */
static uint64_t generations;  /* registry lock */
static _Atomic(cmi_device *) devices[CMI_MAX_DEVICES];
static _Atomic(const cmi_driver *) opened_driver;
static _Atomic(CUcontext) primaries[CMI_MAX_DEVICES]; /* as the device records have them, readable without their locks */

cmi_device *cmi_registry_device(int ordinal)
{
    return ordinal >= 0 && ordinal < CMI_MAX_DEVICES ? atomic_load_explicit(&devices[ordinal], memory_order_acquire) : NULL;
}

/* The ordinal of the device whose primary context this is, or -1. */
static int device_of_primary(CUcontext context)
{
    for (int i = 0; i < CMI_MAX_DEVICES; i++) {
        const cmi_device *device = cmi_registry_device(i);
        if (device && atomic_load_explicit(&primaries[i], memory_order_relaxed) == context) {
            return i;
        }
    }
    return -1;
}

cmi_here cmi_registry_look(void)
{
    cmi_here here = {NULL, -1};
    const cmi_driver *driver = atomic_load_explicit(&opened_driver, memory_order_acquire);
    if (driver && cmi_registry_usable() == CMPOOL_OK && driver->CtxGetCurrent(&here.context) == CUDA_SUCCESS && here.context) {
        CUdevice device;
        here.device = device_of_primary(here.context);
        if (here.device < 0 && driver->CtxGetDevice(&device) == CUDA_SUCCESS) {
            here.device = device;
        }
    }
    return here;
}

static record *record_at(uint32_t index)
{
    record *chunk = atomic_load_explicit(&chunks[index >> CHUNK_SHIFT], memory_order_acquire);
    return chunk ? &chunk[index & (CHUNK - 1)] : NULL;
}

static record *record_of(cmpool_t handle)
{
    uint32_t index = (uint32_t)(handle & 0xffff);
    return handle ? record_at(index) : NULL;
}

cmpool_status cmi_registry_enter(cmpool_t handle, cmi_entry *entry)
{
    if (cmi_registry_usable() != CMPOOL_OK) {
        return CMPOOL_ERR_FORKED;
    }
    record *found = record_of(handle);
    cmi_device *device = found ? atomic_load_explicit(&found->device, memory_order_acquire) : NULL;
    if (!device) {
        return CMPOOL_ERR_INVALID_POOL;
    }
    cmi_lock_acquire(&device->lock);
    if (atomic_load_explicit(&found->handle, memory_order_relaxed) != handle || atomic_load(&found->device) != device ||
        found->pool->dying) {
        cmi_lock_release(&device->lock);
        return CMPOOL_ERR_INVALID_POOL;
    }
    *entry = (cmi_entry){device, found->pool, found->owner};
    found->pool->calls_inside++;
    found->pool->owners[found->owner].calls_inside++;
    return CMPOOL_OK;
}

static void note_leaving(const cmi_entry *entry)
{
    entry->pool->calls_inside--;
    entry->pool->owners[entry->owner].calls_inside--;
}

/* The end of a call whose pool is watched, or on whose device something is due. */
static __attribute__((noinline)) void leave_with_duties(const cmi_entry *entry)
{
    if (cmi_returns_may_be_due(entry->device)) {
        cmi_returns_make(entry->device);
    }
    if (entry->pool->shown) {
        cmi_page_publish(entry->pool);
    }
    note_leaving(entry);
    cmi_tracer *due = entry->device->tracer && cmi_tracer_is_due(entry->device->tracer) ? entry->device->tracer : NULL;
    int ordinal = entry->device->ordinal;
    uint64_t live_bytes = entry->pool->counters.live_bytes;
    uint64_t sampled = cmi_nvtx_is_on() && entry->pool->options.nvtx ? entry->pool->owners[0].generation >> 16 : 0;
    cmi_lock_release(&entry->device->lock);
    if (sampled) {
        cmi_nvtx_sample(sampled, ordinal, live_bytes);
    }
    if (due) {
        cmi_tracer_drain(due, &entry->device->lock, false);
    }
}

void cmi_registry_leave(const cmi_entry *entry)
{
    cmi_device *device = entry->device;
    if (cmi_returns_may_be_due(device) || entry->pool->shown || device->tracer || cmi_nvtx_is_on()) {
        leave_with_duties(entry);
        return;
    }
    note_leaving(entry);
    cmi_lock_release(&device->lock);
}

cmpool_status cmi_registry_finish(cmpool_status status, const char *call)
{
    if (cmi_registry_usable() != CMPOOL_OK) { /* whatever else is wrong; and nothing below may be touched in a child */
        return CMPOOL_ERR_FORKED;
    }
    cmi_watch_wishes();
    if (status == CMPOOL_OK) {
        return status;
    }
    cmpool_error kept = *cmi_error_detail();
    cmi_error_set(status, call);
    cmpool_error *detail = cmi_error_detail();
    if (!kept.call[0] && (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_LIMIT)) {
        *detail = kept; /* the ladder's explanation */
        detail->status = status;
        detail->call = call;
        if (status == CMPOOL_ERR_LIMIT || detail->driver_code != CUDA_ERROR_OUT_OF_MEMORY) { /* of an earlier failure */
            detail->driver_call = "";
            detail->driver_code = 0;
        }
        cmi_watch_refusal(detail->pool);
    } else if (status == CMPOOL_ERR_DRIVER || status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || status == CMPOOL_ERR_DRIVER_MISSING ||
               status == CMPOOL_ERR_SHUTTING_DOWN || status == CMPOOL_ERR_DEVICE_LOST || status == CMPOOL_ERR_CAPTURE ||
               status == CMPOOL_ERR_OUT_OF_ADDRESSES) {
        detail->driver_call = kept.driver_call;
        detail->driver_code = kept.driver_code;
    }
    return status;
}

cmpool_status cmi_registry_find_block(const cmi_entry *entry, const void *ptr, cmi_place *place)
{
    return cmi_pool_place_for(entry->pool, entry->owner, (uint64_t)(uintptr_t)ptr, place);
}

/* ---- making and ending (registry lock held) ----------------------------------------------------- */

/* A record that is free: an old one, or the next. NULL: no host memory, or 65,536 pools at once. */
static record *free_record(uint32_t *index)
{
    for (uint32_t i = 1; i < record_count; i++) {
        record *old = record_at(i);
        if (!atomic_load(&old->handle)) {
            *index = i;
            return old;
        }
    }
    uint32_t next = record_count ? record_count : 1; /* index 0 would make a handle of 0 possible */
    if (next >= CHUNK * CHUNKS) {
        return NULL;
    }
    if (!atomic_load(&chunks[next >> CHUNK_SHIFT])) {
        record *chunk = cmi_meta_alloc(sizeof *chunk * CHUNK);
        if (!chunk) {
            return NULL;
        }
        atomic_store_explicit(&chunks[next >> CHUNK_SHIFT], chunk, memory_order_release);
    }
    record_count = next + 1;
    *index = next;
    return record_at(next);
}

static bool has_calls_inside(cmi_device *device)
{
    cmi_lock_acquire(&device->lock);
    uint32_t calls = 0;
    for (const cmi_pool *pool = device->pools; pool; pool = pool->next) {
        calls += pool->calls_inside;
    }
    cmi_lock_release(&device->lock);
    return calls != 0;
}

cmpool_t cmi_registry_next_idle(uint32_t *next)
{
    cmpool_t handle = 0;
    cmi_lock_acquire(&registry_lock);
    while (!handle && ++*next < record_count) {
        const record *at = record_at(*next);
        handle = at ? atomic_load(&at->handle) : 0;
        if (handle && has_calls_inside(atomic_load(&at->device))) {
            handle = 0;
        }
    }
    cmi_lock_release(&registry_lock);
    return handle;
}

/* Device lock held too. */
static cmpool_t publish(record *free, uint32_t index, cmi_device *device, cmi_pool *pool, uint32_t owner)
{
    cmpool_t handle = (cmpool_t)++generations << 16 | index;
    free->pool = pool;
    free->owner = owner;
    atomic_store_explicit(&free->device, device, memory_order_release);
    atomic_store_explicit(&free->handle, handle, memory_order_release);
    pool->owners[owner].generation = handle;
    return handle;
}

static cmi_device *device_record(int ordinal)
{
    cmi_device *device = atomic_load(&devices[ordinal]);
    if (device) {
        return device;
    }
    device = cmi_meta_alloc(sizeof *device);
    if (device) {
        cmi_lock_init(&device->lock, CMI_RANK_DEVICE);
        pthread_cond_init(&device->landed, NULL);
        device->ordinal = ordinal;
        atomic_store_explicit(&devices[ordinal], device, memory_order_release);
    }
    return device;
}

static cmpool_status prepare_device(cmi_device *device, int ordinal, const cmi_options *options, const int *peers, unsigned peer_count)
{
    if (!device->store) {
        return cmi_device_open(device, ordinal, options, peers, peer_count);
    }
    cmi_lock_acquire(&device->lock);
    cmpool_status status = device->lost ? cmi_device_ask_lost(device) : CMPOOL_OK;
    cmi_lock_release(&device->lock);
    if (status != CMPOOL_OK) { /* its pools have to end first */
        return status;
    }
    if (options->page_size && options->page_size != device->page_bytes) {
        return CMPOOL_ERR_UNSUPPORTED; /* pages go from pool to pool, so they are of one length */
    }
    for (unsigned i = 0; i < peer_count && status == CMPOOL_OK; i++) {
        status = cmi_device_add_peer(device, peers[i]);
    }
    return status;
}

static cmpool_status create(cmpool_t *handle, int ordinal, const cmi_options *options, const int *peers, unsigned peer_count)
{
    uint32_t index;
    record *free = free_record(&index);
    cmi_device *device = free ? device_record(ordinal) : NULL;
    if (!device) {
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    }
    cmpool_status status = prepare_device(device, ordinal, options, peers, peer_count);
    if (status != CMPOOL_OK) {
        return status;
    }
    atomic_store_explicit(&primaries[ordinal], device->primary, memory_order_relaxed);
    atomic_store_explicit(&opened_driver, device->driver, memory_order_release);
    cmi_pool *pool = NULL;
    cmi_tracer *tracer = options->trace && !device->tracer ? cmi_tracer_open(cmi_options_text(options->trace), ordinal, device->total_bytes)
                                                           : device->tracer;
    cmi_lock_acquire(&device->lock);
    device->tracer = tracer;
    status = cmi_pool_create(&pool, device, options);
    if (status == CMPOOL_OK) {
        pool->traced = options->trace && tracer;
        *handle = publish(free, index, device, pool, 0);
        if (options->live) {
            cmi_page_show(pool, generations);
        }
    }
    bool last = !device->pools;
    cmi_lock_release(&device->lock);
    if (last) {
        cmi_device_close(device);
    }
    return status;
}

cmpool_status cmi_registry_create(cmpool_t *handle, int ordinal, const cmi_options *options, const int *peers, unsigned peer_count)
{
    cmi_registry_watch_process();
    cmi_lock_acquire(&registry_lock);
    cmpool_status status = create(handle, ordinal, options, peers, peer_count);
    cmi_lock_release(&registry_lock);
    return status;
}

cmpool_status cmi_registry_add_peer(int ordinal, int peer)
{
    cmi_lock_acquire(&registry_lock);
    cmi_device *device = cmi_registry_device(ordinal);
    cmpool_status status = device && device->store ? cmi_device_add_peer(device, peer) : CMPOOL_OK;
    cmi_lock_release(&registry_lock);
    return status;
}

cmpool_status cmi_registry_create_inside(cmpool_t *handle, cmpool_t parent, cmi_owner_kind kind)
{
    cmi_lock_acquire(&registry_lock);
    uint32_t index;
    record *free = free_record(&index);
    cmi_entry entry;
    cmpool_status status = free ? cmi_registry_enter(parent, &entry) : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    if (status == CMPOOL_OK) {
        uint32_t owner;
        status = entry.owner ? CMPOOL_ERR_UNSUPPORTED : cmi_owner_add(entry.pool, kind, &owner);
        if (status == CMPOOL_OK) {
            *handle = publish(free, index, entry.device, entry.pool, owner);
        }
        cmi_registry_leave(&entry);
    }
    cmi_lock_release(&registry_lock);
    return status;
}

static bool has_private_pools(const cmi_pool *pool)
{
    for (uint32_t i = 1; i < pool->owner_count; i++) {
        if (pool->owners[i].used && pool->owners[i].generation) {
            return true;
        }
    }
    return false;
}

static cmpool_status destroy(record *found, const cmi_entry *entry)
{
    cmi_pool *pool = entry->pool;
    if (pool->owners[entry->owner].kind == CMI_OWNER_CAPTURE) {
        return CMPOOL_ERR_UNSUPPORTED;
    }
    if (!entry->owner && pool->pause && pool->calls_inside == 1 && !pool->counters.live_blocks) {
        cmi_pause_abandon(pool); /* nothing is left that would come back */
    }
    bool busy;
    for (;;) {
        cmi_cache_drain(pool); /* what is cached is not live */
        busy = pool->calls_inside > 1 || pool->owners[entry->owner].live_blocks;
        if (busy || !pool->pins) {
            break;
        }
        pthread_cond_wait(&entry->device->landed, &entry->device->lock.mutex);
    }
    if (busy) {
        return CMPOOL_ERR_BUSY;
    }
    if (entry->owner) {
        atomic_store(&found->handle, 0);
        pool->owners[entry->owner].generation = 0;
        cmi_owner_remove(pool, entry->owner);
        return CMPOOL_OK;
    }
    if (has_private_pools(pool) || pool->region_count || pool->counters.live_blocks || cmi_pinned_figures_of(pool).live_blocks) {
        return CMPOOL_ERR_BUSY;
    }
    if (cmi_capture_is_live()) { /* nothing can be unmapped; none begins from here on, since we hold the registry's lock */
        return CMPOOL_ERR_CAPTURE;
    }
    atomic_store(&found->handle, 0);
    cmpool_status pinned = cmi_pinned_close(pool);
    cmi_page_hide(pool);
    cmpool_status status = cmi_pool_destroy(pool);
    return status == CMPOOL_OK ? pinned : status;
}

cmpool_status cmi_registry_destroy(cmpool_t handle)
{
    cmi_lock_acquire(&registry_lock);
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(handle, &entry);
    if (status == CMPOOL_OK) {
        record *found = record_of(handle);
        status = destroy(found, &entry);
        bool gone = !entry.owner && !atomic_load(&found->handle);
        if (!gone) {
            note_leaving(&entry);
        }
        bool last = !entry.device->pools;
        cmi_lock_release(&entry.device->lock);
        if (last && entry.device->tracer) { /* a trace is whole where no pool is left */
            cmi_tracer_drain(entry.device->tracer, &entry.device->lock, true);
        }
        if (last) {
            cmpool_status closed = cmi_device_close(entry.device);
            status = status == CMPOOL_OK ? closed : status;
        }
    }
    cmi_lock_release(&registry_lock);
    return status;
}

/* A capture bars calls on every device. */
static void prepare_for_capture(void)
{
    for (int i = 0; i < CMI_MAX_DEVICES; i++) {
        cmi_device *device = cmi_registry_device(i);
        if (device) {
            cmi_lock_acquire(&device->lock);
            cmi_capture_prepare(device);
            cmi_lock_release(&device->lock);
        }
    }
}

cmpool_status cmi_registry_begin_capture(cmpool_t set)
{
    cmi_lock_acquire(&registry_lock);
    cmi_entry entry;
    cmpool_status status = set ? cmi_registry_enter(set, &entry) : cmi_registry_usable();
    if (status == CMPOOL_OK && set) {
        if (entry.pool->owners[entry.owner].kind == CMI_OWNER_CAPTURE) {
            entry.pool->owners[entry.owner].captures++;
        } else {
            status = CMPOOL_ERR_UNSUPPORTED;
        }
        cmi_registry_leave(&entry);
    }
    if (status == CMPOOL_OK) {
        prepare_for_capture();
        set ? cmi_capture_start() : cmi_capture_start_foreign();
    }
    cmi_lock_release(&registry_lock);
    return status;
}

cmpool_status cmi_registry_release_capture(cmpool_t handle)
{
    cmi_lock_acquire(&registry_lock);
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(handle, &entry);
    if (status == CMPOOL_OK) {
        bool set = entry.pool->owners[entry.owner].kind == CMI_OWNER_CAPTURE;
        status = set ? cmi_capture_release(entry.pool, entry.owner) : CMPOOL_ERR_UNSUPPORTED;
        if (status == CMPOOL_OK) {
            atomic_store(&record_of(handle)->handle, 0);
        }
        cmi_registry_leave(&entry);
    }
    cmi_lock_release(&registry_lock);
    return status;
}
