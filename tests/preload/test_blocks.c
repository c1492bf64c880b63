/*
 * The preload library's list of live blocks (lib/preload/blocks.c) by itself: against a plain array, in random order; frees of one block by
 * several threads; walks over a device's or a context's blocks.
 */
#include "preload/preload.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PLACES = 3000, STEPS = 200000, THREADS = 2, ROUNDS = 20000 };
#define GIB (UINT64_C(1) << 30)

static preload_block model[PLACES]; /* bytes 0: nothing there */
static uint64_t released[PLACES];
static unsigned released_count;

void *cmi_preload_map(size_t bytes) { return calloc(1, bytes); } /* nodes stay, as in the library */

cmpool_status cmpool_free_unordered(cmpool_t pool, void *memory)
{
    (void)pool;
    released[released_count++] = (uint64_t)(uintptr_t)memory;
    return CMPOOL_OK;
}

cmpool_status cmpool_pinned_free_unordered(cmpool_t pool, void *memory) { return cmpool_free_unordered(pool, memory); }

/* Addresses side by side, far apart, and at the ends of what is tracked. */
static uint64_t address_of(unsigned i)
{
    static const uint64_t bases[] = {512, 7 * GIB - 40 * 512, 8 * GIB - 8 * 512, UINT64_C(0x7f0000000000), (UINT64_C(1) << 48) - 600 * 512};
    return bases[i % 5] + (uint64_t)(i / 5) * 512;
}

static uint64_t random_state;
static uint64_t draw(uint64_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (random_state >> 33) % below;
}

static preload_block random_block(unsigned i)
{
    bool host = i % 7 == 0; /* an address is of one kind of memory */
    return (preload_block){.address = address_of(i),
                           .bytes = 1 + draw(UINT64_C(1) << 40),
                           .origin = {.context = (CUcontext)(uintptr_t)(0x1000 + draw(5)),
                                      .memory_pool = draw(2) ? (CUmemoryPool)(uintptr_t)0x9000 : NULL,
                                      .device = (int)draw(3),
                                      .how = host      ? PRELOAD_HOST | (unsigned)draw(8)
                                             : draw(2) ? PRELOAD_IN_ORDER
                                                       : 0}};
}

static void must_be(const preload_block *found, const preload_block *expected)
{
    assert_true(found->address == expected->address && found->bytes == expected->bytes);
    assert_ptr_equal(found->origin.context, expected->origin.context);
    assert_ptr_equal(found->origin.memory_pool, expected->origin.memory_pool);
    assert_int_equal(found->origin.device, expected->origin.device);
    assert_int_equal(found->origin.how, expected->origin.how);
}

static void walks_must_agree(void)
{
    for (int device = 0; device < 3; device++) {
        CUcontext context = (CUcontext)(uintptr_t)(0x1000 + draw(5));
        bool others = false;
        unsigned count = 0;
        for (unsigned i = 0; i < PLACES; i++) {
            bool here = model[i].bytes && model[i].origin.device == device;
            others = others || (here && model[i].origin.context != context);
            count += here && model[i].origin.context == context;
        }
        assert_int_equal(cmi_preload_block_others(device, context), others);
        released_count = 0;
        cmi_preload_blocks_release(device, context, 1);
        assert_int_equal(released_count, count);
        for (unsigned i = 0; i < PLACES; i++) {
            if (model[i].origin.device == device && model[i].origin.context == context) {
                model[i].bytes = 0;
            }
        }
    }
}

static void random_order(void **state)
{
    (void)state;
    random_state = 11;
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned i = (unsigned)draw(PLACES);
        preload_block found;
        bool host = i % 7 == 0;
        bool (*find)(uint64_t, preload_block *) = host ? cmi_preload_block_find_host : cmi_preload_block_find;
        bool (*take)(uint64_t, preload_block *) = host ? cmi_preload_block_take_host : cmi_preload_block_take;
        bool (*other)(uint64_t, preload_block *) = host ? cmi_preload_block_take : cmi_preload_block_take_host;
        assert_int_equal(find(address_of(i), &found), model[i].bytes != 0);
        assert_false(other(address_of(i), &found));
        assert_false(take(address_of(i) + 1 + draw(511), &found));
        if (!model[i].bytes) {
            model[i] = random_block(i);
            assert_true(cmi_preload_block_add(&model[i]));
        } else if (draw(2)) {
            assert_true(take(address_of(i), &found));
            must_be(&found, &model[i]);
            assert_false(take(address_of(i), &found));
            model[i].bytes = 0;
        } else {
            assert_true(find(address_of(i), &found));
            must_be(&found, &model[i]);
        }
        if (step % 20000 == 19999) {
            walks_must_agree();
        }
    }
    const preload_block beyond = {.address = UINT64_C(1) << 48, .bytes = 1}, too_long = {.address = 512, .bytes = UINT64_C(1) << 48};
    assert_false(cmi_preload_block_add(&beyond));
    assert_false(cmi_preload_block_add(&too_long));
}

static _Atomic unsigned arrived, taken;

/* Both go on at the same moment, as far as there are processors for it: who sleeps in between comes too late to meet the other. */
static void meet(void)
{
    unsigned turn = atomic_fetch_add(&arrived, 1) / THREADS;
    for (unsigned spins = 1; atomic_load(&arrived) / THREADS == turn; spins++) {
        if (spins % 1000 == 0) {
            sched_yield();
        }
    }
}

static void *take_all(void *number)
{
    preload_block block;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t address = 64 * GIB + (uint64_t)(round % 100) * 512;
        if (number == NULL) {
            const preload_block mine = {.address = address, .bytes = round + 1, .origin = {.device = (int)(round % 2)}};
            assert_true(cmi_preload_block_add(&mine));
        }
        meet();
        if (cmi_preload_block_take(address, &block)) {
            taken += block.bytes == round + 1 && block.origin.device == (int)(round % 2);
        }
        meet();
    }
    return NULL;
}

/* Of several frees at once one gets the block. */
static void one_of_many(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, take_all, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(taken, ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_order), cmocka_unit_test(one_of_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
