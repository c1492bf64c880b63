/*
 * The device store: every physical page that this process holds on one device, each one driver allocation. Owns the page records, in
 * chunks that never move, and the list of pages that the driver would not take back. cmi_store.lock (rank VMM) guards all of it and is
 * held over the driver calls, which the driver takes one at a time anyway; figures are atomics and need no lock.
 * Called by lib/pool to grow, to trim and to read figures.
 *
 * The driver calls the release of a dead handle undefined, and a release that failed may have had its effect. So a refused handle is
 * tried again only when memory is short, when other pages go or when the store closes, and is forgotten when the driver gives its value
 * out anew.
 */
#include "vm/store.h"

#include <string.h>

/* ---- shared by the files of this room ----------------------------------------------------------- */

void cmi_store_lock(cmi_store *store)
{
    if (cmi_lock_rank_held(CMI_RANK_DEVICE))
        cmi_vm_fault("page calls under the lock of device", (uint64_t)store->device);
    cmi_lock_acquire(&store->lock);
}

void cmi_vm_fault(const char *what, uint64_t value)
{
    cmi_log(CMI_LOG_ERROR, "vm fault: %s %#llx", what, (unsigned long long)value);
#ifdef CMI_VALIDATE
    __builtin_trap();
#endif
}

void *cmi_vm_grow(void *table, uint32_t *room, uint32_t count)
{
    if (count < *room)
        return table;
    uint32_t new_room = *room > 0 ? *room * 2 : 8;
    void *bigger = cmi_meta_resize(table, *room * sizeof(void *), new_room * sizeof(void *));
    if (bigger != NULL)
        *room = new_room;
    return bigger;
}

/* ---- open and close ----------------------------------------------------------------------------- */

static cmpool_status read_attribute(const cmi_store *store, CUdevice_attribute attribute, int *value)
{
    return cmi_driver_status("cuDeviceGetAttribute", store->driver->DeviceGetAttribute(value, attribute, store->device));
}

static cmpool_status set_page(cmi_store *store, uint64_t asked, uint64_t least)
{
    uint64_t page_bytes = asked != 0 ? asked : least;
    if (!cmi_is_power2(page_bytes) || page_bytes < least)
        return CMPOOL_ERR_INVALID_ARGUMENT;
    store->page_bytes = page_bytes;
    store->page_shift = cmi_log2_floor(page_bytes);
    return CMPOOL_OK;
}

static cmpool_status choose_page(cmi_store *store, const cmi_store_config *config)
{
    int vmm = 0, rdma = 0;
    cmpool_status status = read_attribute(store, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &vmm);
    if (status != CMPOOL_OK)
        return status;
    store->has_slots = vmm && cmi_driver_has_vmm(store->driver);
    if (!store->has_slots)
        return set_page(store, config->page_bytes, CMI_PAGE_LEAST);
    if (store->driver->MemExportToShareableHandle != NULL) {
        int fds = 0;
        status = read_attribute(store, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &fds);
        if (status != CMPOOL_OK)
            return status;
        store->has_shared = fds != 0;
    }
    if (config->rdma) {
        status = read_attribute(store, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, &rdma);
        if (status != CMPOOL_OK)
            return status;
    }

    store->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    store->prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = store->device};
    store->prop.allocFlags.gpuDirectRDMACapable = rdma != 0;

    size_t granularity = 0;
    CUresult code = store->driver->MemGetAllocationGranularity(&granularity, &store->prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (code != CUDA_SUCCESS)
        return cmi_driver_status("cuMemGetAllocationGranularity", code);
    if (!cmi_is_power2(granularity))
        return CMPOOL_ERR_UNSUPPORTED;
    return set_page(store, config->page_bytes, cmi_max_u64(granularity, CMI_PAGE_LEAST));
}

/* Under the lock, or before anybody else knows the store. */
static cmpool_status add_access(cmi_store *store, int ordinal)
{
    CUdevice peer;
    CUresult code = store->driver->DeviceGet(&peer, ordinal);
    if (code != CUDA_SUCCESS)
        return cmi_driver_status("cuDeviceGet", code);
    for (unsigned i = 0; i < store->access_count; i++)
        if (store->access[i].location.id == peer)
            return CMPOOL_OK;
    if (store->access_count == CMI_ARRAY_LENGTH(store->access))
        return CMPOOL_ERR_INVALID_ARGUMENT;
    if (peer != store->device) {
        int can = 0;
        code = store->driver->DeviceCanAccessPeer(&can, peer, store->device);
        if (code != CUDA_SUCCESS)
            return cmi_driver_status("cuDeviceCanAccessPeer", code);
        if (!can)
            return CMPOOL_ERR_UNSUPPORTED;
    }
    store->access[store->access_count++] =
        (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return CMPOOL_OK;
}

cmpool_status cmi_store_open(cmi_store **out, const cmi_store_config *config)
{
    *out = NULL;
    cmi_store *store = cmi_meta_alloc(sizeof(*store));
    if (store == NULL)
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;
    cmi_lock_init(&store->lock, CMI_RANK_VMM);
    store->driver = config->driver;
    store->free_pages = store->stranded_pages = CMI_NO_PAGE;

    cmpool_status status = cmi_driver_status("cuDeviceGet", store->driver->DeviceGet(&store->device, config->device));
    if (status == CMPOOL_OK)
        status = choose_page(store, config);
    if (status == CMPOOL_OK)
        status = add_access(store, config->device);
    for (unsigned i = 0; status == CMPOOL_OK && i < config->peer_count; i++)
        status = add_access(store, config->peers[i]);
    if (status != CMPOOL_OK) {
        cmi_store_close(store);
        return status;
    }
    *out = store;
    return CMPOOL_OK;
}

static void retry_stranded(cmi_store *store);

unsigned cmi_store_close(cmi_store *store)
{
    cmi_store_lock(store);
    cmi_range_retry_lost(store);
    retry_stranded(store);
    cmi_segment_retry_stranded(store, false);
    cmi_lock_release(&store->lock);

    if (cmi_counted(&store->pages) != 0)
        cmi_vm_fault("a store is closed with pages still held:", cmi_counted(&store->pages));
    if (store->range_count != cmi_counted(&store->lost_ranges))
        cmi_vm_fault("a store is closed with ranges still reserved:", store->range_count);
    unsigned stranded = (unsigned)(cmi_counted(&store->stranded) + cmi_counted(&store->lost_ranges));
    cmi_segment_retry_stranded(store, true);
    for (uint32_t i = 0; i < store->range_count; i++)
        cmi_range_free_record(store->ranges[i]);
    cmi_meta_free(store->ranges, store->range_room * sizeof(store->ranges[0]));
    for (uint32_t i = 0; i < store->chunk_count; i++)
        cmi_meta_free(store->chunks[i], PAGES_PER_CHUNK * sizeof(page));
    cmi_meta_free(store->chunks, store->chunk_room * sizeof(store->chunks[0]));
    cmi_lock_fini(&store->lock);
    cmi_meta_free(store, sizeof(*store));
    return stranded;
}

cmpool_status cmi_store_add_peer(cmi_store *store, int device)
{
    cmi_store_lock(store);
    cmpool_status status = add_access(store, device);
    cmi_lock_release(&store->lock);
    return status;
}

/* ---- page numbers ------------------------------------------------------------------------------- */

/* A number without a page, small ones first; CMI_NO_PAGE: no host memory. */
static uint32_t take_number(cmi_store *store)
{
    uint32_t number = store->free_pages;
    if (number != CMI_NO_PAGE) {
        store->free_pages = cmi_store_page(store, number)->link;
        return number;
    }
    if (store->page_count == store->chunk_count * PAGES_PER_CHUNK) {
        if (store->page_count > PAGE_NUMBER_MAX - PAGES_PER_CHUNK)
            return CMI_NO_PAGE;
        page **chunks = cmi_vm_grow(store->chunks, &store->chunk_room, store->chunk_count);
        if (chunks == NULL)
            return CMI_NO_PAGE;
        store->chunks = chunks;
        page *chunk = cmi_meta_alloc(PAGES_PER_CHUNK * sizeof(page));
        if (chunk == NULL)
            return CMI_NO_PAGE;
        store->chunks[store->chunk_count++] = chunk;
    }
    return store->page_count++;
}

static void give_number(cmi_store *store, uint32_t number)
{
    *cmi_store_page(store, number) = (page){.link = store->free_pages, .state = PAGE_FREE};
    store->free_pages = number;
}

/* ---- giving pages back -------------------------------------------------------------------------- */

static void strand(cmi_store *store, uint32_t number, page_state state)
{
    page *p = cmi_store_page(store, number);
    p->state = state;
    p->link = store->stranded_pages;
    store->stranded_pages = number;
    cmi_count(&store->stranded, 1);
}

/* Releases the handle of a page that no pool has any more. true: its number is free. */
static bool release_handle(cmi_store *store, uint32_t number)
{
    page *p = cmi_store_page(store, number);
    if (p->stuck > 0)
        cmi_vm_unstick(store, NULL, number);
    if (p->mappings > 0) {
        strand(store, number, PAGE_PINNED);
        return false;
    }
    CUresult code = store->driver->MemRelease(p->handle);
    if (code != CUDA_SUCCESS) {
        cmi_driver_status("cuMemRelease", code);
        cmi_log(CMI_LOG_WARNING, "device %d: the driver would not take a page back: cuMemRelease says %s", store->device,
                cmi_driver_code_name(code));
        strand(store, number, PAGE_REFUSED);
        return false;
    }
    give_number(store, number);
    return true;
}

/* Once through the stranded pages, up to the first that is refused again for no reason of its own. */
static void retry_stranded(cmi_store *store)
{
    uint32_t number = store->stranded_pages;
    store->stranded_pages = CMI_NO_PAGE;
    bool refused = false;
    while (number != CMI_NO_PAGE) {
        page *p = cmi_store_page(store, number);
        uint32_t next = p->link;
        cmi_uncount(&store->stranded, 1);
        if (refused) {
            strand(store, number, p->state);
        } else if (p->state == PAGE_PINNED) {
            refused = !release_handle(store, number);
        } else {
            CUresult code = store->driver->MemRelease(p->handle);
            /* A handle that the driver does not know was released by the call that reported a failure. */
            if (code == CUDA_SUCCESS || code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_INVALID_HANDLE) {
                give_number(store, number);
            } else {
                strand(store, number, PAGE_REFUSED);
                refused = true;
            }
        }
        number = next;
    }
}

/* The driver gave this handle out: a refused page of the same value is gone, and must not be released under its new owner. */
static void forget_refused(cmi_store *store, CUmemGenericAllocationHandle handle)
{
    for (uint32_t *at = &store->stranded_pages; *at != CMI_NO_PAGE; at = &cmi_store_page(store, *at)->link) {
        page *p = cmi_store_page(store, *at);
        if (p->state != PAGE_REFUSED || p->handle != handle)
            continue;
        uint32_t number = *at;
        *at = p->link;
        cmi_uncount(&store->stranded, 1);
        give_number(store, number);
        return;
    }
}

void cmi_store_release_page(cmi_store *store, uint32_t number)
{
    retry_stranded(store);
    release_handle(store, number);
}

void cmi_store_release(cmi_store *store, const uint32_t *pages, uint32_t count)
{
    cmi_store_lock(store);
    retry_stranded(store);
    for (uint32_t i = 0; i < count; i++) {
        if (!cmi_store_has_page(store, pages[i])) {
            cmi_vm_fault("release of a page that is not held:", pages[i]);
            continue;
        }
        const page *p = cmi_store_page(store, pages[i]);
        if (p->mappings > p->stuck) {
            cmi_vm_fault("release of a page that is still mapped:", pages[i]);
            continue;
        }
        cmi_uncount(&store->pages, 1);
        cmi_count(&store->released, 1);
        release_handle(store, pages[i]);
    }
    cmi_lock_release(&store->lock);
}

/* ---- getting pages ------------------------------------------------------------------------------ */

static cmpool_status create_page(cmi_store *store, uint64_t bytes, const CUmemAllocationProp *prop, uint32_t *number)
{
    *number = take_number(store);
    if (*number == CMI_NO_PAGE)
        return CMPOOL_ERR_OUT_OF_HOST_MEMORY;

    CUmemGenericAllocationHandle handle = 0;
    CUresult code = store->driver->MemCreate(&handle, bytes, prop, 0);
    if (code == CUDA_SUCCESS) {
        forget_refused(store, handle);
        *cmi_store_page(store, *number) = (page){.handle = handle, .state = PAGE_HELD};
        return CMPOOL_OK;
    }
    if (handle != 0) { /* it failed, yet there is an allocation: not ours to use */
        forget_refused(store, handle);
        *cmi_store_page(store, *number) = (page){.handle = handle, .state = PAGE_HELD};
        release_handle(store, *number);
    } else {
        give_number(store, *number);
    }
    return cmi_driver_status("cuMemCreate", code);
}

cmpool_status cmi_store_create_page(cmi_store *store, uint64_t bytes, CUmemAllocationHandleType handle_types, uint32_t *number)
{
    CUmemAllocationProp prop = store->prop;
    prop.requestedHandleTypes = handle_types;
    cmpool_status status = create_page(store, bytes, &prop, number);
    if (status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY && store->stranded_pages != CMI_NO_PAGE) {
        retry_stranded(store);
        status = create_page(store, bytes, &prop, number);
    }
    return status;
}

cmpool_status cmi_store_create(cmi_store *store, uint32_t *pages, uint32_t count, uint32_t *created)
{
    cmpool_status status = CMPOOL_OK;
    bool retried = false;
    uint32_t made = 0;
    cmi_store_lock(store);
    while (made < count) {
        status = create_page(store, store->page_bytes, &store->prop, &pages[made]);
        if (status == CMPOOL_OK) {
            made++;
            continue;
        }
        if (status != CMPOOL_ERR_OUT_OF_DEVICE_MEMORY || retried || store->stranded_pages == CMI_NO_PAGE)
            break;
        retry_stranded(store);
        retried = true;
    }
    cmi_count(&store->pages, made);
    cmi_count(&store->created, made);
    cmi_lock_release(&store->lock);
    *created = made;
    return status;
}

/* ---- figures ------------------------------------------------------------------------------------ */

uint64_t cmi_store_page_bytes(const cmi_store *store) { return store->page_bytes; }
bool cmi_store_has_slots(const cmi_store *store) { return store->has_slots; }
bool cmi_store_has_shared(const cmi_store *store) { return store->has_shared; }
uint64_t cmi_store_pages(const cmi_store *store) { return cmi_counted(&store->pages); }
uint64_t cmi_store_stranded(const cmi_store *store) { return cmi_counted(&store->stranded); }
uint64_t cmi_store_mappings(const cmi_store *store) { return cmi_counted(&store->mappings); }

void cmi_store_counts_get(const cmi_store *store, cmi_store_counts *counts)
{
    counts->created = cmi_counted(&store->created);
    counts->released = cmi_counted(&store->released);
    counts->mapped = cmi_counted(&store->mapped);
    counts->unmapped = cmi_counted(&store->unmapped);
    counts->stuck_slots = cmi_counted(&store->stuck_slots);
    counts->lost_ranges = cmi_counted(&store->lost_ranges);
}

void cmi_store_wait_turn(cmi_store *store)
{
    cmi_store_lock(store);
    cmi_lock_release(&store->lock);
}
