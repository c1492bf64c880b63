/*
 * Windows, idle runs and the longest free run against brute force over every offset, and walks over some blocks against one over all, on
 * layouts that random programs left behind.
 */
#include "test_heap_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static model subject;

static uint32_t draw_random(void *source, uint32_t below)
{
    uint64_t *state = source;
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % below);
}

static void check_everything(model *m, const uint8_t *use)
{
    static cmi_idle_run runs[SPACES * SPACE_PAGES];
    cmi_window window;
    for (unsigned i = 0; i < 60 && !m->fault; i++) {
        uint64_t bytes = (1 + draw(m, 1u << (1 + draw(m, 12)))) * (uint64_t)CMI_UNIT;
        check_window(m, use, bytes, (uint64_t)CMI_UNIT << (draw(m, 2) ? 0 : draw(m, 12)), &window);
    }
    /* As long as what lies between two edges: windows that fit to the unit. */
    for (unsigned i = 0; i < 20 && !m->fault; i++) {
        cmi_block_id id = random_block(m, draw(m, 2) ? CMI_BLOCK_FREE : CMI_BLOCK_HOLE);
        uint64_t bytes = 0;
        for (unsigned blocks = 1 + draw(m, 4); id && blocks; blocks--, id = cmi_heap_block(&m->heap, id)->next) {
            bytes += cmi_heap_block(&m->heap, id)->bytes;
            check_window(m, use, bytes, CMI_UNIT, &window);
        }
    }
    for (unsigned i = 0; i < 10 && !m->fault; i++) {
        uint64_t skip = space_base(draw(m, SPACES)) + draw(m, SPACE_UNITS) * (uint64_t)CMI_UNIT;
        check_idle_runs(m, use, skip, draw(m, 2) * draw(m, SPACE_UNITS) * (uint64_t)CMI_UNIT, runs, i % 2 ? 2 : CMI_ARRAY_LENGTH(runs));
    }
}

/* Walks over some blocks give what a walk over all of them finds. */
static void check_walks(model *m)
{
    const cmi_heap *heap = &m->heap;
    for (uint32_t i = 0; i < heap->space_count; i++) {
        cmi_block_id stale = cmi_heap_next_stale(heap, i, heap->spaces[i].first);
        for (cmi_block_id id = cmi_heap_first_block(heap, i); id; id = cmi_heap_block(heap, id)->next) {
            EXPECT(m, (cmi_heap_block(heap, id)->kind == CMI_BLOCK_STALE) == (id == stale), "walk over stale blocks");
            cmi_block_id next = cmi_heap_block(heap, id)->next;
            stale = id == stale && next ? cmi_heap_next_stale(heap, i, next) : stale;
        }
    }
    for (uint32_t set = 1; set <= heap->binset_count; set++) {
        const cmi_block *before = NULL;
        uint32_t count = 0;
        for (cmi_block_id id = 0; heap->binsets[set] && (id = cmi_heap_next_free(heap, set, id)) != 0 && !m->fault; count++) {
            const cmi_block *block = cmi_heap_block(heap, id);
            bool behind = !before || before->bytes < block->bytes || (before->bytes == block->bytes && before->offset < block->offset);
            EXPECT(m, behind && block->kind == CMI_BLOCK_FREE && block->binset == set, "walk over the free blocks of a bin set");
            before = block;
        }
        EXPECT(m, !heap->binsets[set] || count == heap->binsets[set]->free_blocks, "walk over a bin set leaves blocks out");
    }
}

static void searches_agree_with_brute_force(void **state)
{
    (void)state;
    static uint8_t use[4096];
    for (uint64_t seed = 1; seed <= 30; seed++) {
        uint64_t random = seed * UINT64_C(0x9E3779B97F4A7C15);
        const char *fault = program_start(&subject, draw_random, &random);
        for (unsigned step = 0; step < 20 + 10 * seed && !fault; step++) {
            fault = program_step(&subject);
        }
        for (unsigned i = 0; i < 4 && !fault; i++) {
            random_use(&subject, use);
            check_everything(&subject, use);
            check_walks(&subject);
            fault = subject.fault;
        }
        if (!fault) {
            fault = program_end(&subject);
        }
        if (fault) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, fault);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(searches_agree_with_brute_force)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
