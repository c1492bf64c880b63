/*
 * The door of lib/inspect: what can be seen of devices and pools from outside. Reads only; takes device locks itself, for as long as a copy
 * takes, and formats without any lock. Called by api.
 */
#ifndef CMI_INSPECT_H
#define CMI_INSPECT_H

#include "pool/pool.h"

typedef enum cmi_snapshot_reason {
    CMI_SNAPSHOT_CALL,
    CMI_SNAPSHOT_REFUSAL,
    CMI_SNAPSHOT_SIGNAL,
    CMI_SNAPSHOT_EXIT /* the driver may be gone: it is not asked */
} cmi_snapshot_reason;

/*
 * Write a snapshot (snapshot.schema.json) of these devices, those without a pool left out, to a file that is open for writing. No lock
 * held. Returns 0 or an errno; ENOMEM: no host memory for a copy.
 */
int cmi_snapshot_write(int file, cmi_device *const *devices, unsigned count, cmi_snapshot_reason reason);

#endif
