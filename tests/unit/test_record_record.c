/*
 * Counters as the caller gets them, peaks, and the event ring.
 */
#include "base/base.h"
#include "record/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* Every counter its own number, so that a swapped pair is seen. */
static void number_all(cmi_counters *counters)
{
    uint64_t number = 100;
#define CMPOOL_COUNTER(name, kind, help) counters->name = number++;
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
}

static void export_copies_every_counter(void **state)
{
    (void)state;
    cmi_counters counters;
    cmpool_stats stats = {.struct_size = sizeof(stats)};
    number_all(&counters);
    assert_true(cmi_counters_export(&counters, &stats));
    assert_int_equal(stats.struct_size, sizeof(stats));
#define CMPOOL_COUNTER(name, kind, help) assert_int_equal(stats.name, counters.name);
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
}

static void export_honours_the_callers_size(void **state)
{
    (void)state;
    cmi_counters counters;
    number_all(&counters);
    union {
        cmpool_stats stats;
        unsigned char bytes[sizeof(cmpool_stats) + 16];
    } caller;

    memset(&caller, 0xee, sizeof(caller));
    caller.stats.struct_size = offsetof(cmpool_stats, reserved_bytes); /* an older header */
    assert_true(cmi_counters_export(&counters, &caller.stats));
    assert_int_equal(caller.stats.requested_bytes, counters.requested_bytes);
    assert_int_equal(caller.bytes[offsetof(cmpool_stats, reserved_bytes)], 0xee);

    memset(&caller, 0xee, sizeof(caller));
    caller.stats.struct_size = sizeof(cmpool_stats) + 8; /* a newer one */
    assert_true(cmi_counters_export(&counters, &caller.stats));
    assert_int_equal(caller.stats.unretired_streams, counters.unretired_streams);
    assert_int_equal(caller.bytes[sizeof(cmpool_stats)], 0);
    assert_int_equal(caller.bytes[sizeof(cmpool_stats) + 8], 0xee);

    for (size_t size = 0; size < sizeof(size_t) + sizeof(uint64_t); size++) {
        caller.stats.struct_size = size;
        assert_false(cmi_counters_export(&counters, &caller.stats));
    }
}

static void peaks_follow_and_reset(void **state)
{
    (void)state;
    size_t listed = 0, paired = 0;
#define COUNT_PEAK 1
#define COUNT_GAUGE 0
#define COUNT_COUNT 0
#define CMPOOL_COUNTER(name, kind, help) listed += COUNT_##kind;
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
#define PAIR(peak, level) paired++;
    CMI_PEAKS(PAIR)
#undef PAIR
    assert_int_equal(listed, paired);

    cmi_counters counters = {.live_bytes = 50, .reserved_bytes = 70};
    cmi_counters_raise_peaks(&counters);
    counters.live_bytes = 10;
    counters.reserved_bytes = 90;
    cmi_counters_raise_peaks(&counters);
    assert_int_equal(counters.peak_live_bytes, 50);
    assert_int_equal(counters.peak_reserved_bytes, 90);
    cmi_counters_reset_peaks(&counters);
    assert_int_equal(counters.peak_live_bytes, 10);
    assert_int_equal(counters.peak_reserved_bytes, 90);
}

static uint64_t ticks;
static uint64_t tick(void) { return ++ticks; }

static void ring_keeps_the_newest(void **state)
{
    (void)state;
    uint64_t before = cmi_meta_bytes();
    cmi_ring ring;
    cmi_event events[8];
    assert_true(cmi_ring_open(&ring, 5));
    ticks = 0;
    cmi_clock_replace(tick);
    assert_int_equal(cmi_ring_copy(&ring, events, 8), 0);
    for (uint64_t i = 1; i <= 3; i++)
        cmi_ring_write(&ring, CMI_EVENT_ALLOC, i * 512, i, 7);
    assert_int_equal(cmi_ring_copy(&ring, events, 8), 3);
    assert_int_equal(cmi_ring_lost(&ring), 0);
    for (uint64_t i = 4; i <= 12; i++)
        cmi_ring_write(&ring, CMI_EVENT_FREE, i * 512, i, 7);
    cmi_clock_replace(NULL);
    assert_int_equal(cmi_ring_lost(&ring), 7);
    assert_int_equal(cmi_ring_copy(&ring, events, 8), 5);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(events[i].bytes, 8 + i);
        assert_int_equal(events[i].time_ns, 8 + i);
        assert_int_equal(events[i].address, (8 + i) * 512);
        assert_int_equal(events[i].stream, 7);
        assert_int_equal(events[i].kind, CMI_EVENT_FREE);
    }
    assert_int_equal(cmi_ring_copy(&ring, events, 2), 2); /* the newest two */
    assert_int_equal(events[1].bytes, 12);
    cmi_ring_close(&ring);
    assert_int_equal(cmi_meta_bytes(), before);
}

static void ring_can_be_off(void **state)
{
    (void)state;
    cmi_ring ring;
    cmi_event event;
    assert_true(cmi_ring_open(&ring, 0));
    cmi_ring_write(&ring, CMI_EVENT_REFUSE, 0, 1, 1);
    assert_int_equal(cmi_ring_copy(&ring, &event, 1), 0);
    cmi_ring_close(&ring);
    static const uint64_t impossible[] = {UINT64_MAX, UINT64_MAX / sizeof(cmi_event), (uint64_t)1 << 58};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(impossible); i++) {
        assert_false(cmi_ring_open(&ring, impossible[i]));
        cmi_ring_write(&ring, CMI_EVENT_REFUSE, 0, 1, 1);
        assert_int_equal(ring.written, 0);
    }
}

static void events_have_names(void **state)
{
    (void)state;
    assert_string_equal(cmi_event_name(CMI_EVENT_WAIT_HOST), "WAIT_HOST");
    assert_string_equal(cmi_event_name(CMI_EVENT_KINDS), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(export_copies_every_counter),
        cmocka_unit_test(export_honours_the_callers_size),
        cmocka_unit_test(peaks_follow_and_reset),
        cmocka_unit_test(ring_keeps_the_newest),
        cmocka_unit_test(ring_can_be_off),
        cmocka_unit_test(events_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
