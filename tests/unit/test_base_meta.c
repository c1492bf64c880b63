/*
 * Metadata memory: alignment, zeroing, counting, resize, sizes that cannot be had, planned failures, several threads.
 */
#include "base/base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static bool all_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

static void every_size_is_aligned_zero_and_counted(void **state)
{
    (void)state;
    uint64_t before = cmi_meta_bytes();
    for (size_t bytes = 1; bytes < (80u << 10); bytes += 1 + bytes / 9) {
        unsigned char *first = cmi_meta_alloc(bytes), *second;
        assert_non_null(first);
        assert_int_equal((uintptr_t)first % 64, 0);
        assert_true(all_zero(first, bytes));
        assert_int_equal(cmi_meta_bytes(), before + bytes);
        memset(first, 0xa5, bytes);
        cmi_meta_free(first, bytes);
        second = cmi_meta_alloc(bytes); /* most likely the same memory */
        assert_true(all_zero(second, bytes));
        cmi_meta_free(second, bytes);
    }
    assert_int_equal(cmi_meta_bytes(), before);
    cmi_meta_free(NULL, 64);
    assert_int_equal(cmi_meta_bytes(), before);
}

/* Neighbours in one class and across a chunk's end must not share a byte. */
static void blocks_do_not_overlap(void **state)
{
    (void)state;
    enum { COUNT = 600 };
    static unsigned char *blocks[COUNT];
    static const size_t sizes[] = {1, 64, 65, 300, 1000, 4097, 20000, 32768, 70000, 262144, 262145, 600000};
    for (size_t i = 0; i < COUNT; i++) {
        size_t bytes = sizes[i % CMI_ARRAY_LENGTH(sizes)];
        blocks[i] = cmi_meta_alloc(bytes);
        assert_non_null(blocks[i]);
        memset(blocks[i], (int)(i % 251) + 1, bytes);
    }
    for (size_t i = 0; i < COUNT; i++) {
        size_t bytes = sizes[i % CMI_ARRAY_LENGTH(sizes)];
        for (size_t b = 0; b < bytes; b++)
            assert_int_equal(blocks[i][b], i % 251 + 1);
        cmi_meta_free(blocks[i], bytes);
    }
}

static void resize_keeps_and_zeroes(void **state)
{
    (void)state;
    static const size_t steps[] = {1, 60, 64, 200, 5000, 262144, 262145, 100000, 70000, 99000, 400, 40000, 3};
    uint64_t before = cmi_meta_bytes();
    unsigned char *p = cmi_meta_resize(NULL, 0, steps[0]);
    assert_non_null(p);
    memset(p, 7, steps[0]);
    for (size_t i = 1; i < CMI_ARRAY_LENGTH(steps); i++) {
        size_t old_bytes = steps[i - 1], new_bytes = steps[i], kept = cmi_min_u64(old_bytes, new_bytes);
        p = cmi_meta_resize(p, old_bytes, new_bytes);
        assert_non_null(p);
        assert_int_equal(cmi_meta_bytes(), before + new_bytes);
        for (size_t b = 0; b < kept; b++)
            assert_int_equal(p[b], 7);
        assert_true(all_zero(p + kept, new_bytes - kept));
        memset(p, 7, new_bytes);
    }
    cmi_meta_free(p, steps[CMI_ARRAY_LENGTH(steps) - 1]);
    assert_int_equal(cmi_meta_bytes(), before);
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX - 4095, SIZE_MAX / 2 + 1, (size_t)1 << 56};
    uint64_t before = cmi_meta_bytes();
    unsigned char *p = cmi_meta_alloc(100000);
    assert_non_null(p);
    p[99999] = 9;
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(sizes); i++) {
        assert_null(cmi_meta_alloc(sizes[i]));
        assert_null(cmi_meta_resize(p, 100000, sizes[i]));
        assert_int_equal(p[99999], 9);
    }
    cmi_meta_free(p, 100000);
    assert_int_equal(cmi_meta_bytes(), before);
}

static void planned_failures_strike_and_end(void **state)
{
    (void)state;
    cmi_meta_fail(2, 2);
    void *first = cmi_meta_alloc(10);
    assert_non_null(first);
    assert_null(cmi_meta_alloc(10));
    assert_null(cmi_meta_resize(first, 10, 20));
    void *second = cmi_meta_alloc(10);
    assert_non_null(second);

    cmi_meta_fail(1, 0);
    for (int i = 0; i < 5; i++)
        assert_null(cmi_meta_alloc(100000));
    cmi_meta_fail(0, 0);
    void *third = cmi_meta_alloc(100000);
    assert_non_null(third);
    cmi_meta_free(first, 10);
    cmi_meta_free(second, 10);
    cmi_meta_free(third, 100000);
}

enum { THREADS = 4, ROUNDS = 4000, KEPT = 40 };

static void *churn(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument * 2654435761u + 1;
    unsigned char *kept[KEPT] = {0};
    size_t sizes[KEPT] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t i = (seed >> 33) % KEPT, bytes = 1 + (seed >> 40) % ((seed >> 20) % 50 == 0 ? 90000 : 2000);
        if (kept[i] != NULL && (kept[i][0] != (unsigned char)i || kept[i][sizes[i] - 1] != (unsigned char)i))
            return "a block was written by another thread";
        cmi_meta_free(kept[i], sizes[i]);
        kept[i] = cmi_meta_alloc(bytes);
        sizes[i] = bytes;
        if (kept[i] == NULL || kept[i][0] != 0 || kept[i][bytes - 1] != 0)
            return "no zeroed memory";
        kept[i][0] = kept[i][bytes - 1] = (unsigned char)i;
    }
    for (size_t i = 0; i < KEPT; i++)
        cmi_meta_free(kept[i], sizes[i]);
    return NULL;
}

static void threads_share_it(void **state)
{
    (void)state;
    uint64_t before = cmi_meta_bytes();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
    for (size_t i = 0; i < THREADS; i++) {
        void *fault;
        pthread_join(threads[i], &fault);
        assert_null(fault);
    }
    assert_int_equal(cmi_meta_bytes(), before);
}

static void arrays_grow_where_they_are(void **state)
{
    (void)state;
    uint64_t before = cmi_meta_bytes();
    size_t bytes = (size_t)1 << 31;
    unsigned char *array = cmi_meta_reserve(&bytes, CMI_META_STEP);
    assert_non_null(array);
    assert_true(bytes >= 4 * CMI_META_STEP);
    assert_int_equal(cmi_meta_bytes(), before); /* addresses are not counted */
    assert_true(cmi_meta_extend(array, 0, CMI_META_STEP));
    array[0] = array[CMI_META_STEP - 1] = 7;
    cmi_meta_fail(1, 1);
    assert_false(cmi_meta_extend(array, CMI_META_STEP, 3 * CMI_META_STEP));
    assert_int_equal(cmi_meta_bytes(), before + CMI_META_STEP);
    assert_true(cmi_meta_extend(array, CMI_META_STEP, 3 * CMI_META_STEP));
    assert_int_equal(cmi_meta_bytes(), before + 3 * CMI_META_STEP);
    assert_true(array[0] == 7 && array[CMI_META_STEP - 1] == 7 && !array[CMI_META_STEP] && !array[3 * CMI_META_STEP - 1]);
    cmi_meta_unreserve(array, bytes, 3 * CMI_META_STEP);
    cmi_meta_unreserve(NULL, bytes, 0);
    assert_int_equal(cmi_meta_bytes(), before);
    size_t too_many = SIZE_MAX - CMI_META_STEP + 1; /* more addresses than there are: halved until there are so many */
    array = cmi_meta_reserve(&too_many, CMI_META_STEP);
    assert_true(array && too_many < SIZE_MAX / 2);
    cmi_meta_unreserve(array, too_many, 0);
    too_many = SIZE_MAX - CMI_META_STEP + 1;
    assert_null(cmi_meta_reserve(&too_many, SIZE_MAX / 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_is_aligned_zero_and_counted),
        cmocka_unit_test(blocks_do_not_overlap),
        cmocka_unit_test(resize_keeps_and_zeroes),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(planned_failures_strike_and_end),
        cmocka_unit_test(threads_share_it),
        cmocka_unit_test(arrays_grow_where_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
