/*
 * The control file: how a process behind the preload library is asked, from outside, to give its device memory up for a while. There is one
 * where the process has the option control:on, from its first request for device memory on. `cudamempool pause` and `cudamempool resume`
 * are those who ask.
 *
 * The file is <folder>/cudamempool-control.<user>.<process> with mode 0600; the folder is that of the environment variable
 * CUDAMEMPOOL_LIVE_DIR, else /dev/shm. Byte 0 is locked for writing (fcntl) while the process lives; who asks holds a lock on byte 1, so
 * that it is alone.
 *
 * The library starts no thread and does nothing in a signal handler, so a request is carried out by the next call for memory that any
 * thread of the process makes, and stands until then. Who asks writes the request, notes `answers`, changes `state` from IDLE to ASKED (or,
 * where the process stands still, from STOPPED to RESUME) and wakes who waits for it; `answers` rises when it has been carried out, and can
 * be waited for. A request that nobody has taken yet is taken back by changing ASKED to IDLE. Both words are futexes between processes.
 *
 * While the whole pool is paused the state is STOPPED, and every thread that calls for memory stands still in its call until the pool has
 * been resumed. Where only the memory of a tag was paused the state is IDLE again, and the program goes on.
 */
#ifndef CUDAMEMPOOL_CONTROL_H
#define CUDAMEMPOOL_CONTROL_H

#include <stdint.h>

#define CMPOOL_CONTROL_MAGIC "cmpctrl" /* with its end, 8 bytes; written last */

enum { CMPOOL_CONTROL_VERSION = 1, CMPOOL_CONTROL_TEXT_BYTES = 256 };

typedef enum cmpool_control_state {
    CMPOOL_CONTROL_IDLE,
    CMPOOL_CONTROL_ASKED,
    CMPOOL_CONTROL_AT_WORK,
    CMPOOL_CONTROL_STOPPED,
    CMPOOL_CONTROL_RESUME
} cmpool_control_state;

typedef enum cmpool_control_action { CMPOOL_CONTROL_PAUSE, CMPOOL_CONTROL_RESUME_PAUSED } cmpool_control_action;

typedef struct cmpool_control {
    char magic[8];
    uint32_t version, bytes;
    uint64_t process;
    uint32_t state;   /* cmpool_control_state */
    uint32_t answers; /* requests that were carried out, or refused */
    /* the request */
    uint32_t action, contents;            /* cmpool_control_action; cmpool_contents */
    char tag[CMPOOL_CONTROL_TEXT_BYTES];  /* only memory of this tag; empty: all */
    char file[CMPOOL_CONTROL_TEXT_BYTES]; /* for kept contents; empty: pinned host memory */
    /* the answer */
    int32_t status;           /* cmpool_status */
    int32_t device;           /* on which it was refused */
    uint64_t bytes_given;     /* to the devices, by a pause */
    uint64_t fixed_addresses; /* of blocks that cannot be paused */
} cmpool_control;

#endif
