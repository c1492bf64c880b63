/* What NVTX tools are told of a call's block and pool (record/nvtx.h), where the pool has the option nvtx. For the files of lib/api. */
#ifndef CMI_API_ANNOTATE_H
#define CMI_API_ANNOTATE_H

#include "api/registry.h"

/* Leave a call that handed out `bytes` at an address (0: nothing), which tools are told before the program gets it. */
void cmi_annotate_leave(const cmi_entry *entry, uint64_t address, uint64_t bytes);
/* A block is about to be freed, and is told before it can be anybody else's: drops and retakes the lock. Nothing where the address is not a
 * block's. */
void cmi_annotate_going(const cmi_entry *entry, uint64_t address, cmi_nvtx_block *block);
/* It was not freed after all. No lock held. */
static inline void cmi_annotate_back(const cmi_nvtx_block *block)
{
    if (block->bytes) {
        cmi_nvtx_alloc(block);
    }
}

#endif
