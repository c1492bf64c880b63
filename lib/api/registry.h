/* Handles and devices of this process: what every public function starts and ends with. */
#ifndef CMI_API_REGISTRY_H
#define CMI_API_REGISTRY_H

#include "pinned/pinned.h"

/* What a handle stands for, with the device lock held. */
typedef struct cmi_entry {
    cmi_device *device;
    cmi_pool *pool;
    uint32_t owner;
} cmi_entry;

/* The calling thread's current context where it matters: NULL and per-thread default streams are those of the current context. Asked before
 * a lock is taken. */
typedef struct cmi_here {
    CUcontext context; /* NULL: the stream is not a default stream, or no context is current */
    int device;        /* its ordinal */
} cmi_here;
cmi_here cmi_registry_look(void);
static inline cmi_here cmi_registry_here(cmpool_stream stream)
{
    const cmi_here nowhere = {NULL, -1};
    bool named = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    return named ? cmi_registry_look() : nowhere;
}
/* Whose default stream a call on this device means: that of the current context if it is on the device, else (NULL) of the primary one. */
static inline CUcontext cmi_here_on(const cmi_here *here, const cmi_device *device)
{
    return here->device == device->ordinal ? here->context : NULL;
}

/* Find a pool and lock its device; calls_inside keeps the pool from being destroyed while the lock is dropped. */
cmpool_status cmi_registry_enter(cmpool_t handle, cmi_entry *entry);
/* Drops the lock for good, and before that for a while where memory is due to go back to the driver. */
void cmi_registry_leave(const cmi_entry *entry);
/* Where a pointer given to this handle points: cmi_pool_place_for its owner. */
cmpool_status cmi_registry_find_block(const cmi_entry *entry, const void *ptr, cmi_place *place);
/* Finish a public call: on failure the thread's error detail gets status and call and keeps only the numbers that belong to it. */
cmpool_status cmi_registry_finish(cmpool_status status, const char *call);

/* Calls that ask for no memory: the driver's own want of it is a driver error like any other. */
static inline cmpool_status cmi_registry_not_memory(cmpool_status status)
{
    return status == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY ? CMPOOL_ERR_DRIVER : status;
}

/* FORKED in a child of the process that first used the library, else OK. Every public function asks first. */
cmpool_status cmi_registry_usable(void);
/* From here on a child is told, and an exit told from a dlclose (lifecycle.c). */
void cmi_registry_watch_process(void);

/* The device record of an ordinal, or NULL when no pool was ever made on it. */
cmi_device *cmi_registry_device(int ordinal);

/* The handles in use on devices without calls inside, one after the other from *next = 0 on; 0: no more. */
cmpool_t cmi_registry_next_idle(uint32_t *next);
cmpool_status cmi_registry_create(cmpool_t *handle, int ordinal, const cmi_options *options, const int *peers, unsigned peer_count);
cmpool_status cmi_registry_create_inside(cmpool_t *handle, cmpool_t parent, cmi_owner_kind kind);
cmpool_status cmi_registry_destroy(cmpool_t handle);
/* All pages of a device are granted to a peer too, those there are and those to come. Nothing where the device has no pool. */
cmpool_status cmi_registry_add_peer(int ordinal, int peer);
/* Captures: set 0 is none. None begins while a pool is made or destroyed. */
cmpool_status cmi_registry_begin_capture(cmpool_t set);
cmpool_status cmi_registry_release_capture(cmpool_t handle);

#endif
