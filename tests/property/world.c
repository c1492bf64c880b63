/*
 * Owns the device side of a random program: the simulated device's functions, streams, events, gates. One thread. Called by run.c.
 */
#include "world.h"
#include "base/clock.h"
#include "driver/driver.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bool world_fault(world *w, const char *format, ...)
{
    if (!w->result->failed) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(w->result->fault, sizeof w->result->fault, format, arguments);
        va_end(arguments);
        w->result->failed = true;
    }
    return false;
}

bool world_expect(world *w, const char *call, cmpool_status status, cmpool_status expected)
{
    return status == expected ||
           world_fault(w, "status: %s gave %s, expected %s (driver %s: %d)", call, cmpool_status_name(status), cmpool_status_name(expected),
                       cmpool_last_error()->driver_call, cmpool_last_error()->driver_code);
}

static bool driver(world *w, const char *call, CUresult code)
{
    return code == CUDA_SUCCESS || world_fault(w, "driver: the program's own %s gave %d", call, (int)code);
}

/* ---- start and end --------------------------------------------------------------------------------------------------------------- */

static bool find_functions(world *w)
{
    static void *library;
    const char *path = getenv("CUDAMEMPOOL_DRIVER");
    library = library ? library : dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library;
#define F(name)                                                \
    symbol = symbol ? dlsym(library, "simcuda_" #name) : NULL; \
    memcpy(&w->device.name, &symbol, sizeof symbol);
    WORLD_PANEL(F)
#undef F
#define F(name, parameters)                         \
    symbol = symbol ? dlsym(library, #name) : NULL; \
    memcpy(&w->device.name, &symbol, sizeof symbol);
    WORLD_DRIVER(F)
#undef F
    return symbol || world_fault(w, "start: no simulated device: %s", dlerror());
}

static _Atomic uint64_t seconds;

static uint64_t clock_of_world(void) { return atomic_load(&seconds) * UINT64_C(1000000000); }

void world_pass_time(unsigned more) { atomic_fetch_add(&seconds, more); }

bool world_start(world *w, const program_settings *settings, outcome *result)
{
    static const char *const orders[] = {"eager", "lazy", "random:"};
    *w = (world){.settings = settings, .result = result};
    if (!find_functions(w)) {
        return false;
    }
    char words[200], seed[32] = "", error[200];
    if (settings->order == 2) {
        snprintf(seed, sizeof seed, "%" PRIu64, settings->order_seed);
    }
    snprintf(words, sizeof words, "sim:%" PRIu64 ",order=%s%s", program_device_bytes(settings), orders[settings->order], seed);
    if (w->device.configure(words, error, sizeof error) != 0) {
        return world_fault(w, "start: %s", error);
    }
    cmi_driver_forget();
    atomic_store(&seconds, 1000);
    cmi_clock_replace(clock_of_world);
    bool good = driver(w, "cuInit", w->device.cuInit(0)) &&
                driver(w, "cuDevicePrimaryCtxRetain", w->device.cuDevicePrimaryCtxRetain(&w->context, 0)) &&
                driver(w, "cuCtxSetCurrent", w->device.cuCtxSetCurrent(w->context)) &&
                driver(w, "cuEventCreate", w->device.cuEventCreate(&w->event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < settings->streams && good; i++) {
        good = world_make_stream(w, i);
    }
    return good;
}

bool world_end(world *w)
{
    for (unsigned i = 0; i < STREAM_SLOTS; i++) {
        if (w->streams[i].lives && !w->streams[i].special &&
            !driver(w, "cuStreamDestroy", w->device.cuStreamDestroy_v2(w->streams[i].handle))) {
            return false;
        }
    }
    w->device.sibling_return(0, w->sibling_bytes);
    if (!driver(w, "cuEventDestroy", w->device.cuEventDestroy_v2(w->event))) {
        return false;
    }
    simcuda_census left;
    w->device.count_objects(0, &left);
    if (left.handles || left.mappings || left.reservations || left.mallocs || left.streams || left.events || left.contexts != 1 ||
        left.free_bytes != left.capacity_bytes) {
        return world_fault(w,
                           "leak: left on the device: %" PRIu64 " handles, %" PRIu64 " mappings, %" PRIu64 " reservations, %" PRIu64
                           " mallocs, %" PRIu64 " streams, %" PRIu64 " events, %" PRIu64 " contexts, %" PRIu64 " of %" PRIu64 " bytes free",
                           left.handles, left.mappings, left.reservations, left.mallocs, left.streams, left.events, left.contexts,
                           left.free_bytes, left.capacity_bytes);
    }
    w->device.cuCtxSetCurrent(NULL);
    return driver(w, "cuDevicePrimaryCtxRelease", w->device.cuDevicePrimaryCtxRelease_v2(0));
}

bool world_take_failure(world *w)
{
    bool struck = w->failing && w->device.failures_injected() > w->failures_before;
    if (struck) {
        past_forget(w);
    }
    if (w->failing) {
        w->device.fail_clear();
    }
    w->failing = false;
    return struck;
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------------- */

bool world_has_stream(const world *w, uint64_t slot) { return w->streams[slot].lives && !w->streams[slot].captures; }

bool world_make_stream(world *w, unsigned slot)
{
    world_stream *stream = &w->streams[slot];
    *stream = (world_stream){.lives = true, .special = slot < 2 && (w->settings->special_streams & 1u << slot)};
    if (stream->special) {
        stream->handle = slot == 0 ? NULL : CU_STREAM_PER_THREAD;
        return true;
    }
    return driver(w, "cuStreamCreate", w->device.cuStreamCreate(&stream->handle, CU_STREAM_NON_BLOCKING));
}

bool world_order(world *w, unsigned before, unsigned after)
{
    return before == after || (driver(w, "cuEventRecord", w->device.cuEventRecord(w->event, w->streams[before].handle)) &&
                               driver(w, "cuStreamWaitEvent", w->device.cuStreamWaitEvent(w->streams[after].handle, w->event, 0)));
}

unsigned world_heir(const world *w, unsigned slot)
{
    unsigned heir = 0;
    while (heir < STREAM_SLOTS && (heir == slot || !world_has_stream(w, heir))) {
        heir++;
    }
    return heir;
}

bool world_hand_over(world *w, unsigned slot)
{
    unsigned heir = world_heir(w, slot);
    bool needed = false;
    for (unsigned i = 0; i < POOL_SLOTS; i++) {
        bool launched = w->pools[i].is_set && w->pools[i].last == slot;
        w->pools[i].last = launched ? heir : w->pools[i].last;
        needed = needed || launched;
    }
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        needed = needed || (w->blocks[i].bytes && w->blocks[i].touches[slot] == TOUCHED);
    }
    if (needed && !world_order(w, slot, heir)) {
        return false;
    }
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        world_block *block = &w->blocks[i];
        if (!block->bytes || block->touches[slot] == NOT_TOUCHED) {
            continue;
        }
        if (block->touches[slot] == TOUCHED) {
            block->touches[heir] = TOUCHED;
            block->writer = block->writer == slot ? heir : block->writer;
        } else {
            block->sealed = true;
        }
        block->touches[slot] = NOT_TOUCHED;
    }
    return true;
}

bool world_end_stream(world *w, unsigned slot, bool retire)
{
    if (world_heir(w, slot) == STREAM_SLOTS || !w->streams[slot].lives || w->streams[slot].special) {
        return true;
    }
    if (!world_hand_over(w, slot)) {
        return false;
    }
    /* No stream has the slot any more: that a block was made on it means nothing now. */
    for (unsigned i = 0; i < BLOCK_SLOTS; i++) {
        w->blocks[i].stream = w->blocks[i].stream == slot ? STREAM_SLOTS : w->blocks[i].stream;
    }
    if (retire && !world_expect(w, "cmpool_stream_retire", cmpool_stream_retire(0, w->streams[slot].handle), CMPOOL_OK)) {
        return false;
    }
    w->streams[slot].lives = false;
    return driver(w, "cuStreamDestroy", w->device.cuStreamDestroy_v2(w->streams[slot].handle));
}

/* ---- gates ------------------------------------------------------------------------------------------------------------------------ */

bool world_close_gate(world *w, unsigned stream)
{
    if (w->gate_count == GATES_MOST) {
        return true;
    }
    int gate = w->device.gate_close(w->streams[stream].handle);
    w->gates[w->gate_count++] = gate;
    return gate > 0 || world_fault(w, "driver: a gate could not be closed: %d", gate);
}

void world_let_finish(world *w)
{
    while (w->gate_count) {
        world_open_gate(w, 0);
    }
    w->device.run_device();
}

void world_open_gate(world *w, unsigned which)
{
    if (w->gate_count) {
        which %= w->gate_count;
        w->device.gate_open(w->gates[which]);
        w->gates[which] = w->gates[--w->gate_count];
    }
}
