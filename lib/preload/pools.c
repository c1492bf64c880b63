/*
 * One pool a device, made when a program first asks for memory there. Owns the pools' handles, all atomic: there is no lock, so none is
 * held while the driver works. Called by the replacements.
 */
#include "preload/preload.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { VOID_TRIES = 10000 };

typedef struct device_pool {
    _Atomic bool closed;    /* no pool now: one is being given back, or this device cannot have one */
    _Atomic uint64_t peers; /* devices that may use the memory, a bit each */
} device_pool;

_Atomic cmpool_t cmi_preload_pools[PRELOAD_DEVICES];
_Atomic bool cmi_preload_aside;
static device_pool pools[PRELOAD_DEVICES];

bool cmi_preload_pool_has_peer(int device, int peer) { return atomic_load(&pools[device].peers) >> peer & 1; }

void cudamempool_preload_stand_aside(void) { atomic_store(&cmi_preload_aside, true); }

static cmpool_status create(int device, cmpool_t *pool)
{
    int peers[PRELOAD_DEVICES];
    size_t count = 0;
    for (int i = 0; i < PRELOAD_DEVICES; i++) {
        if (cmi_preload_pool_has_peer(device, i)) {
            peers[count++] = i;
        }
    }
    const cmpool_config config = {.struct_size = sizeof config, .device = device, .peers = peers, .peer_count = count};
    return cmpool_create(pool, &config);
}

/* Whether `device` can be let at memory of `of`. */
static bool can_reach(int device, int of)
{
    int can = 0;
    const preload_driver *driver = cmi_preload_driver();
    return driver->cuDeviceCanAccessPeer && driver->cuDeviceCanAccessPeer(&can, device, of) == CUDA_SUCCESS && can;
}

/* Programs copy between devices without a word: the driver brings its own allocations through the host where it has to, but mapped pages it
 * reaches only where they were opened. So pools of one process are open to each other's devices; before the one of `device` is made. */
static void open_to_others(int device)
{
    static _Atomic bool said;
    size_t length = 0;
    const char *backend = cmi_preload_setting("backend", &length);
    bool segments = backend && length == 6 && strncmp(backend, "malloc", 6) == 0;
    for (int other = 0; other < PRELOAD_DEVICES && !segments; other++) {
        if (other == device || !cmi_preload_pool_of(other)) {
            continue;
        }
        bool there = can_reach(other, device), back = can_reach(device, other);
        if (there) {
            atomic_fetch_or(&pools[device].peers, UINT64_C(1) << other);
        }
        if (back && !cmi_preload_pool_has_peer(other, device)) {
            cmi_preload_pool_add_peer(other, device);
            cmi_preload_contexts_tell(other);
        }
        if ((!there || !back) && !atomic_exchange(&said, true)) {
            cmi_preload_say("cudamempool: devices %d and %d have no access to each other; copies between them need "
                            "CUDAMEMPOOL_CONF=backend:malloc",
                            other, device);
        }
    }
}

cmpool_status cmi_preload_make_pool(int device, cmpool_t *pool)
{
    device_pool *at = &pools[device];
    if (atomic_load(&at->closed)) {
        return CMPOOL_OK;
    }
    open_to_others(device);
    cmpool_status status = create(device, pool);
    if (status == CMPOOL_OK) {
        cmpool_t none = 0;
        if (atomic_compare_exchange_strong(&cmi_preload_pools[device], &none, *pool)) {
            cmi_preload_contexts_tell(device);
            cmi_preload_control_open();
        } else { /* another thread was faster */
            (void)cmpool_destroy(*pool);
            *pool = none;
        }
        return CMPOOL_OK;
    }
    *pool = 0;
    if (status == CMPOOL_ERR_UNSUPPORTED || status == CMPOOL_ERR_BAD_OPTION || status == CMPOOL_ERR_DRIVER_MISSING) {
        if (!atomic_exchange(&at->closed, true)) {
            cmi_preload_say("cudamempool: device %d is left to the driver: %s", device, cmpool_status_text(status));
        }
        return CMPOOL_OK;
    }
    return status;
}

void cmi_preload_pool_add_peer(int device, int peer)
{
    atomic_fetch_or(&pools[device].peers, UINT64_C(1) << peer);
    if (cmi_preload_pool_of(device)) { /* a pool that names the peer has all pages of the device granted to it */
        cmpool_t pool;
        if (create(device, &pool) == CMPOOL_OK) {
            (void)cmpool_destroy(pool);
        }
    }
}

void cmi_preload_pool_void(int device)
{
    device_pool *at = &pools[device];
    atomic_store(&at->closed, true); /* requests in the meantime are the driver's */
    cmpool_t pool = atomic_exchange(&cmi_preload_pools[device], 0);
    cmpool_status status = CMPOOL_ERR_BUSY;
    for (int i = 0; pool && i < VOID_TRIES && (status == CMPOOL_ERR_BUSY || status == CMPOOL_ERR_CAPTURE); i++) {
        cmi_preload_blocks_release(device, NULL, pool);
        if (i == 0) {
            cmi_preload_report_ended(device, pool);
        }
        status = cmpool_destroy(pool);
        if (status != CMPOOL_OK) {
            sched_yield(); /* another thread is on its way out of it */
        }
    }
    atomic_store(&at->peers, 0);
    atomic_store(&at->closed, pool && (status == CMPOOL_ERR_BUSY || status == CMPOOL_ERR_CAPTURE));
}
