/*
 * Random programs on a small heap with several owners and streams, compared byte by byte with a naive model and validated after every
 * operation. CMPOOL_TEST_SECONDS makes it run longer, CMPOOL_TEST_SEED runs one seed; the seed of a failure is printed.
 */
#include "test_heap_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { STEPS = 400 };

static model subject;

static uint32_t draw_random(void *source, uint32_t below)
{
    uint64_t *state = source;
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % below);
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static void run_seed(uint64_t seed)
{
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15), before = cmi_meta_bytes();
    const char *fault = program_start(&subject, draw_random, &state);
    unsigned step = 0;
    for (; step < STEPS && !fault; step++) {
        fault = program_step(&subject);
    }
    if (!fault) {
        fault = program_end(&subject);
    }
    if (fault) {
        fail_msg("seed %llu, step %u: %s", (unsigned long long)seed, step, fault);
    }
    assert_int_equal(cmi_meta_bytes(), before);
}

static void random_programs_agree_with_the_model(void **state)
{
    (void)state;
    uint64_t one = number_from("CMPOOL_TEST_SEED", 0);
    if (one) {
        run_seed(one);
        return;
    }
    uint64_t end = cmi_clock_ns() + number_from("CMPOOL_TEST_SECONDS", 4) * UINT64_C(1000000000);
    uint64_t seed = cmi_clock_ns(), count = 0;
    for (; cmi_clock_ns() < end; seed++, count++) {
        run_seed(seed);
    }
    printf("%llu programs of %d operations, the last with seed %llu\n", (unsigned long long)count, STEPS, (unsigned long long)seed - 1);
}

/* The same programs every time, so that a change of the heap is seen against a fixed set too. */
static void fixed_programs_agree_with_the_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        run_seed(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_programs_agree_with_the_model),
        cmocka_unit_test(random_programs_agree_with_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
