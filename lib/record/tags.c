/*
 * Names of tags. Owns the table of names (metadata memory, kept for the life of the process) and the thread's present tag; the table is
 * guarded by its own lock (rank RECORD), entries do not change once they are counted. Called by api and read by inspect.
 */
#include "record/tags.h"

#include "base/base.h"

#include <stdatomic.h>
#include <string.h>

enum { CHUNK_SHIFT = 8, CHUNK = 1 << CHUNK_SHIFT, CHUNKS = 256 };

typedef struct entry {
    uint32_t parent, next_of_parent; /* tags; the children of one parent form a list */
    uint32_t first_child;
    char *name;
} entry;

__thread uint32_t cmi_tag_of_thread __attribute__((tls_model("initial-exec")));

static cmi_lock lock = CMI_LOCK_INITIALIZER(CMI_RANK_RECORD);
static _Atomic(entry *) chunks[CHUNKS];
static _Atomic uint32_t count;
static uint32_t first_root; /* lock */

static entry *entry_of(uint32_t tag)
{
    uint32_t number = tag - CMI_TAG_FIRST;
    return &atomic_load_explicit(&chunks[number >> CHUNK_SHIFT], memory_order_acquire)[number & (CHUNK - 1)];
}

/* A thread in a loop pushes the same few names: the last one found goes to the front of its parent's list. */
static uint32_t find(uint32_t *head, const char *name, size_t length)
{
    uint32_t *link = head;
    while (*link) {
        entry *at = entry_of(*link);
        if (strncmp(at->name, name, length) == 0 && !at->name[length]) {
            uint32_t found = *link;
            *link = at->next_of_parent;
            at->next_of_parent = *head;
            *head = found;
            return found;
        }
        link = &at->next_of_parent;
    }
    return 0;
}

static uint32_t add(uint32_t *head, uint32_t parent, const char *name, size_t length)
{
    uint32_t number = atomic_load_explicit(&count, memory_order_relaxed);
    if (number >= CHUNK * CHUNKS) {
        return 0;
    }
    if (!atomic_load_explicit(&chunks[number >> CHUNK_SHIFT], memory_order_relaxed)) {
        entry *chunk = cmi_meta_alloc(sizeof *chunk * CHUNK);
        if (!chunk) {
            return 0;
        }
        atomic_store_explicit(&chunks[number >> CHUNK_SHIFT], chunk, memory_order_release);
    }
    char *copy = cmi_meta_alloc(length + 1);
    if (!copy) {
        return 0;
    }
    memcpy(copy, name, length);
    uint32_t tag = CMI_TAG_FIRST + number;
    *entry_of(tag) = (entry){.parent = parent, .next_of_parent = *head, .name = copy};
    *head = tag;
    atomic_store_explicit(&count, number + 1, memory_order_release);
    return tag;
}

bool cmi_tag_push(const char *name)
{
    uint32_t parent = cmi_tag_of_thread;
    size_t length = strnlen(name, CMI_TAG_LONGEST);
    cmi_lock_acquire(&lock);
    uint32_t *head = parent ? &entry_of(parent)->first_child : &first_root;
    uint32_t tag = find(head, name, length);
    if (!tag) {
        tag = add(head, parent, name, length);
    }
    cmi_lock_release(&lock);
    if (tag) {
        cmi_tag_of_thread = tag;
    }
    return tag != 0;
}

bool cmi_tag_pop(void)
{
    uint32_t tag = cmi_tag_of_thread;
    if (tag) {
        cmi_tag_of_thread = entry_of(tag)->parent;
    }
    return tag != 0;
}

uint32_t cmi_tag_count(void) { return atomic_load_explicit(&count, memory_order_acquire); }

const char *cmi_tag_name(uint32_t tag, uint32_t *parent)
{
    const entry *found = entry_of(tag);
    *parent = found->parent;
    return found->name;
}
