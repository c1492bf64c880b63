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

cmpool_status cmpool_capture_begin(cmpool_t set)
{
    cmpool_status status = cmi_registry_usable();
    if (status == CMPOOL_OK) {
        status = cmi_registry_begin_capture(set);
    }
    return cmi_registry_finish(status, "cmpool_capture_begin");
}

cmpool_status cmpool_capture_end(cmpool_t set)
{
    cmi_entry entry;
    cmpool_status status = set ? cmi_registry_enter(set, &entry) : cmi_registry_usable();
    if (status == CMPOOL_OK && set) {
        bool is_set = entry.pool->owners[entry.owner].kind == CMI_OWNER_CAPTURE;
        status = is_set ? cmi_capture_end(entry.pool, entry.owner) : CMPOOL_ERR_UNSUPPORTED;
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
