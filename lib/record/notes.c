/*
 * Notes by address. Owns the places (metadata memory); guarded by the device lock of the pool they belong to. Called by pool/history.c and
 * read by api and inspect.
 */
#include "record/notes.h"

#include "base/base.h"

enum { FIRST_ROOM = 1024 };

static uint64_t home(const cmi_notes *notes, uint64_t address)
{
    return (address * UINT64_C(0x9e3779b97f4a7c15)) >> 20 & (notes->room - 1);
}

/* The place of an address, or the empty one where it belongs. */
static cmi_note *place_of(const cmi_notes *notes, uint64_t address)
{
    uint64_t i = home(notes, address);
    while (notes->places[i].address && notes->places[i].address != address) {
        i = (i + 1) & (notes->room - 1);
    }
    return &notes->places[i];
}

static bool grow(cmi_notes *notes)
{
    cmi_notes larger = {.room = notes->room ? notes->room * 2 : FIRST_ROOM, .count = notes->count};
    larger.places = cmi_meta_alloc(larger.room * sizeof *larger.places);
    if (!larger.places) {
        return false;
    }
    for (uint64_t i = 0; i < notes->room; i++) {
        if (notes->places[i].address) {
            *place_of(&larger, notes->places[i].address) = notes->places[i];
        }
    }
    cmi_notes_fini(notes);
    *notes = larger;
    return true;
}

void cmi_notes_put(cmi_notes *notes, const cmi_note *note)
{
    if (notes->count * 4 >= notes->room * 3 && !grow(notes)) {
        return;
    }
    cmi_note *place = place_of(notes, note->address);
    notes->count += !place->address;
    *place = *note;
}

const cmi_note *cmi_notes_find(const cmi_notes *notes, uint64_t address)
{
    const cmi_note *place = notes->count ? place_of(notes, address) : NULL;
    return place && place->address ? place : NULL;
}

cmi_note cmi_notes_take(cmi_notes *notes, uint64_t address)
{
    const cmi_note none = {0};
    cmi_note *place = notes->count ? place_of(notes, address) : NULL;
    if (!place || !place->address) {
        return none;
    }
    cmi_note taken = *place;
    notes->count--;
    /* Those behind it that would be looked for through the gap move up. */
    uint64_t mask = notes->room - 1, gap = (uint64_t)(place - notes->places);
    for (uint64_t i = (gap + 1) & mask; notes->places[i].address; i = (i + 1) & mask) {
        uint64_t wanted = home(notes, notes->places[i].address);
        if (((i - wanted) & mask) >= ((i - gap) & mask)) {
            notes->places[gap] = notes->places[i];
            gap = i;
        }
    }
    notes->places[gap] = none;
    return taken;
}

void cmi_notes_fini(cmi_notes *notes)
{
    cmi_meta_free(notes->places, notes->room * sizeof *notes->places);
    *notes = (cmi_notes){0};
}
