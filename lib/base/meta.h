/*
 * Metadata memory: the one seam through which the library gets host memory for its own records. Never the program's malloc, so
 * interposed programs do not see us. Sizes are given back by the caller. Any thread; own lock (rank META, the innermost).
 */
#ifndef CMI_META_H
#define CMI_META_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, aligned to 64; NULL when the host has none (or a test makes the nth request fail). bytes > 0. */
void *cmi_meta_alloc(size_t bytes);
/* bytes as given to alloc. p may be NULL. */
void cmi_meta_free(void *p, size_t bytes);
/* A larger (or smaller) copy; the new part is zeroed; on failure NULL and p stays valid. p may be NULL (old_bytes 0). */
void *cmi_meta_resize(void *p, size_t old_bytes, size_t new_bytes);
/*
 * An array that grows where it is, so that pointers into it and one look-up are all that its users need. reserve: addresses only, nothing
 * is counted; halved until the host has so many, at least `least`; NULL: it has not. extend: zeroed memory from old_bytes on (multiples of
 * CMI_META_STEP); false as alloc's NULL. p of unreserve may be NULL.
 */
#define CMI_META_STEP 65536u /* pages of hosts are no longer */
void *cmi_meta_reserve(size_t *bytes, size_t least);
bool cmi_meta_extend(void *p, size_t old_bytes, size_t new_bytes);
void cmi_meta_unreserve(void *p, size_t bytes, size_t extended_bytes);
/* Bytes asked for and not yet given back, whole process. */
uint64_t cmi_meta_bytes(void);
/* Around fork(), so that the child finds this memory whole: before, and after in the parent and in the child. */
void cmi_meta_before_fork(void);
void cmi_meta_after_fork(void);
/* The library's code goes: nothing of it runs when a thread ends later. */
void cmi_meta_unload(void);
/* Tests: make the nth request from now (1 is the next) and the count-1 after it fail; count 0 is all from there; nth 0 turns it off. */
void cmi_meta_fail(uint64_t nth, uint64_t count);

#endif
