/*
 * Which case a refusal is, from figures alone: one judge for the library's own refusals, for snapshots and for messages of other
 * allocators, so that all three use the same words. Pure functions; no locks; whoever has figures calls.
 */
#ifndef CMI_INSPECT_VERDICT_H
#define CMI_INSPECT_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum cmi_verdict {
#define CMPOOL_VERDICT(name, number, key, sentence) CMI_VERDICT_##name = number,
#include <cudamempool/verdicts.def>
#undef CMPOOL_VERDICT
    CMI_VERDICTS, /* how many */
} cmi_verdict;

#define CMI_FIGURE_UNKNOWN UINT64_MAX

/* What is known of the moment of a refusal, in bytes; what is not is CMI_FIGURE_UNKNOWN (cmi_shortage_init sets all so). */
typedef struct cmi_shortage {
    uint64_t request;
    uint64_t live;         /* handed out to the program */
    uint64_t idle;         /* held by the allocator and not live; pending ones included */
    uint64_t driver_free;  /* what the driver says is free on the device */
    uint64_t total;        /* of the device */
    uint64_t limit;        /* the allocator may hold no more than this */
    uint64_t pending;      /* part of idle: freed, work of a stream outstanding */
    uint64_t private_live; /* part of live: allocated inside private pools, which count all of theirs as live */
    uint64_t private_idle; /* part of idle: of private pools that did not serve the request */
    uint64_t largest_idle; /* longest run of idle bytes that one request could have */
    uint64_t outside;      /* held on the device by others: processes, and libraries of this process beside the allocator */
    uint64_t doubt;        /* how far idle + driver_free - request may be off, since the figures were rounded; 0: exact */
    bool stream_ordered;   /* the allocator is the driver's own pool, which knows what streams have not finished */
} cmi_shortage;

void cmi_shortage_init(cmi_shortage *shortage);

/* The case; CMI_VERDICT_UNCLEAR where the figures do not tell. */
cmi_verdict cmi_verdict_of(const cmi_shortage *shortage);

/* What is missing even with perfect packing, 0 if nothing is, CMI_FIGURE_UNKNOWN if it cannot be told. */
uint64_t cmi_shortage_bytes(const cmi_shortage *shortage);

/* What the driver would give now within the limit; CMI_FIGURE_UNKNOWN if neither figure is known. */
uint64_t cmi_shortage_driver_room(const cmi_shortage *shortage);

const char *cmi_verdict_key(cmi_verdict verdict);
const char *cmi_verdict_sentence(cmi_verdict verdict);

#endif
