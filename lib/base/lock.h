/*
 * Locks with ranks. A thread takes locks in rising rank only; builds with CMI_VALIDATE check it and stop where it does not.
 */
#ifndef CMI_LOCK_H
#define CMI_LOCK_H

#include <pthread.h>

typedef enum cmi_lock_rank {
    CMI_RANK_REGISTRY =
        1,           /* the process tables: devices, pool handles; driver calls under it only to make and end pools, devices and sets */
    CMI_RANK_TRACE,  /* a recorder and its file */
    CMI_RANK_DEVICE, /* all pools of one device (the "pool lock"); no driver call under it */
    CMI_RANK_VMM,    /* a device's page calls; held over driver calls */
    CMI_RANK_RECORD, /* tables of names and stacks */
    CMI_RANK_META
} cmi_lock_rank;

typedef struct cmi_lock {
    pthread_mutex_t mutex;
    cmi_lock_rank rank;
} cmi_lock;

#define CMI_LOCK_INITIALIZER(r)        \
    {                                  \
        PTHREAD_MUTEX_INITIALIZER, (r) \
    }

void cmi_lock_init(cmi_lock *lock, cmi_lock_rank rank);
void cmi_lock_fini(cmi_lock *lock);
void cmi_lock_acquire(cmi_lock *lock);
void cmi_lock_release(cmi_lock *lock);
/* Debug builds: abort the test with a message unless the calling thread holds (or does not hold) lock. Nothing in release. */
void cmi_lock_assert_held(const cmi_lock *lock);
/* Non-zero when the calling thread holds any lock of that rank (debug builds; always 0 in release). */
int cmi_lock_rank_held(cmi_lock_rank rank);

#endif
