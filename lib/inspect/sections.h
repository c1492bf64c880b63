/* The parts of a snapshot, for snapshot.c: each writes one member of the object that is open. */
#ifndef CMI_INSPECT_SECTIONS_H
#define CMI_INSPECT_SECTIONS_H

#include "inspect/copy.h"
#include "inspect/json.h"

void cmi_sections_options(cmi_json *json, const cmi_options *options);
void cmi_sections_tags(cmi_json *json);
void cmi_sections_stacks(cmi_json *json);
void cmi_sections_history(cmi_json *json, const cmi_pool_copy *pool);

/* The number by which rows name a stamp: 0 is none, then one for each stream, then the device's own. */
static inline uint64_t cmi_sections_stamp(const cmi_copy *copy, uint32_t stamp)
{
    return stamp == CMI_NO_STAMP ? 0 : (uint64_t)copy->device.stream_count + stamp;
}
void cmi_sections_stamps(cmi_json *json, const cmi_copy *copy);
/* owners, ranges, slots, runs, slabs, slot_notes and pending of a pool. false: no host memory; nothing written. */
bool cmi_sections_memory(cmi_json *json, const cmi_copy *copy, const cmi_pool_copy *pool);

#endif
