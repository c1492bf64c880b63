/*
 * Where PyTorch's requests go while a CUDA graph is captured or a torch.cuda.MemPool is in use: private pools and capture sets by PyTorch's
 * id, and routes to them by stream. Owns both lists under a lock of rank REGISTRY, which is held while PyTorch's filters answer (they may
 * ask the driver whether a stream is captured) and never over a call of the library. Called by pytorch.c and by PyTorch.
 */
#include "api/pytorch.h"

#include "api/registry.h"

#include <stdatomic.h>
#include <string.h>

/* std::function<bool(cudaStream_t)> of libstdc++: three words of storage and manager, then what to call. */
typedef struct stream_filter {
    void *functor[2];
    bool (*manage)(void *to, const void *from, int operation);
    bool (*invoke)(const void *functor, cmpool_stream *stream);
} stream_filter;
enum { CLONE = 2, DESTROY = 3 };

/* What PyTorch knows by one id on one device. Either kind is made when it is first needed. */
typedef struct named_pool {
    struct named_pool *next;
    int device;
    uint64_t id[2];
    uint32_t users; /* begins that were not released */
    cmpool_t private_pool, set;
} named_pool;

typedef struct route {
    struct route *next; /* newest first */
    named_pool *to;
    cmpool_t handle;
    bool captures;
    stream_filter filter;
} route;

static cmi_lock routes_lock = CMI_LOCK_INITIALIZER(CMI_RANK_REGISTRY);
static named_pool *named_pools;
static route *routes;
static _Atomic uint32_t route_count; /* read without the lock by requests that have nothing to do with all this */

static bool accepts(const stream_filter *filter, cmpool_stream stream)
{
    return filter->invoke && filter->invoke(filter->functor, &stream);
}

/* A filter may throw; the lock must not stay behind. */
static void release_lock(cmi_lock **held) { cmi_lock_release(*held); }

cmpool_t cmi_torch_route(int device, cmpool_stream stream)
{
    if (!atomic_load_explicit(&route_count, memory_order_acquire)) {
        return 0;
    }
    cmi_lock_acquire(&routes_lock);
    cmi_lock *held __attribute__((cleanup(release_lock), unused)) = &routes_lock;
    for (const route *each = routes; each; each = each->next) {
        if (each->to->device == device && accepts(&each->filter, stream)) {
            return each->handle;
        }
    }
    return 0;
}

/* Lock held. */
static named_pool *find_named(int device, uint64_t first, uint64_t second)
{
    named_pool *found = named_pools;
    while (found && !(found->device == device && found->id[0] == first && found->id[1] == second)) {
        found = found->next;
    }
    return found;
}

/* The named pool, with one more user: it stays while there is one. NULL: no host memory. */
static named_pool *use_named(int device, uint64_t first, uint64_t second)
{
    cmi_lock_acquire(&routes_lock);
    named_pool *found = find_named(device, first, second);
    if (!found && (found = cmi_meta_alloc(sizeof *found))) {
        *found = (named_pool){.next = named_pools, .device = device, .id = {first, second}};
        named_pools = found;
    }
    if (found) {
        found->users++;
    }
    cmi_lock_release(&routes_lock);
    return found;
}

/* The pool or set behind it. Two threads may both make one; the second is given back. */
static cmpool_status handle_of(named_pool *named, bool captures, cmpool_t *handle)
{
    cmpool_t parent, *kept = captures ? &named->set : &named->private_pool;
    cmi_lock_acquire(&routes_lock);
    *handle = *kept;
    cmi_lock_release(&routes_lock);
    cmpool_status status = *handle ? CMPOOL_OK : cmi_torch_pool(named->device, &parent);
    if (*handle || status != CMPOOL_OK) {
        return status;
    }
    status = captures ? cmpool_capture_create(handle, parent) : cmpool_private_create(handle, parent);
    if (status != CMPOOL_OK) {
        return status;
    }
    cmi_lock_acquire(&routes_lock);
    cmpool_t made = *handle, other = *kept;
    *kept = *handle = other ? other : made;
    cmi_lock_release(&routes_lock);
    if (other) {
        (void)(captures ? cmpool_capture_release(made) : cmpool_destroy(made));
    }
    return CMPOOL_OK;
}

static void add_route(route *made)
{
    cmi_lock_acquire(&routes_lock);
    made->next = routes;
    routes = made;
    atomic_fetch_add_explicit(&route_count, 1, memory_order_release);
    cmi_lock_release(&routes_lock);
}

/* The newest route to the pool, out of the list; NULL: there is none. */
static route *take_route(int device, uint64_t first, uint64_t second)
{
    cmi_lock_acquire(&routes_lock);
    named_pool *named = find_named(device, first, second);
    route **at = &routes;
    while (*at && (*at)->to != named) {
        at = &(*at)->next;
    }
    route *taken = named ? *at : NULL;
    if (taken) {
        *at = taken->next;
        atomic_fetch_sub_explicit(&route_count, 1, memory_order_release);
    }
    cmi_lock_release(&routes_lock);
    return taken;
}

static void end_route(route *taken)
{
    if (taken->captures) {
        (void)cmpool_capture_end(taken->handle);
    }
    if (taken->filter.manage) {
        taken->filter.manage(taken->filter.functor, taken->filter.functor, DESTROY);
    }
    cmi_meta_free(taken, sizeof *taken);
}

void cmpool_torch_begin_pool(int device, uint64_t id_first, uint64_t id_second, const void *filter)
{
    const stream_filter *given = filter;
    if (!given || device < 0 || device >= CMI_MAX_DEVICES) {
        return;
    }
    bool captures = !accepts(given, CU_STREAM_PER_THREAD);
    route *made = cmi_meta_alloc(sizeof *made);
    named_pool *named = made ? use_named(device, id_first, id_second) : NULL;
    cmpool_status status = named ? handle_of(named, captures, &made->handle) : CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    if (status == CMPOOL_OK && captures) {
        status = cmpool_capture_begin(made->handle);
    }
    if (status != CMPOOL_OK) { /* its requests come from the device's pool; release still finds a user */
        cmi_log(CMI_LOG_ERROR, "PyTorch's memory pool %llu:%llu on device %d: %s", (unsigned long long)id_first,
                (unsigned long long)id_second, device, cmpool_status_text(status));
        cmi_meta_free(made, sizeof *made);
        return;
    }
    made->to = named;
    made->captures = captures;
    memcpy(made->filter.functor, given->functor, sizeof given->functor);
    if (given->manage) {
        given->manage(made->filter.functor, given->functor, CLONE);
    }
    made->filter.manage = given->manage;
    made->filter.invoke = given->invoke;
    add_route(made);
}

void cmpool_torch_end_pool(int device, uint64_t id_first, uint64_t id_second)
{
    route *taken = take_route(device, id_first, id_second);
    if (taken) {
        end_route(taken);
    }
}

/* Pools that nobody uses go back; one that has live blocks, or a set during a capture, is tried again the next time. */
static cmpool_status give_back_unused(void)
{
    cmpool_status worst = CMPOOL_OK;
    cmi_lock_acquire(&routes_lock);
    named_pool **at = &named_pools, *gone = NULL;
    while (*at) { /* out of the list, so that nobody meets them half ended */
        named_pool *each = *at;
        if (each->users) {
            at = &each->next;
        } else {
            *at = each->next;
            each->next = gone;
            gone = each;
        }
    }
    cmi_lock_release(&routes_lock);
    while (gone) {
        named_pool *each = gone;
        gone = each->next;
        cmpool_status status = each->private_pool ? cmpool_destroy(each->private_pool) : CMPOOL_OK;
        if (status == CMPOOL_OK) {
            each->private_pool = 0;
            status = each->set ? cmpool_capture_release(each->set) : CMPOOL_OK;
        }
        if (status != CMPOOL_OK && status != CMPOOL_ERR_INVALID_POOL) {
            worst = status;
            cmi_lock_acquire(&routes_lock);
            each->next = named_pools;
            named_pools = each;
            cmi_lock_release(&routes_lock);
        } else {
            cmi_meta_free(each, sizeof *each);
        }
    }
    return worst;
}

void cmpool_torch_release_pool(int device, uint64_t id_first, uint64_t id_second)
{
    cmi_lock_acquire(&routes_lock);
    named_pool *named = find_named(device, id_first, id_second);
    bool last = named && named->users && --named->users == 0;
    cmi_lock_release(&routes_lock);
    if (last) {
        route *left;
        while ((left = take_route(device, id_first, id_second))) { /* a capture that failed has no end */
            end_route(left);
        }
        (void)give_back_unused();
    }
}

cmpool_status cmi_torch_close_routes(void) { return give_back_unused(); }
