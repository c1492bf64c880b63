/*
 * Memory notifications: callbacks that a program registers for a device, called by the panel in the driver's place. Owns the list of
 * registrations. Guarded by sim.lock, which is not held while a callback runs; unregistering waits for one that runs.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>

typedef struct notification {
    struct notification *next;
    uint64_t handle;
    int device;
    CUasyncCallback function;
    void *user;
    unsigned calling; /* threads in the callback */
} notification;

enum { MOST_CALLED = 64 }; /* by one notification */

static notification *registered;

static void wait_until_idle(const notification *entry)
{
    while (entry->calling)
        pthread_cond_wait(&sim.changed, &sim.lock);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback function, void *user,
                                                              CUasyncCallbackHandle *callback)
{
    SIM_ENTER("cuDeviceRegisterAsyncNotification");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_NOTIFICATIONS);
    SIM_REFUSE_IF(!function || !callback, CUDA_ERROR_INVALID_VALUE);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    notification *entry = calloc(1, sizeof *entry);
    uint64_t handle = entry ? sim_handle_new(SIM_NOTIFICATION, entry) : 0;
    if (!handle) {
        free(entry);
        SIM_RETURN(CUDA_ERROR_UNKNOWN); /* of the codes that cuda.h lists */
    }
    *entry = (notification){.next = registered, .handle = handle, .device = device, .function = function, .user = user};
    registered = entry;
    *callback = SIM_AS_HANDLE(CUasyncCallbackHandle, handle);
    SIM_RETURN(CUDA_SUCCESS);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback)
{
    SIM_ENTER("cuDeviceUnregisterAsyncNotification");
    SIM_NEED_FEATURE(SIMCUDA_FEATURE_NOTIFICATIONS);
    SIM_REFUSE_IF(!sim_device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    notification *entry = sim_handle_get(SIM_NOTIFICATION, SIM_NUMBER(callback));
    SIM_REFUSE_IF(!entry || entry->device != device, CUDA_ERROR_INVALID_VALUE);
    notification **link = &registered;
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    sim_handle_drop(SIM_NOTIFICATION, entry->handle);
    wait_until_idle(entry);
    free(entry);
    SIM_RETURN(CUDA_SUCCESS);
}

int simcuda_notify_over_budget(int device, uint64_t bytes)
{
    sim_thread *self = sim_self();
    if (self->in_callback)
        return 0;
    uint64_t start = sim_panel_enter();
    uint64_t handles[MOST_CALLED];
    unsigned count = 0;
    int called = 0;
    for (const notification *entry = registered; entry && count < MOST_CALLED; entry = entry->next)
        if (entry->device == device)
            handles[count++] = entry->handle;
    for (unsigned i = 0; i < count; i++) {
        notification *entry = sim_handle_peek(SIM_NOTIFICATION, handles[i]);
        if (!entry)
            continue; /* unregistered meanwhile */
        CUasyncNotificationInfo info = {.type = CU_ASYNC_NOTIFICATION_TYPE_OVER_BUDGET, .info = {.overBudget = {bytes}}};
        entry->calling++;
        sim_panel_leave(start);
        self->in_callback = true; /* cuda.h bars registering from here; the simulated device bars every driver call */
        entry->function(&info, entry->user, SIM_AS_HANDLE(CUasyncCallbackHandle, handles[i]));
        self->in_callback = false;
        start = sim_panel_enter();
        entry->calling--;
        called++;
        pthread_cond_broadcast(&sim.changed);
    }
    sim_panel_leave(start);
    return called;
}

void sim_notification_reset(void)
{
    while (registered) {
        notification *entry = registered;
        wait_until_idle(entry);
        registered = entry->next;
        free(entry); /* handles are forgotten by sim_handle_reset */
    }
}
