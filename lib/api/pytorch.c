/*
 * PyTorch's pluggable allocator over one pool a device, made at the device's first request. Owns those pools' handles and the options they
 * are made with, and sums of what PyTorch was given; all atomic, and no lock is held over a call, the options are written before the first
 * pool. Called by PyTorch.
 */
#include "api/pytorch.h"

#include "api/registry.h"
#include "inspect/refusal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static _Atomic cmpool_t pools[CMI_MAX_DEVICES];
static _Atomic uint64_t option_limits[CMI_MAX_DEVICES]; /* `limit` as the pool was made: memory fractions stay below it */
static _Atomic uint64_t bytes_served[CMI_MAX_DEVICES], bytes_freed[CMI_MAX_DEVICES];
static char pool_options[2048];

static bool is_device(int device) { return device >= 0 && device < CMI_MAX_DEVICES; }

cmpool_t cmpool_torch_pool(int device) { return is_device(device) ? atomic_load_explicit(&pools[device], memory_order_acquire) : 0; }

cmpool_status cmpool_torch_configure(const char *options)
{
    cmpool_status status = !options || strlen(options) < sizeof pool_options ? CMPOOL_OK : CMPOOL_ERR_INVALID_ARGUMENT;
    for (int i = 0; i < CMI_MAX_DEVICES && status == CMPOOL_OK; i++) {
        status = cmpool_torch_pool(i) ? CMPOOL_ERR_BUSY : CMPOOL_OK;
    }
    if (status == CMPOOL_OK) {
        strcpy(pool_options, options ? options : "");
    }
    return cmi_registry_finish(status, "cmpool_torch_configure");
}

/* PyTorch copies between devices with calls that need each one's access to the other's pages; nobody tells us when. */
static void connect_with_others(int device)
{
    for (int other = 0; other < CMI_MAX_DEVICES; other++) {
        if (other != device && cmpool_torch_pool(other) &&
            (cmi_registry_add_peer(device, other) != CMPOOL_OK || cmi_registry_add_peer(other, device) != CMPOOL_OK)) {
            cmi_log(CMI_LOG_ERROR,
                    "devices %d and %d cannot reach each other's pages, so the driver refuses copies between them; with "
                    "CUDAMEMPOOL_CONF=backend:malloc memory is the driver's own, which it copies through the host",
                    device, other);
        }
    }
}

static cmpool_status make_pool(int device, cmpool_t *pool)
{
    const cmpool_config config = {.struct_size = sizeof config, .device = device, .options = pool_options};
    cmpool_status status = cmpool_create(pool, &config);
    cmi_entry entry;
    if (status != CMPOOL_OK || (status = cmi_registry_enter(*pool, &entry)) != CMPOOL_OK) {
        return status;
    }
    uint64_t limit = entry.pool->options.limit;
    bool pages = entry.pool->options.backend == CMI_BACKEND_VMM;
    cmi_registry_leave(&entry);
    cmpool_t none = 0;
    if (!atomic_compare_exchange_strong(&pools[device], &none, *pool)) { /* another thread was faster */
        (void)cmpool_destroy(*pool);
        *pool = none;
        return CMPOOL_OK;
    }
    atomic_store(&option_limits[device], limit);
    if (pages) {
        connect_with_others(device);
    }
    return CMPOOL_OK;
}

cmpool_status cmi_torch_pool(int device, cmpool_t *pool)
{
    *pool = cmpool_torch_pool(device);
    if (*pool) {
        return CMPOOL_OK;
    }
    return is_device(device) ? make_pool(device, pool) : CMPOOL_ERR_INVALID_ARGUMENT;
}

/* ---- blocks ------------------------------------------------------------------------------------- */

static cmpool_status serve(void **ptr, size_t bytes, int device, cmpool_stream stream)
{
    cmpool_t pool;
    *ptr = NULL;
    if (!bytes) {
        return CMPOOL_OK;
    }
    cmpool_status status = cmi_torch_pool(device, &pool);
    if (status != CMPOOL_OK) {
        return cmi_registry_finish(status, "cmpool_torch_malloc");
    }
    if (bytes > CMI_MAX_BYTES) { /* to PyTorch's callers as much a lack of memory as any other */
        return cmi_registry_finish(CMPOOL_ERR_OUT_OF_ADDRESSES, "cmpool_torch_malloc");
    }
    cmpool_t route = cmi_torch_route(device, stream);
    status = cmpool_malloc(route ? route : pool, ptr, bytes, stream);
    if (status == CMPOOL_OK) {
        atomic_fetch_add_explicit(&bytes_served[device], bytes, memory_order_relaxed);
    }
    return status;
}

void *cmpool_torch_malloc(size_t bytes, int device, cmpool_stream stream)
{
    void *ptr;
    return serve(&ptr, bytes, device, stream) == CMPOOL_OK ? ptr : NULL;
}

/* A size as PyTorch writes it, since tools read its messages. */
static const char *in_words(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    unsigned unit = bytes < 1 << 10 ? 0 : bytes < 1 << 20 ? 1 : bytes < 1 << 30 ? 2 : 3;
    if (unit) {
        snprintf(text, 32, "%.2f %s", (double)bytes / (double)(UINT64_C(1) << (10 * unit)), units[unit]);
    } else {
        snprintf(text, 32, "%llu bytes", (unsigned long long)bytes);
    }
    return text;
}

/* What the driver has left, if the refusal did not have to ask for it. */
static uint64_t device_free(const cmi_device *device, size_t left)
{
    size_t total;
    cmi_driver_scope scope;
    if (left == SIZE_MAX && device && cmi_driver_enter(&scope, device->driver, device->primary) == CMPOOL_OK) {
        if (device->driver->MemGetInfo(&left, &total) != CUDA_SUCCESS) {
            left = SIZE_MAX;
        }
        cmi_driver_leave(&scope);
    }
    return left;
}

/* Which case the library's own report of the refusal says it is, if that report is of this request. */
static void add_verdict(char *text, size_t room, const cmpool_error *error)
{
    cmpool_refusal refusal = {.struct_size = sizeof refusal};
    char advice[256];
    if (cmpool_refusal_get(error->pool, &refusal) != CMPOOL_OK || refusal.request_bytes != error->bytes) {
        return;
    }
    cmi_refusal_advice(&refusal, 0, advice, sizeof advice);
    snprintf(text, room, " Verdict: %s: %s. %s", cmi_verdict_key((cmi_verdict)refusal.verdict),
             cmi_verdict_sentence((cmi_verdict)refusal.verdict), advice);
}

/* PyTorch's sentences, which people and tools know, then ours. */
static void explain(char *text, size_t room, size_t bytes, int device)
{
    const cmpool_error error = *cmpool_last_error();
    const cmi_device *record = cmi_registry_device(device);
    cmpool_stats stats = {.struct_size = sizeof stats};
    (void)cmpool_stats_get(cmpool_torch_pool(device), &stats);
    bool asked_pool = error.status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || error.status == CMPOOL_ERR_LIMIT;
    uint64_t left = device_free(record, asked_pool ? error.device_free_bytes : SIZE_MAX);
    char asked[32], total[32], free[32], live[32], kept[32], idle[32], run[32], missing[32], limit[64] = "";
    if (error.limit_bytes) {
        snprintf(limit, sizeof limit, " (limit %s)", in_words(total, error.limit_bytes));
    }
    int length = snprintf(
        text, room,
        "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. Of the allocated "
        "memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated. libcudamempool%s: ",
        in_words(asked, bytes), device, in_words(total, record ? record->total_bytes : 0), in_words(free, left == SIZE_MAX ? 0 : left),
        in_words(live, stats.live_bytes), in_words(kept, stats.reserved_bytes - stats.live_bytes), limit);
    if (!asked_pool) {
        snprintf(text + length, room - (size_t)length, "%s.", cmpool_status_text(error.status));
        return;
    }
    const char *cause = error.fixed_bytes ? "part of the memory cannot be moved (fixed_bytes)" : "fragmentation is not the cause";
    length +=
        snprintf(text + length, room - (size_t)length,
                 "%s. Idle pages, which count wherever they lie, are %s (%s in one piece); with them and all that can still be had, "
                 "%s is missing.",
                 cause, in_words(idle, error.idle_bytes), in_words(run, error.largest_free_bytes), in_words(missing, error.short_bytes));
    add_verdict(text + length, room - (size_t)length, &error);
}

void *cmpool_torch_malloc_or_raise(size_t bytes, int device, cmpool_stream stream)
{
    void *ptr;
    char text[2048];
    cmpool_status status = serve(&ptr, bytes, device, stream);
    switch (status) {
    case CMPOOL_OK:
        return ptr;
    case CMPOOL_ERR_OUT_OF_DEVICE_MEMORY:
    case CMPOOL_ERR_LIMIT:
    case CMPOOL_ERR_OUT_OF_HOST_MEMORY:
    case CMPOOL_ERR_OUT_OF_ADDRESSES:
    case CMPOOL_ERR_MAPPING_CEILING:
        explain(text, sizeof text, bytes, device);
        cmi_torch_raise(text, true);
        return NULL;
    default: {
        const cmpool_error *error = cmpool_last_error();
        snprintf(text, sizeof text, "libcudamempool: no memory on GPU %d: %s (%s %s %d)", device, cmpool_status_text(status),
                 cmpool_status_name(status), error->driver_call, error->driver_code);
        cmi_torch_raise(text, false);
        return NULL;
    }
    }
}

void cmpool_torch_free(void *ptr, size_t bytes, int device, cmpool_stream stream)
{
    cmpool_t pool = cmpool_torch_pool(device);
    cmpool_status status = cmpool_free(pool, ptr, stream);
    if (status == CMPOOL_ERR_DRIVER || status == CMPOOL_ERR_OUT_OF_HOST_MEMORY || status == CMPOOL_ERR_CAPTURE) {
        status = cmpool_free_unordered(pool, ptr);
    }
    if (status == CMPOOL_OK) {
        atomic_fetch_add_explicit(&bytes_freed[device], ptr ? bytes : 0, memory_order_relaxed);
    } else if (status != CMPOOL_ERR_FORKED && status != CMPOOL_ERR_SHUTTING_DOWN && status != CMPOOL_ERR_DEVICE_LOST) {
        cmi_log(CMI_LOG_ERROR, "PyTorch frees %p on device %d: %s", ptr, device, cmpool_status_text(status));
    }
}

void cmpool_torch_record_stream(void *ptr, cmpool_stream stream)
{
    cmpool_block_info info = {.struct_size = sizeof info};
    if (!ptr || cmpool_lookup(ptr, &info) != CMPOOL_OK) {
        return;
    }
    cmpool_status status = cmpool_record_use(info.pool, info.base, stream);
    if (status != CMPOOL_OK && status != CMPOOL_ERR_FORKED) { /* going on would hand the memory out under a kernel */
        char text[256];
        snprintf(text, sizeof text, "libcudamempool: record_stream: %s", cmpool_status_text(status));
        cmi_log(CMI_LOG_ERROR, "%s", text);
        cmi_torch_raise(text, false);
    }
}

void *cmpool_torch_base_alloc(void *ptr, size_t *bytes)
{
    cmpool_block_info info = {.struct_size = sizeof info};
    bool found = ptr && cmpool_lookup(ptr, &info) == CMPOOL_OK;
    if (bytes) {
        *bytes = found ? info.usable_bytes : 0;
    }
    return found ? info.base : NULL;
}

/* ---- the whole ---------------------------------------------------------------------------------- */

void cmpool_torch_init(int device_count) { (void)device_count; }

void cmpool_torch_totals(int device, uint64_t *served, uint64_t *freed)
{
    *served = is_device(device) ? atomic_load_explicit(&bytes_served[device], memory_order_relaxed) : 0;
    *freed = is_device(device) ? atomic_load_explicit(&bytes_freed[device], memory_order_relaxed) : 0;
}

void cmpool_torch_reset(void)
{
    for (int i = 0; i < CMI_MAX_DEVICES; i++) {
        if (cmpool_torch_pool(i)) {
            (void)cmpool_device_trim(i, CMI_MAX_BYTES, NULL);
        }
    }
}

void cmpool_torch_memory_fraction(double fraction, int device)
{
    cmpool_t pool;
    if (!(fraction >= 0) || cmi_torch_pool(device, &pool) != CMPOOL_OK) {
        return;
    }
    uint64_t most = atomic_load(&option_limits[device]);
    double share = fraction * (double)cmi_registry_device(device)->total_bytes;
    if (fraction < 1 && (!most || share < (double)most)) {
        most = share >= 1 ? (uint64_t)share : 1; /* 0 would be no limit */
    }
    (void)cmpool_set_limit(pool, most);
}

cmpool_status cmpool_torch_close(void)
{
    cmpool_status status = cmi_torch_close_routes();
    for (int i = 0; i < CMI_MAX_DEVICES && status == CMPOOL_OK; i++) {
        cmpool_t pool = cmpool_torch_pool(i);
        status = pool ? cmpool_destroy(pool) : CMPOOL_OK;
        if (pool && (status == CMPOOL_OK || status == CMPOOL_ERR_INVALID_POOL)) {
            atomic_store(&pools[i], 0);
        }
    }
    return cmi_registry_finish(status, "cmpool_torch_close");
}
