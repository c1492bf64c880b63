/*
 * Memory for other users of the device, given back by calls on their way out, since the library has no thread of its own: pages that have
 * been idle for long (option idle_release), and what the driver asks for by a memory notification. Owns the time of the next look, under
 * the device lock, and the bytes asked for, an atomic that a thread of the driver writes; what goes is trim's. Called by api.
 */
#include "pool/pool.h"

/* ---- pages idle for long ------------------------------------------------------------------------ */

uint32_t cmi_returns_now(void) { return (uint32_t)(cmi_clock_coarse_ns() / 1000000000u); }

void cmi_returns_note_free(cmi_pool *pool, uint64_t address, uint64_t bytes)
{
    unsigned shift = pool->heap.page_shift;
    uint32_t now = cmi_returns_now();
    cmi_slot *slot = cmi_arena_slot(&pool->arena, address); /* no block lies in two ranges */
    uint64_t more = ((address + bytes - 1) >> shift) - (address >> shift);
    for (uint64_t i = 0; i <= more; i++) {
        slot[i].freed_at = now;
    }
}

static uint32_t period(const cmi_pool *pool) { return (uint32_t)cmi_max_u64(pool->options.idle_release / 4, 1); }

static void choose_next_look(cmi_device *device)
{
    uint32_t count = 0;
    device->next_look = UINT32_MAX;
    for (const cmi_pool *pool = device->pools; pool; pool = pool->next) {
        if (pool->options.idle_release && !pool->dying) {
            count++;
            device->next_look = (uint32_t)cmi_min_u64(device->next_look, pool->next_look);
        }
    }
    atomic_store_explicit(&device->idle_pools, count, memory_order_relaxed);
}

void cmi_returns_pool_made(cmi_pool *pool)
{
    if (pool->options.idle_release) {
        pool->next_look = cmi_returns_now() + period(pool);
    }
    choose_next_look(pool->device);
}

void cmi_returns_pool_gone(cmi_device *device) { choose_next_look(device); }

/* Where a whole batch went there may be more, so the next look comes soon. */
static void release_idle(cmi_device *device, uint32_t now)
{
    device->next_look = now + 1; /* the lock is dropped below: one thread at a time is enough */
    for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
        if (!pool->options.idle_release || pool->dying || now < pool->next_look) {
            continue;
        }
        bool more = false;
        pool->next_look = now + 1;
        cmi_pool_pin(pool);
        uint64_t released = cmi_trim_idle(pool, now, &more);
        cmi_pool_unpin(pool);
        pool->next_look = now + (more ? 1 : period(pool));
        if (released) {
            cmi_log(CMI_LOG_NOTE, "%llu pages idle for more than %llu seconds given back", (unsigned long long)released,
                    (unsigned long long)pool->options.idle_release);
        }
    }
    choose_next_look(device);
}

/* ---- what the driver asks for ------------------------------------------------------------------- */

/* Runs in a thread of the driver: no lock, no call. Each notification says how far over its budget the process is then, so of two before a
 * trim the larger counts, not their sum. */
static void over_budget(CUasyncNotificationInfo *info, void *user, CUasyncCallbackHandle callback)
{
    (void)callback;
    cmi_device *device = user; /* device records are never freed */
    if (info->type != CU_ASYNC_NOTIFICATION_TYPE_OVER_BUDGET) {
        return;
    }
    uint64_t bytes = info->info.overBudget.bytesOverBudget, wanted = atomic_load(&device->over_budget);
    while (wanted < bytes && !atomic_compare_exchange_weak(&device->over_budget, &wanted, bytes)) {}
}

void cmi_returns_register(cmi_device *device)
{
    const cmi_driver *driver = device->driver;
    atomic_store(&device->over_budget, 0);
    device->notifications = NULL;
    if (driver->DeviceRegisterAsyncNotification && driver->DeviceUnregisterAsyncNotification) {
        CUresult code = driver->DeviceRegisterAsyncNotification(device->ordinal, over_budget, device, &device->notifications);
        if (code != CUDA_SUCCESS) { /* most drivers have no budgets; and one that failed half-way gave a handle that is to be given back */
            cmi_log(CMI_LOG_NOTE, "no memory notifications: cuDeviceRegisterAsyncNotification says %s", cmi_driver_code_name(code));
        }
    }
}

void cmi_returns_unregister(cmi_device *device)
{
    const cmi_driver *driver = device->driver;
    if (device->notifications && driver->DeviceUnregisterAsyncNotification(device->ordinal, device->notifications) != CUDA_SUCCESS) {
        (void)driver->DeviceUnregisterAsyncNotification(device->ordinal, device->notifications); /* a callback that stays does no harm */
    }
    device->notifications = NULL;
}

static void release_wanted(cmi_device *device)
{
    uint64_t bytes = atomic_exchange(&device->over_budget, 0), released = 0;
    if (bytes) {
        (void)cmi_trim_device(device, cmi_div_up(bytes, device->page_bytes), false, &released);
        cmi_log(CMI_LOG_NOTE, "%llu bytes over the driver's budget: %llu given back", (unsigned long long)bytes,
                (unsigned long long)(released * device->page_bytes));
    }
}

/* ---- on the way out of a call ------------------------------------------------------------------- */

void cmi_returns_make(cmi_device *device)
{
    uint32_t now = device->idle_pools ? cmi_returns_now() : 0;
    bool look = device->idle_pools && now >= device->next_look;
    if ((!look && !atomic_load(&device->over_budget)) || cmi_capture_is_live()) {
        return;
    }
    cmpool_error kept = *cmi_error_detail(); /* belongs to the call that is about to return */
    release_wanted(device);
    if (look) {
        release_idle(device, now);
    }
    *cmi_error_detail() = kept;
}
