/*
 * Public functions on captures: argument checks, then one call into lib/pool. Owns nothing.
 */
#include "api/registry.h"

cmpool_status cmpool_capture_create(cmpool_t *set, cmpool_t parent)
{
    cmpool_status status = cmi_registry_usable();
    if (set) {
        *set = 0;
    }
    if (status == CMPOOL_OK) {
        status = set ? cmi_registry_create_inside(set, parent, CMI_OWNER_CAPTURE) : CMPOOL_ERR_INVALID_ARGUMENT;
    }
    return cmi_registry_finish(status, "cmpool_capture_create");
}

/* Enter a capture set; leave is the caller's. */
static cmpool_status enter_set(cmpool_t set, cmi_entry *entry)
{
    cmpool_status status = cmi_registry_enter(set, entry);
    if (status == CMPOOL_OK && entry->pool->owners[entry->owner].kind != CMI_OWNER_CAPTURE) {
        cmi_registry_leave(entry);
        status = CMPOOL_ERR_UNSUPPORTED;
    }
    return status;
}

cmpool_status cmpool_capture_begin(cmpool_t set)
{
    cmi_entry entry;
    cmpool_status status = set ? enter_set(set, &entry) : cmi_registry_usable();
    if (status == CMPOOL_OK && set) {
        cmi_capture_begin(entry.pool, entry.owner);
        cmi_registry_leave(&entry);
    } else if (status == CMPOOL_OK) {
        cmi_capture_begin_foreign();
    }
    return cmi_registry_finish(status, "cmpool_capture_begin");
}

cmpool_status cmpool_capture_end(cmpool_t set)
{
    cmi_entry entry;
    cmpool_status status = set ? enter_set(set, &entry) : cmi_registry_usable();
    if (status == CMPOOL_OK && set) {
        status = cmi_capture_end(entry.pool, entry.owner);
        cmi_registry_leave(&entry);
    } else if (status == CMPOOL_OK) {
        status = cmi_capture_end_foreign();
    }
    return cmi_registry_finish(status, "cmpool_capture_end");
}

cmpool_status cmpool_capture_release(cmpool_t set)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK) {
        status = cmi_registry_release_capture(set);
    }
    return cmi_registry_finish(status, "cmpool_capture_release");
}
