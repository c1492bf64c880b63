/* What move.c and publish.c share: one move of pages to a window. */
#ifndef CMI_POOL_MOVE_H
#define CMI_POOL_MOVE_H

#include "pool/pool.h"

/* A page that leaves, and one that arrives: one entry per slot to be filled. */
typedef struct arrival {
    uint64_t to;
    uint64_t from;  /* old address in donor's arena, or 0 for a new page */
    uint32_t donor; /* index of its chunk */
    bool landed;    /* mapped at its new address */
    bool gone;      /* unmapped at its old address */
} arrival;

/* Neighbouring pages that leave one donor. */
typedef struct chunk {
    cmi_pool *pool;
    uint64_t offset;
    uint32_t pages;
    uint32_t first; /* its pages fill arrivals first to first + pages - 1 */
    uint32_t stamp; /* of everything that was freed on them; CMI_NO_STAMP: seen done */
    uint32_t owner;
} chunk;

typedef struct move {
    cmi_pool *pool;
    const cmi_ask *ask;
    uint64_t low, high; /* the window, holes widened to whole pages */
    arrival *arrivals;
    uint32_t *pages; /* page of each arrival, in the order of arrivals */
    uint32_t arrival_count, arrival_room;
    chunk *chunks;
    uint32_t chunk_count, chunk_room;
    cmi_waits waits;
    uint32_t blocks;          /* under the window */
    uint32_t records, stamps; /* earmarked */
} move;

/* New addresses of the pages that landed. */
void cmi_move_land(move *m);
/* New pages that did not land stay in hand. */
void cmi_move_keep_in_hand(const move *m, cmi_hand *hand, uint32_t from_hand);
/* Old addresses of a chunk's pages: stale, holes, or free again; pages that are mapped nowhere go into the hand. */
void cmi_move_publish_chunk(move *m, uint32_t number, cmi_hand *hand);
/* The window as one BUSY block of the request; the edges of its pages are free. */
cmi_block_id cmi_move_publish_window(move *m, uint64_t offset);
/* A move that failed: free bytes as they were, pages that did arrive as free memory, the rest as holes again. */
void cmi_move_unpublish_window(move *m);

#endif
