/*
 * Public functions on pause and resume: argument checks, then one call into lib/pool under the device lock. Owns nothing.
 */
#include "api/registry.h"
#include "pinned/keep.h"

static cmpool_status pause_pool(cmpool_t pool, cmpool_pause_request *request)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status != CMPOOL_OK) {
        return status;
    }
    cmi_pause_ask ask = {.tag = request->tag, .tag_name = request->tag_name, .fixed = request->fixed, .fixed_room = request->fixed_room};
    if (entry.owner || entry.pool->segmented) {
        status = CMPOOL_ERR_UNSUPPORTED;
    } else if (entry.pool->pause) { /* before a file is made */
        status = entry.pool->pause->changing ? CMPOOL_ERR_BUSY : CMPOOL_ERR_PAUSED;
    } else if (request->contents == CMPOOL_KEEP) {
        status = cmi_keep_new(&ask.keeper, request->file, request->flags & CMPOOL_PAUSE_VERIFY);
    }
    if (status == CMPOOL_OK) {
        status = cmi_pause_begin(entry.pool, &ask);
    }
    request->fixed_count = ask.fixed_count;
    cmi_registry_leave(&entry);
    return status;
}

static bool is_sound(const cmpool_pause_request *request)
{
    return request && request->struct_size == sizeof *request && request->contents <= CMPOOL_KEEP &&
           !(request->flags & ~(uint32_t)CMPOOL_PAUSE_VERIFY) && (request->fixed || !request->fixed_room) &&
           (request->contents == CMPOOL_KEEP || !(request->flags || request->file)) && (!request->file || request->file[0]) &&
           (!request->tag_name || request->tag_name[0]);
}

cmpool_status cmpool_pause_ex(cmpool_t pool, cmpool_pause_request *request)
{
    cmpool_status status = is_sound(request) ? pause_pool(pool, request) : CMPOOL_ERR_INVALID_ARGUMENT;
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_pause_ex");
}

cmpool_status cmpool_pause(cmpool_t pool, cmpool_contents contents)
{
    cmpool_pause_request request = {.struct_size = sizeof request, .contents = (uint32_t)contents};
    cmpool_status status = is_sound(&request) ? pause_pool(pool, &request) : CMPOOL_ERR_INVALID_ARGUMENT;
    return cmi_registry_finish(cmi_registry_not_memory(status), "cmpool_pause");
}

cmpool_status cmpool_resume(cmpool_t pool)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        status = entry.owner ? CMPOOL_ERR_UNSUPPORTED : cmi_pause_end(entry.pool);
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_resume");
}
