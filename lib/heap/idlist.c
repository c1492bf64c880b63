/*
 * Growing arrays of numbers for the heap's work lists. Owns the arrays; guarded by whoever guards the heap; called by the files of
 * lib/heap, which reserve room before they push.
 */
#include "heap/internal.h"

bool cmi_ids_reserve(cmi_id_list *list, uint32_t room)
{
    if (room <= list->room) {
        return true;
    }
    uint32_t wanted = list->room ? list->room : 16;
    while (wanted < room) {
        wanted *= 2;
    }
    uint32_t *grown = cmi_meta_resize(list->ids, list->room * sizeof *list->ids, wanted * sizeof *list->ids);
    if (!grown) {
        return false;
    }
    list->ids = grown;
    list->room = wanted;
    return true;
}

void cmi_ids_fini(cmi_id_list *list)
{
    cmi_meta_free(list->ids, list->room * sizeof *list->ids);
    *list = (cmi_id_list){0};
}
