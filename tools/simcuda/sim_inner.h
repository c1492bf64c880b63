/*
 * What the files of the device model share among themselves and the other half of simcuda (graphs, pools, IPC, runtime) has no use
 * for. All of it is called with sim.lock held.
 */
#ifndef SIM_INNER_H
#define SIM_INNER_H

#include "sim.h"

/* call.c */
void sim_say_where(const char *name); /* for panel functions that stand for a call */
void sim_call_reset(void);

/* config.c: cuInit's part: take the configuration from the environment unless there is one. */
void sim_config_default(void);

/* finding.c, handle.c */
void sim_finding_reset(void);
void sim_handle_reset(void);
const char *sim_lane_text(uint32_t index, char *text, size_t room);

/* lane.c */
struct sim_work {
    sim_work *next;
    uint32_t tick;
    bool waits; /* for lane on_lane to reach on_tick; else runs op */
    uint32_t on_lane, on_tick;
    sim_op op;
};
typedef struct sim_indices {
    uint32_t *list, count, room;
} sim_indices;
bool sim_index_push(sim_indices *list, uint32_t index);
sim_lane *sim_lane_at(uint32_t index); /* NULL for a number that no lane has now */
bool sim_lane_done(uint32_t index, uint32_t tick);
/* A new tick for work on the lane, in all the order that holds before it. */
uint32_t sim_lane_begin(sim_lane *lane);
/* The tick needs the device to do op (copied), or NULL for plain work. False: the host has no memory. */
bool sim_lane_enqueue(sim_lane *lane, const sim_op *op);
void sim_device_after_call(void); /* order random: a step; eager: what has become possible */
void sim_device_run_all(void);
/* A query found the work not done. True: the host has asked so often in a row that it is waiting, and now the work is done. */
bool sim_lane_poll(uint32_t index, uint32_t tick);
void sim_lane_reset(void);

/* progress.c */
/* Work at tick waits for another lane's; nothing if that is done. */
void sim_work_wait(sim_lane *lane, uint32_t on_lane, uint32_t on_tick, uint32_t tick);
void sim_work_drop(sim_lane *lane); /* the queue, undone */
void sim_progress_reset(void);
void sim_lane_forget_context(sim_context *context);

/* front.c */
/* Before the device is replaced: whoever stands in front of the driver is told that its contexts end. No lock may be held. */
void sim_front_leave(void);

/* operation.c */
void sim_op_execute(const sim_op *op); /* not callbacks */
bool sim_gate_is_open(int gate);
void sim_gate_set(int gate);
int sim_gate_new(void);
void sim_gate_reset(void);

/* thread.c, context.c, stream.c, event.c */
bool sim_thread_push(sim_thread *self, const sim_context *context); /* make it current */
void sim_thread_refresh(void); /* the calling thread's record belongs to an earlier configuration: empty it */
void sim_context_reset(void);
void sim_context_clear(sim_context *context);
void sim_stream_forget_context(sim_context *context);
void sim_event_forget_context(sim_context *context);
void sim_event_reset(void);
void sim_stream_reset(void);
sim_lane *sim_context_legacy(sim_context *context);

/* physical.c, address.c, mapping.c, host.c */
sim_physical *sim_physical_new(int device, uint64_t bytes, uint64_t charge, CUresult *code);
void sim_physical_unref(sim_physical *physical); /* frees it when neither handle nor mapping is left */
void sim_physical_reset(void);
bool sim_content_map(uint64_t address, const sim_physical *physical, uint64_t bytes);
bool sim_content_own(sim_physical *physical, int file);
/* share.c */
bool sim_share_prepare(sim_physical *physical);
int sim_share_descriptor(const sim_physical *physical); /* a new one, or -1 */
/* The memory that a descriptor stands for, with a handle or still without; NULL: *code. */
sim_physical *sim_share_open(int descriptor, CUresult *code);
void sim_content_unmap(uint64_t address, uint64_t bytes);
/* Unused addresses, PROT_NONE; 0 when there are none. */
uint64_t sim_address_take(uint64_t bytes, uint64_t alignment, uint64_t hint);
void sim_address_give(uint64_t base, uint64_t bytes);
void sim_address_reset(void);
sim_mapping *sim_mapping_new(uint64_t address, uint64_t bytes, sim_physical *physical, sim_memory_kind kind);
void sim_mapping_drop(sim_mapping *mapping); /* from the tables; unrefs the physical memory */
void sim_mapping_forget_context(sim_context *context);
void sim_mapping_reset(void);
void sim_mapping_census(simcuda_census *census);
sim_range *sim_range_new(uint64_t base, uint64_t bytes);
void sim_range_drop(sim_range *range);
sim_physical *sim_physical_of(uint64_t handle); /* a handle the program may use, or NULL, reported */
void sim_registered_reset(void);
uint64_t sim_registered_bytes(uint64_t *count);
bool sim_host_is_pinned(uint64_t address, uint64_t bytes);

/* notify.c */
void sim_notification_reset(void); /* waits for callbacks that run */

/* kernels.c */
void sim_kernels_reset(void);

/* check.c */
void sim_page_clear(sim_page *page);
void sim_epochs_clear(sim_epochs *epochs);

#endif /* SIM_INNER_H */
