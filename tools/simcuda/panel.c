/*
 * The control panel: stand-ins for kernels and for time, the sibling, the census. Takes sim.lock; called by tests and tools only.
 */
#include "sim.h"
#include "sim_inner.h"

#include <string.h>

int simcuda_touch(void *stream, uint64_t address, size_t bytes, int write)
{
    if (sim_self()->in_callback)
        return CUDA_ERROR_NOT_PERMITTED;
    uint64_t start = sim_panel_enter();
    sim_say_where("simcuda_touch");
    sim.call_number++;
    CUresult code = sim.initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    sim_lane *lane = code == CUDA_SUCCESS ? sim_stream_lane(stream, false, &code) : NULL;
    if (lane && (bytes == 0 || address + bytes < address)) {
        code = CUDA_ERROR_INVALID_VALUE;
    } else if (lane) {
        sim_op op = {.kind = SIM_OP_TOUCH, .reach_count = 1, .reach = {{address, bytes, write != 0}}};
        code = sim_submit(lane, &op);
        sim_device_after_call();
    }
    sim_panel_leave(start);
    return (int)code;
}

int simcuda_gate_close(void *stream)
{
    uint64_t start = sim_panel_enter();
    sim_say_where("simcuda_gate_close");
    CUresult code = CUDA_ERROR_NOT_INITIALIZED;
    sim_lane *lane = sim.initialised ? sim_stream_lane(stream, false, &code) : NULL;
    int gate = lane ? sim_gate_new() : 0;
    if (gate) {
        sim_op op = {.kind = SIM_OP_GATE, .u.gate = gate};
        if (sim_submit(lane, &op) != CUDA_SUCCESS)
            gate = 0;
    }
    sim_panel_leave(start);
    return gate;
}

void simcuda_gate_open(int gate)
{
    uint64_t start = sim_panel_enter();
    sim_gate_set(gate);
    sim_device_after_call();
    sim_panel_leave(start);
}

void simcuda_run_device(void)
{
    uint64_t start = sim_panel_enter();
    sim_device_run_all();
    sim_panel_leave(start);
}

/* ---- the sibling ------------------------------------------------------------------------------------------------------------------- */

int simcuda_sibling_take(int device, uint64_t bytes, uint64_t *shortfall)
{
    uint64_t start = sim_panel_enter();
    if (!sim.configured)
        sim_config_default();
    uint64_t missing = 0;
    CUresult code = CUDA_ERROR_INVALID_DEVICE;
    if (sim_device_valid(device)) {
        uint64_t there = sim_device_free(device);
        missing = bytes > there ? bytes - there : 0;
        code = missing ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        if (!missing)
            sim.devices[device].sibling += bytes;
    }
    if (shortfall)
        *shortfall = missing;
    sim_panel_leave(start);
    return (int)code;
}

void simcuda_sibling_return(int device, uint64_t bytes)
{
    uint64_t start = sim_panel_enter();
    if (sim_device_valid(device)) {
        uint64_t taken = sim.devices[device].sibling;
        sim.devices[device].sibling = bytes < taken ? taken - bytes : 0;
    }
    sim_panel_leave(start);
}

void simcuda_refuse_memory(int device, int on)
{
    uint64_t start = sim_panel_enter();
    if (sim_device_valid(device))
        sim.devices[device].refuse = on != 0;
    sim_panel_leave(start);
}

void simcuda_set_mapping_ceiling(uint64_t mappings)
{
    uint64_t start = sim_panel_enter();
    sim.ceiling = mappings;
    sim_panel_leave(start);
}

/* ---- census ------------------------------------------------------------------------------------------------------------------------ */

void simcuda_count_objects(int device, simcuda_census *census)
{
    uint64_t start = sim_panel_enter();
    memset(census, 0, sizeof *census);
    if (sim_device_valid(device)) {
        const sim_device *owner = &sim.devices[device];
        census->capacity_bytes = owner->capacity;
        census->free_bytes = sim_device_free(device);
        census->sibling_bytes = owner->sibling;
        census->peak_used_bytes = owner->peak_used;
    }
    census->handles = sim.handles;
    census->handle_bytes = sim.handle_bytes;
    sim_mapping_census(census);
    uint64_t registered;
    census->pinned_bytes += sim_registered_bytes(&registered);
    census->pinned += registered;
    census->streams = sim_handle_live(SIM_STREAM);
    census->events = sim_handle_live(SIM_EVENT);
    census->contexts = sim_handle_live(SIM_CONTEXT);
    census->graphs = sim_other_graphs();
    census->notifications = sim_handle_live(SIM_NOTIFICATION);
    sim_panel_leave(start);
}
