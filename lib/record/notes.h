/*
 * Notes on blocks that have no record of their own (slots of slabs): time, tag and stack by address. Empty, and then free of cost, unless
 * a tag or history is in use. Guarded by the device lock of the pool they belong to.
 */
#ifndef CMI_NOTES_H
#define CMI_NOTES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cmi_note {
    uint64_t address; /* 0: an empty place */
    uint64_t time_ns;
    uint32_t tag, stack;
} cmi_note;

/* Open addressing over a power of two of places. All zero is empty. */
typedef struct cmi_notes {
    cmi_note *places;
    uint64_t room, count;
} cmi_notes;

/* A note that finds no host memory is left out. */
void cmi_notes_put(cmi_notes *notes, const cmi_note *note);
/* NULL: none. Valid until the next put or take. */
const cmi_note *cmi_notes_find(const cmi_notes *notes, uint64_t address);
/* Take a note out; all zero where there is none. */
cmi_note cmi_notes_take(cmi_notes *notes, uint64_t address);
void cmi_notes_fini(cmi_notes *notes);

#endif
