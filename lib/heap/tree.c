/*
 * Treaps of blocks ordered by (bytes, offset): the trees inside bins, and the slabs with room of one class. Own nothing but the links in
 * the blocks; guarded by whoever guards the heap; called by bins.c and slab.c. The priority of a node is a hash of its number, so
 * a tree's shape depends only on what is in it.
 */
#include "heap/internal.h"

static uint32_t priority(cmi_block_id id)
{
    uint32_t x = id * UINT32_C(0x9E3779B1);
    x ^= x >> 15;
    return x * UINT32_C(0x85EBCA77);
}

static bool below(const cmi_block *a, uint64_t bytes, uint64_t offset) { return a->bytes != bytes ? a->bytes < bytes : a->offset < offset; }

void cmi_tree_insert(cmi_heap *heap, cmi_block_id *root, cmi_block_id id)
{
    cmi_block *node = cmi_heap_block(heap, id);
    uint32_t weight = priority(id);
    cmi_block_id *link = root;
    while (*link && priority(*link) >= weight) {
        cmi_block *at = cmi_heap_block(heap, *link);
        link = below(at, node->bytes, node->offset) ? &at->right : &at->left;
    }
    /* What hangs here is parted into what comes before and behind the new node. */
    cmi_block_id rest = *link;
    cmi_block_id *low = &node->left, *high = &node->right;
    *link = id;
    while (rest) {
        cmi_block *at = cmi_heap_block(heap, rest);
        if (below(at, node->bytes, node->offset)) {
            *low = rest;
            low = &at->right;
            rest = at->right;
        } else {
            *high = rest;
            high = &at->left;
            rest = at->left;
        }
    }
    *low = *high = 0;
}

void cmi_tree_remove(cmi_heap *heap, cmi_block_id *root, cmi_block_id id)
{
    cmi_block *node = cmi_heap_block(heap, id);
    cmi_block_id *link = root;
    while (*link != id) {
        cmi_block *at = cmi_heap_block(heap, *link);
        link = below(at, node->bytes, node->offset) ? &at->right : &at->left;
    }
    cmi_block_id low = node->left, high = node->right;
    while (low && high) {
        if (priority(low) >= priority(high)) {
            *link = low;
            link = &cmi_heap_block(heap, low)->right;
            low = *link;
        } else {
            *link = high;
            link = &cmi_heap_block(heap, high)->left;
            high = *link;
        }
    }
    *link = low ? low : high;
    node->left = node->right = 0;
}

cmi_block_id cmi_tree_at_least(const cmi_heap *heap, cmi_block_id root, uint64_t bytes, uint64_t offset)
{
    cmi_block_id best = 0;
    while (root) {
        const cmi_block *at = cmi_heap_block(heap, root);
        if (below(at, bytes, offset)) {
            root = at->right;
        } else {
            best = root;
            root = at->left;
        }
    }
    return best;
}

cmi_block_id cmi_tree_lowest(const cmi_heap *heap, cmi_block_id root)
{
    while (root && cmi_heap_block(heap, root)->left) {
        root = cmi_heap_block(heap, root)->left;
    }
    return root;
}
