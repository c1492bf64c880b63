/*
 * Recording a trace (format cmtrace-1, lib/trace/trace.h) of what happens on a device. Calls append items of 24 bytes under the device
 * lock; full pieces are formatted and written by whoever comes out of a call then, under no lock but the recorder's own.
 */
#ifndef CMI_TRACER_H
#define CMI_TRACER_H

#include "base/base.h"

typedef enum cmi_trace_item_kind {
    CMI_TRACED_ALLOC,
    CMI_TRACED_FREE,
    CMI_TRACED_USE,
    CMI_TRACED_STEP /* its number in `bytes` */
} cmi_trace_item_kind;

typedef struct cmi_tracer cmi_tracer;

/* Make the file that a pattern with "%p" and "%d" names; one that ends in ".gz" is a gzip file (without compression). NULL: it could not be
 * made, or no host memory; that has been logged. */
cmi_tracer *cmi_tracer_open(const char *pattern, int device, uint64_t device_bytes);
/* Device lock held. An item that finds no host memory is lost, and counted. */
void cmi_tracer_append(cmi_tracer *tracer, cmi_trace_item_kind kind, uint64_t address, uint64_t bytes, uint32_t stream);
/* Is there a full piece? Device lock held. */
bool cmi_tracer_is_due(const cmi_tracer *tracer);
/* Write what is full, or all there is. The device lock, which is taken for a moment, is not held. */
void cmi_tracer_drain(cmi_tracer *tracer, cmi_lock *device_lock, bool all);
/* After the last item and drain. */
void cmi_tracer_close(cmi_tracer *tracer);

#endif
