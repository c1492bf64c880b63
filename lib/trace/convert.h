/* Pictures into traces and back, and out to files. For tools and tests; no locks, no state. */
#ifndef CMI_TRACE_CONVERT_H
#define CMI_TRACE_CONVERT_H

#include "trace/picture.h"
#include "trace/trace.h"

/* The device (an index) with the most events, then with the most bytes; CMI_NONE when there is none. */
uint32_t cmi_picture_busiest_device(const cmi_picture *picture);

/*
 * The history of one device as a trace that the replayer runs: what was live before the first event is allocated first, in order of
 * address. A picture without a history becomes the allocations of what it holds. Lines are numbers of events, from 1. Returns 0, or -1 with
 * one line "NAME:N: fault" in fault.
 */
int cmi_trace_from_picture(const char *name, const cmi_picture *picture, uint32_t device, cmi_trace *trace, char *fault,
                           size_t fault_bytes);

/*
 * A state for a picture that has a history only: segments where the history has blocks, with what is live at its end. They are made up, and
 * larger than what a device held if addresses were made up too; has_state stays false. Returns 0, or -1 without host memory.
 */
int cmi_picture_make_state(cmi_picture *picture);

/* ---- writers ------------------------------------------------------------------------------------------------------------------------- */

/* Where a writer's bytes go; 0, or -1 when they could not be written. */
typedef int cmi_write(void *user, const void *data, size_t bytes);

/* All return 0, or -1 when something could not be written or there was no host memory. */
int cmi_write_cmtrace(const cmi_trace *trace, cmi_write *write, void *user);
/* A PyTorch memory snapshot: a pickle of protocol 2 with at most 1,000 items in a batch, or the same in JSON. */
int cmi_write_pytorch(const cmi_picture *picture, bool json, cmi_write *write, void *user);
/* Chrome trace JSON, which Perfetto reads: counters of each device, refusals, annotations, and each event as the profiler writes it. */
int cmi_write_perfetto(const cmi_picture *picture, cmi_write *write, void *user);

#endif
