/* What the files of lib/heap share with each other and with nobody else. */
#ifndef CMI_HEAP_INTERNAL_H
#define CMI_HEAP_INTERNAL_H

#include "heap/heap.h"

/* block.c: records and the address-ordered list. */
cmi_block_id cmi_block_new(cmi_heap *heap); /* from what reserve_records made ready */
void cmi_block_retire(cmi_heap *heap, cmi_block_id id);
/* Cut block at `at`; returns the new block [at, end), linked behind, with the same kind and attributes. FREE blocks must be out of their
 * bin. */
cmi_block_id cmi_block_split(cmi_heap *heap, cmi_block_id id, uint64_t at);
/* high, the next neighbour of low, becomes part of low. */
void cmi_block_absorb(cmi_heap *heap, cmi_block_id low, cmi_block_id high);

/* tree.c: treaps over (bytes, offset), linked through left and right. */
void cmi_tree_insert(cmi_heap *heap, cmi_block_id *root, cmi_block_id id);
void cmi_tree_remove(cmi_heap *heap, cmi_block_id *root, cmi_block_id id);
/* Smallest entry not below (bytes, offset), or 0. */
cmi_block_id cmi_tree_at_least(const cmi_heap *heap, cmi_block_id root, uint64_t bytes, uint64_t offset);
cmi_block_id cmi_tree_lowest(const cmi_heap *heap, cmi_block_id root);

/* bins.c: a FREE block into and out of the bin its size belongs to. */
void cmi_bin_insert(cmi_heap *heap, cmi_block_id id);
void cmi_bin_remove(cmi_heap *heap, cmi_block_id id);
void cmi_binset_free(cmi_binset *set); /* NULL: nothing */
void cmi_bin_position(uint64_t bytes, unsigned *row, unsigned *column);

/* index.c: from offset to block. */
void cmi_index_add(cmi_heap *heap, cmi_block_id id);
void cmi_index_remove(cmi_heap *heap, cmi_block_id id);
/* Entries for slabs in the pages of a stretch, made at the first slab there (false: no host memory); then the slab that covers it. */
bool cmi_index_slab_room(cmi_heap *heap, uint64_t offset, uint64_t bytes);
void cmi_index_set_slab(cmi_heap *heap, uint64_t offset, uint64_t bytes, cmi_slab *slab);
/* The block is FREE or a HOLE from now on. */
void cmi_index_note_idle(cmi_heap *heap, cmi_block_id id);
/* A HOLE, where none was before. */
void cmi_index_note_hole(cmi_heap *heap, cmi_block_id id);
cmi_space *cmi_index_space(const cmi_heap *heap, uint64_t offset);

/* walk.c: bitmaps of pages; what the block is from now on. FREE: when it is in its bin, so that what is beside it is as it stays. */
void cmi_walk_note_stale(const cmi_heap *heap, const cmi_space *space, const cmi_block *block);
void cmi_walk_note_free(const cmi_heap *heap, cmi_space *space, const cmi_block *block);
void cmi_walk_note_hole(const cmi_heap *heap, const cmi_space *space, const cmi_block *block);
/* Are the bits of pages [low, high) set? */
bool cmi_walk_has_bits(const uint64_t *map, uint32_t low, uint32_t high);
/*
 * Walk over the FREE blocks (with holes, also the HOLEs) of space i that have a part of `pages` idle pages in a row: the first one at or
 * behind a block, then on from its ->next. It may also give one beside fewer such pages, but leaves none out.
 */
cmi_block_id cmi_walk_next_whole(const cmi_heap *heap, uint32_t space, cmi_block_id from, uint64_t pages, bool holes);
/* Walk over HOLEs and FREE blocks with a FREE one before them, the same way: where room is that no single free block has. Not on copies. */
cmi_block_id cmi_walk_next_seam(const cmi_heap *heap, uint32_t space, cmi_block_id from);

/* slab.c */
const char *cmi_slab_validate(const cmi_heap *heap, cmi_block_id id);

/* idlist.c: small growing arrays of numbers. */
bool cmi_ids_reserve(cmi_id_list *list, uint32_t room);
static inline void cmi_ids_push(cmi_id_list *list, uint32_t id) { list->ids[list->count++] = id; }
void cmi_ids_fini(cmi_id_list *list);

#endif
