/* Contents of a paused pool on the host: in pinned memory of the pool, or in a file. */
#ifndef CMI_PINNED_KEEP_H
#define CMI_PINNED_KEEP_H

#include "pool/pause.h"

/* file NULL: pinned memory. FILE: it exists already or cannot be made. verify: checksums are kept and compared. */
cmpool_status cmi_keep_new(cmi_keeper **keeper, const char *file, bool verify);

#endif
