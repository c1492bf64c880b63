/*
 * A snapshot: one JSON object about all pools of some devices (include/cudamempool/snapshot.schema.json). Owns nothing; each device is
 * copied under its lock and written from the copy without any, so pools are held up for no longer than the copy takes. Called by api.
 */
#include "inspect/inspect.h"
#include "inspect/refusal.h"
#include "inspect/sections.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

/* Counters as cmpool_stats_get would give them: those that are worked out when asked for, from the copy. */
static bool write_counters(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool)
{
    cmi_counters counters = pool->pool.counters;
    uint64_t longest;
    if (!cmi_copy_idle(copy, pool, &counters.idle_bytes, &longest)) {
        return false;
    }
    counters.reserved_bytes = pool->pool.reserved_pages * copy->device.page_bytes;
    counters.address_bytes = pool->pool.arena.address_bytes;
    counters.mapped_slots = copy->mapped_slots;
    counters.stranded_pages = copy->stranded_pages;
    counters.metadata_bytes = cmi_meta_bytes() - copy->bytes;
    counters.unretired_streams = copy->device.unretired_streams;
    cmi_json_begin(json, "counters", '{');
#define CMPOOL_COUNTER(name, kind, help) cmi_json_number(json, #name, counters.name);
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
    cmi_json_end(json, '}');
    return true;
}

static void write_pinned(cmi_json *json, const cmi_pool_copy *pool)
{
    cmi_json_begin(json, "pinned", '{');
#define CMPOOL_PINNED_COUNTER(name, kind, help) cmi_json_number(json, #name, pool->pinned.name);
#include <cudamempool/pinned.def>
#undef CMPOOL_PINNED_COUNTER
    cmi_json_end(json, '}');
}

static bool write_pool(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool)
{
    cmi_json_begin(json, NULL, '{');
    cmi_json_number(json, "pool", pool->pool.owners[0].generation);
    cmi_sections_options(json, &pool->pool.options);
    bool written = write_counters(json, copy, pool) && cmi_sections_memory(json, copy, pool);
    write_pinned(json, pool);
    cmi_sections_history(json, pool);
    cmpool_refusal refusal = pool->pool.refusal;
    refusal.verdict = cmi_refusal_verdict(&refusal);
    cmi_refusal_write(json, "last_refusal", &refusal);
    cmi_json_end(json, '}');
    return written;
}

static void write_streams(cmi_json *json, const cmi_copy *copy)
{
    static const char *const kinds[] = {
        [CMI_STREAM_OTHER] = "other", [CMI_STREAM_LEGACY] = "legacy", [CMI_STREAM_PER_THREAD] = "per_thread"};
    cmi_json_table(json, "streams", "stream kind id context retired");
    for (uint32_t i = 1; i < copy->device.stream_count; i++) {
        const cmi_stream *stream = &copy->device.streams[i];
        if (!stream->unused) {
            cmi_json_row(json);
            cmi_json_number(json, NULL, i);
            cmi_json_text(json, NULL, kinds[stream->kind]);
            cmi_json_number(json, NULL, stream->id);
            cmi_json_number(json, NULL, stream->context);
            cmi_json_flag(json, NULL, stream->retired);
            cmi_json_end(json, ']');
        }
    }
    cmi_json_table_end(json);
}

static bool write_device(cmi_json *json, const cmi_copy *copy)
{
    bool written = true;
    cmi_json_begin(json, NULL, '{');
    cmi_json_number(json, "device", (uint64_t)copy->device.ordinal);
    cmi_json_number(json, "device_bytes", copy->device.total_bytes);
    if (copy->driver_free_bytes == UINT64_MAX) {
        cmi_json_null(json, "driver_free_bytes");
    } else {
        cmi_json_number(json, "driver_free_bytes", copy->driver_free_bytes);
    }
    cmi_json_number(json, "page_bytes", copy->device.page_bytes);
    cmi_json_number(json, "held_pages", copy->held_pages);
    cmi_json_number(json, "stopped_ns", copy->stopped_ns);
    write_streams(json, copy);
    cmi_sections_stamps(json, copy);
    cmi_json_begin(json, "pools", '[');
    for (uint32_t i = 0; i < copy->pool_count; i++) {
        written = write_pool(json, copy, &copy->pools[i]) && written;
    }
    cmi_json_end(json, ']');
    cmi_json_end(json, '}');
    return written;
}

static void write_head(cmi_json *json, cmi_snapshot_reason reason)
{
    static const char *const reasons[] = {
        [CMI_SNAPSHOT_CALL] = "call", [CMI_SNAPSHOT_REFUSAL] = "refusal", [CMI_SNAPSHOT_SIGNAL] = "signal", [CMI_SNAPSHOT_EXIT] = "exit"};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    cmi_json_text(json, "format", "cudamempool-snapshot");
    cmi_json_number(json, "version", 1);
    cmi_json_text(json, "library", cmpool_version());
    cmi_json_text(json, "reason", reasons[reason]);
    cmi_json_begin(json, "process", '{');
    cmi_json_number(json, "pid", (uint64_t)getpid());
    cmi_json_text(json, "program", program_invocation_short_name);
    cmi_json_end(json, '}');
    cmi_json_begin(json, "time", '{');
    cmi_json_number(json, "monotonic_ns", cmi_clock_ns());
    cmi_json_number(json, "realtime_ns", (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    cmi_json_end(json, '}');
}

int cmi_snapshot_write(int file, cmi_device *const *devices, unsigned count, cmi_snapshot_reason reason)
{
    cmi_json json;
    if (!cmi_json_open(&json, file)) {
        return ENOMEM;
    }
    bool complete = true;
    cmi_json_begin(&json, NULL, '{');
    write_head(&json, reason);
    cmi_json_begin(&json, "devices", '[');
    for (unsigned i = 0; i < count; i++) {
        cmi_copy copy;
        if (cmi_copy_take(devices[i], reason != CMI_SNAPSHOT_EXIT, &copy)) {
            complete = write_device(&json, &copy) && complete;
        } else {
            complete = complete && !copy.pool_count;
        }
        cmi_copy_free(&copy);
    }
    cmi_json_end(&json, ']');
    cmi_sections_tags(&json); /* after the copies: every number in them is known */
    cmi_sections_stacks(&json);
    cmi_json_end(&json, '}');
    int error = cmi_json_close(&json);
    return error ? error : complete ? 0 : ENOMEM;
}
