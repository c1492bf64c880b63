/* The oracle for refusals, against small devices laid out by hand; pages of 16 KiB. */
#include "trace/replay.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 16384 };

typedef struct fake {
    cmi_replay_mapping mapping[8];
    size_t count;
    cmi_replay_memory memory;
} fake;

static size_t mappings(void *self, cmi_replay_mapping *mapping, size_t room)
{
    fake *f = self;
    for (size_t i = 0; i < f->count && i < room; i++)
        mapping[i] = f->mapping[i];
    return f->count;
}

static void memory(void *self, cmi_replay_memory *out) { *out = ((fake *)self)->memory; }

/* live: at most two blocks; bytes 0 is none. */
static bool fits(fake *f, uint64_t limit, uint64_t headroom, uint64_t bytes, cmi_live_block first, cmi_live_block second)
{
    cmi_replay_device device = {.self = f, .mappings = mappings, .memory = memory};
    cmi_oracle oracle = {&device, PAGE, limit, headroom};
    cmi_live_block live[2] = {first, second};
    return cmi_oracle_fits(&oracle, bytes, live, (size_t)(first.bytes != 0) + (second.bytes != 0));
}

static const cmi_live_block none;

/* Four pages at 16..19 (in pages), handles 1..4. */
static fake four_pages(void)
{
    fake f = {.count = 4, .memory = {4 * PAGE, 0}};
    for (size_t i = 0; i < 4; i++)
        f.mapping[i] = (cmi_replay_mapping){(16 + i) * PAGE, PAGE, i + 1};
    return f;
}

static void free_device_pages_count(void **state)
{
    (void)state;
    fake f = {.memory = {0, 3 * PAGE + 100}};
    assert_true(fits(&f, 0, 0, 3 * PAGE, none, none));
    assert_false(fits(&f, 0, 0, 3 * PAGE + 1, none, none));
    assert_false(fits(&f, 0, PAGE, 3 * PAGE, none, none));
    assert_true(fits(&f, 0, PAGE, 2 * PAGE, none, none));
    assert_false(fits(&f, 2 * PAGE, 0, 3 * PAGE, none, none));
}

static void idle_pages_count_wherever_they_are(void **state)
{
    (void)state;
    fake f = four_pages();
    /* One byte in the second page, one block over the border of it and the third. */
    cmi_live_block byte = {17 * PAGE + 5, 1}, border = {18 * PAGE - 512, 1024};
    assert_true(fits(&f, 0, 0, 4 * PAGE, none, none));
    assert_true(fits(&f, 0, 0, 3 * PAGE, byte, none));
    assert_false(fits(&f, 0, 0, 3 * PAGE + 1, byte, none));
    assert_true(fits(&f, 0, 0, 2 * PAGE, border, byte));
    assert_false(fits(&f, 0, 0, 2 * PAGE + 1, border, byte));
    f.memory.free_bytes = PAGE;
    assert_true(fits(&f, 0, 0, 3 * PAGE, border, byte));
    assert_false(fits(&f, 4 * PAGE, 0, 3 * PAGE, border, byte));
}

/* A page that has moved on is still mapped at its old address. */
static void stale_mapping_is_not_a_use(void **state)
{
    (void)state;
    fake f = four_pages();
    f.mapping[4] = (cmi_replay_mapping){40 * PAGE, PAGE, 1};
    f.count = 5;
    cmi_live_block at_new = {40 * PAGE, PAGE}, at_other = {19 * PAGE, 512};
    assert_true(fits(&f, 0, 0, 3 * PAGE, at_new, none));
    assert_false(fits(&f, 0, 0, 4 * PAGE, at_new, none));
    assert_true(fits(&f, 0, 0, 2 * PAGE, at_new, at_other));
    /* Live at both addresses, as a program must not have it: the page counts once. */
    assert_true(fits(&f, 0, 0, 3 * PAGE, (cmi_live_block){40 * PAGE, 512}, (cmi_live_block){16 * PAGE, 512}));
}

/* A page whose handle is held but that is mapped nowhere is idle. */
static void unmapped_page_is_idle(void **state)
{
    (void)state;
    fake f = four_pages();
    f.memory.handle_bytes = 5 * PAGE;
    cmi_live_block all = {16 * PAGE, 4 * PAGE};
    assert_true(fits(&f, 0, 0, PAGE, all, none));
    assert_false(fits(&f, 0, 0, PAGE + 1, all, none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_device_pages_count),
        cmocka_unit_test(idle_pages_count_wherever_they_are),
        cmocka_unit_test(stale_mapping_is_not_a_use),
        cmocka_unit_test(unmapped_page_is_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
