/*
 * Random programs over the public API on the simulated device, in all three orders: after every operation the validator, the race checker
 * and the judge; at every refusal the judge of the pool's promise; at the end nothing may be left. A failing program is made short and
 * printed. CMPOOL_TEST_SEED runs one seed, CMPOOL_TEST_OPERATIONS and CMPOOL_TEST_SECONDS say how much is run, CMPOOL_TEST_FIRST_SEED
 * leaves the seeds that are new each time out, CMPOOL_TEST_ORDER (eager, lazy, random) keeps to one order, CMPOOL_TEST_SCRIPT names a
 * printed program to run again.
 */
#include "program.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#if defined(CMI_VALIDATE) || defined(CMI_META_SYSTEM) /* every call looks at everything, or a sanitizer does */
enum { OPERATIONS = 20000 };
#else
enum { OPERATIONS = 200000 };
#endif
enum { OPERATIONS_OF_A_PROGRAM = 400, SECONDS_TO_SHRINK = 120 };

static program subject;

/* The generator of a seed: nothing but the seed decides what is drawn. */
static uint32_t draw_random(void *source, uint32_t below)
{
    uint64_t *state = source;
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((x ^ x >> 31) % below);
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

/* Each order as often as the others, unless one is asked for. */
static uint64_t order_of(uint64_t seed)
{
    static const char *const orders[] = {"eager", "lazy", "random"};
    const char *wanted = getenv("CMPOOL_TEST_ORDER");
    for (uint64_t i = 0; wanted && i < sizeof orders / sizeof orders[0]; i++) {
        if (strcmp(wanted, orders[i]) == 0) {
            return i;
        }
    }
    return seed % 3;
}

static void draw_program(program *p, uint64_t seed, uint64_t operations)
{
    uint64_t state = seed * UINT64_C(0xD1342543DE82EF95);
    program_draw_settings(p, draw_random, &state);
    p->world.order = order_of(seed);
    for (uint64_t i = 0; i < operations; i++) {
        program_draw(p, draw_random, &state);
    }
}

static void explain(program *p, outcome *result, const char *what)
{
    fprintf(stderr, "%s: operation %zu of %zu: %s\n", what, result->at, p->count, result->fault);
    program_shrink(p, result, (unsigned)number_from("CMPOOL_TEST_SHRINK_SECONDS", SECONDS_TO_SHRINK));
    fprintf(stderr, "%zu operations do as well: %s\n# ---- for CMPOOL_TEST_SCRIPT ----\n", p->count, result->fault);
    program_print(p, stderr);
    fprintf(stderr, "# ----\n");
}

static bool run_seed(uint64_t seed, uint64_t operations, outcome *result)
{
    draw_program(&subject, seed, operations);
    program_run_apart(&subject, result);
    if (result->failed) {
        char what[60];
        snprintf(what, sizeof what, "CMPOOL_TEST_SEED=%" PRIu64, seed);
        explain(&subject, result, what);
    }
    return !result->failed;
}

static void random_programs_keep_the_promises(void **state)
{
    (void)state;
    outcome result;
    if (getenv("CMPOOL_TEST_SEED")) {
        assert_true(run_seed(number_from("CMPOOL_TEST_SEED", 1), number_from("CMPOOL_TEST_OPERATIONS", OPERATIONS_OF_A_PROGRAM), &result));
        return;
    }
    /* Half of the seeds are the same every time, so that a change is seen against a fixed set too. */
    uint64_t left = number_from("CMPOOL_TEST_OPERATIONS", OPERATIONS), fresh = (uint64_t)time(NULL) << 16, seeds = 0, refusals = 0,
             captures = 0, served = 0, meetings = 0;
    time_t end = time(NULL) + (time_t)number_from("CMPOOL_TEST_SECONDS", 50);
    unsigned faults = 0, faults_most = (unsigned)number_from("CMPOOL_TEST_FAULTS", 1);
    uint64_t first = number_from("CMPOOL_TEST_FIRST_SEED", 0);
    printf("fixed seeds from %" PRIu64 ", others from %" PRIu64 "\n", first ? first : 1, first ? first : fresh);
    for (; left > 0 && time(NULL) < end && faults < faults_most; seeds++) {
        uint64_t count = left < OPERATIONS_OF_A_PROGRAM ? left : OPERATIONS_OF_A_PROGRAM;
        uint64_t seed = first ? first + seeds : seeds % 2 ? fresh + seeds : 1 + seeds / 2;
        faults += !run_seed(seed, OPERATIONS_OF_A_PROGRAM, &result);
        left -= count;
        refusals += result.refusals;
        captures += result.capture_refusals;
        served += result.served;
        meetings += result.meetings;
    }
    printf("%" PRIu64 " programs of %d operations: %" PRIu64 " requests served, %" PRIu64 " refused and judged (%" PRIu64
           " during captures), %" PRIu64 " operations met another thread's request\n",
           seeds, OPERATIONS_OF_A_PROGRAM, served, refusals, captures, meetings);
    assert_int_equal(faults, 0);
    assert_true(served > 0 && refusals > 0 && meetings > 0);
}

static void a_program_survives_its_text(void **state)
{
    (void)state;
    static program again;
    char error[100];
    draw_program(&subject, 7, 200);
    FILE *file = tmpfile();
    assert_non_null(file);
    program_print(&subject, file);
    rewind(file);
    if (!program_read(&again, file, error, sizeof error)) {
        fail_msg("%s", error);
    }
    FILE *second = tmpfile();
    assert_non_null(second);
    program_print(&again, second);
    long bytes = ftell(second);
    rewind(file);
    rewind(second);
    for (long i = 0; i < bytes; i++) {
        assert_int_equal(fgetc(file), fgetc(second));
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    fclose(second);
}

static void a_named_script_runs(void **state)
{
    const char *path = getenv("CMPOOL_TEST_SCRIPT");
    (void)state;
    if (!path) {
        skip();
    }
    char error[100] = "cannot be opened";
    outcome result;
    FILE *file = fopen(path, "r");
    if (!file || !program_read(&subject, file, error, sizeof error)) {
        fail_msg("%s: %s", path, error);
    }
    fclose(file);
    program_run_apart(&subject, &result);
    if (result.failed) {
        fail_msg("%s: operation %zu: %s", path, result.at, result.fault);
    }
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(a_program_survives_its_text),
        cmocka_unit_test(random_programs_keep_the_promises),
    };
    const struct CMUnitTest one[] = {cmocka_unit_test(a_named_script_runs)};
    return getenv("CMPOOL_TEST_SCRIPT") ? cmocka_run_group_tests(one, NULL, NULL) : cmocka_run_group_tests(all, NULL, NULL);
}
