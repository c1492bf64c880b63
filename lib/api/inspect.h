/* Snapshots of the whole process, for the files of lib/api. No lock held. */
#ifndef CMI_API_INSPECT_H
#define CMI_API_INSPECT_H

#include "inspect/inspect.h"

/* A snapshot of every device into an open file; or into the file that a pattern with "%p" names. OK, INVALID_ARGUMENT, FILE,
 * OUT_OF_HOST_MEMORY. */
cmpool_status cmi_inspect_snapshot(int file, cmi_snapshot_reason reason);
cmpool_status cmi_inspect_snapshot_to(const char *pattern, cmi_snapshot_reason reason);

#endif
