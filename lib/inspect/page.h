/*
 * The live page (<cudamempool/live.h>): figures of the pools of this process where other processes can read them. Called by api: opening,
 * claiming and giving up under the registry lock, publishing and noting under the device lock of the pool.
 */
#ifndef CMI_INSPECT_PAGE_H
#define CMI_INSPECT_PAGE_H

#include "pool/pool.h"

#include <stdatomic.h>

/* The pool is shown from here on, with this number, if the page can be had and has a place left; a message says where not. */
void cmi_page_show(cmi_pool *pool, uint64_t number);
/* The pool is about to end. */
void cmi_page_hide(cmi_pool *pool);

/* Write the figures of a pool that is shown; what needs counting is counted if that is due. */
void cmi_page_publish(cmi_pool *pool);
/* One more refusal of this verdict (number of verdicts.def). */
void cmi_page_note_refusal(cmi_pool *pool, unsigned verdict);

/* The word that a reader sets where it wants all pools published; a word of zero without a page. Read by every call. */
extern _Atomic(const _Atomic uint64_t *) cmi_page_wanted __attribute__((visibility("hidden")));
/* Whether it is set; and it is not any more. */
bool cmi_page_take_wish(void);

/* The process ends: the file goes. The code goes: the memory too; nothing is published any more. */
void cmi_page_close(void);
void cmi_page_unload(void);
/* In a fork's child, which has no page. */
void cmi_page_forget(void);

#endif
