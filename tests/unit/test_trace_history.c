/* Histories in pictures: blocks that were there before, what was held when a request was refused, moves and waits of this library. */
#include "trace/convert.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EVENT(action, addr, size) "{\"action\":\"" action "\",\"addr\":" #addr ",\"size\":" #size ",\"stream\":0,\"time_us\":1}"
#define FREED(addr, size) EVENT("free_requested", addr, size) "," EVENT("free_completed", addr, size)
#define SEGMENT(addr, size, blocks) \
    "{\"device\":0,\"address\":" #addr ",\"total_size\":" #size ",\"stream\":0,\"is_expandable\":false,\"blocks\":[" blocks "]}"
#define BLOCK(size, state) "{\"size\":" #size ",\"state\":\"" state "\"}"

static void read_text(const char *text, cmi_picture *p)
{
    char fault[256] = "";
    if (cmi_picture_read_memory("t", text, strlen(text), p, fault, sizeof fault) != 0)
        fail_msg("%s", fault);
}

/* The window begins in mid-run: one block is freed in it, one is there all through it, one comes, one ends unseen. */
static void blocks_before_the_window_come_first(void **state)
{
    (void)state;
    static const char text[] = "{\"segments\":[" SEGMENT(
        65536, 8192, BLOCK(2048, "active_allocated") "," BLOCK(6144, "inactive")) "],"
                                                                                  "\"device_traces\":[[" FREED(67584, 1000) "," EVENT(
                                                                                      "alloc", 67584,
                                                                                      1024) "," EVENT("alloc", 67584,
                                                                                                      3000) "," FREED(67584, 3000) "]]}";
    cmi_picture p;
    cmi_trace trace;
    cmi_picture_lives lives;
    char fault[256];
    read_text(text, &p);
    assert_int_equal(cmi_picture_match(&p, 0, &lives), 0);
    assert_int_equal(lives.count, 4);
    assert_true(lives.lives[0].address == 65536 && lives.lives[0].alloc_event == CMI_NONE && lives.lives[0].free_event == CMI_NONE);
    assert_true(lives.lives[1].address == 67584 && lives.lives[1].alloc_event == CMI_NONE && lives.lives[1].free_event == 0);
    assert_int_equal(lives.lives[3].replaces, 2);
    assert_true(lives.run.first_live_bytes == 2048 + 1024 && lives.run.peak_live_bytes == 2048 + 3072);
    assert_true(lives.run.peak_reserved_bytes == 8192 && lives.run.stranded_bytes == 8192 - 5120);
    cmi_picture_lives_free(&lives);
    assert_int_equal(cmi_trace_from_picture("t", &p, 0, &trace, fault, sizeof fault), 0);
    assert_int_equal(trace.block_count, 4);
    assert_int_equal(trace.peak_live_bytes, 5120);
    assert_int_equal(trace.end_live_bytes, 2048);
    static const uint8_t kinds[] = {CMI_TRACE_ALLOC, CMI_TRACE_ALLOC, CMI_TRACE_FREE, CMI_TRACE_ALLOC,
                                    CMI_TRACE_FREE,  CMI_TRACE_ALLOC, CMI_TRACE_FREE};
    assert_int_equal(trace.event_count, sizeof kinds);
    for (size_t i = 0; i < sizeof kinds; i++)
        assert_int_equal(trace.events[i].kind, kinds[i]);
    cmi_trace_free(&trace);
    cmi_picture_free(&p);
}

/* Everything was live when the request was refused; then the exception let go of it, and the snapshot shows an idle segment. */
static void refusal_is_judged_by_its_own_moment(void **state)
{
    (void)state;
    static const char text[] = "{\"segments\":[" SEGMENT(65536, 8192, BLOCK(8192, "inactive")) "," SEGMENT(
        73728, 4096,
        BLOCK(4096, "inactive")) "],"
                                 "\"device_traces\":[[" EVENT("segment_alloc", 65536, 8192) "," EVENT("alloc", 65536, 7168) "," EVENT(
                                     "segment_alloc", 73728,
                                     4096) ","
                                           "{\"action\":\"oom\",\"device_free\":0,\"size\":6144,\"stream\":0}," FREED(
                                               65536, 7168) "," EVENT("segment_alloc", 90112, 4096) "," EVENT("segment_free", 90112,
                                                                                                              4096) "]]}";
    cmi_picture p;
    cmi_picture_totals totals;
    read_text(text, &p);
    cmi_picture_total(&p, 0, &totals);
    assert_true(totals.idle_bytes == 12288 && totals.largest_idle_bytes == 8192);
    assert_int_equal(p.refusal_count, 1);
    const cmi_picture_refusal *r = &p.refusals[0];
    assert_int_equal(r->event, 3);
    assert_true(r->live_bytes == 7168 && r->pending_bytes == 0 && r->reserved_bytes == 12288 && r->idle_bytes == 5120);
    assert_int_equal(r->largest_idle_bytes, 4096); /* the two segments are neighbours, but not one */
    assert_int_equal(r->device_free_bytes, 0);
    assert_true(r->idle_bytes + r->device_free_bytes < r->request_bytes);
    cmi_picture_free(&p);
}

/* What was idle in private pools when a request of the common pool was refused. */
static void idle_in_private_pools(void **state)
{
    (void)state;
    static const char segments[] = SEGMENT(4096, 8192, BLOCK(8192, "active_allocated")) ",";
    static const char private_one[] = "{\"device\":0,\"address\":65536,\"total_size\":8192,\"stream\":0,\"segment_pool_id\":[0,1],"
                                      "\"blocks\":[" BLOCK(2048, "active_allocated") "," BLOCK(6144, "inactive") "]}";
    static const struct {
        const char *later;
        uint64_t idle;
    } cases[] = {
        {"", 6144},
        {"," EVENT("segment_alloc", 65536, 8192), CMI_UNKNOWN}, /* the segment came afterwards, whosever it was */
        {",{\"action\":\"segment_alloc\",\"addr\":65536,\"size\":8192,\"stream\":0,\"pool_id\":[0,1]}", 0},
        {",{\"action\":\"segment_free\",\"addr\":131072,\"size\":4096,\"stream\":0,\"pool_id\":[0,1]}", 10240}, /* another one went */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2048];
        cmi_picture p;
        snprintf(text, sizeof text,
                 "{\"segments\":[%s%s],\"device_traces\":[[{\"action\":\"oom\",\"size\":16384,\"device_free\":0,\"stream\":0}%s]]}",
                 segments, private_one, cases[i].later);
        read_text(text, &p);
        assert_int_equal(p.refusal_count, 1);
        assert_true(p.refusals[0].private_idle_bytes == cases[i].idle);
        cmi_picture_free(&p);
    }
}

/* Moves and waits are events of the picture; what is not known is left out. */
static void own_moves_and_waits(void **state)
{
    (void)state;
    static const char text[] =
        "{\"format\":\"cudamempool-snapshot\",\"version\":1,\"devices\":[{\"device\":0,\"pools\":[{\"pool\":65537,"
        "\"owners\":{\"columns\":[\"owner\",\"kind\"],\"rows\":[[0,\"pool\"]]},\"history\":{\"events\":{"
        "\"columns\":[\"time_ns\",\"event\",\"address\",\"bytes\",\"stream\"],\"rows\":[[1,\"GROW\",2097152,4194304,0],"
        "[2,\"MOVE\",8388608,2097152,0],[3,\"UNMAP\",2097152,2097152,0],[4,\"WAIT_DEVICE\",8388608,2097152,0],"
        "[5,\"WAIT_HOST\",0,2097152,0],[6,\"SPIN\",1,1,0]]}}}]}]}";
    static const struct {
        cmi_event_kind kind;
        const char *name;
    } events[] = {{CMI_EVENT_SEGMENT_MAP, "segment_map"},
                  {CMI_EVENT_MOVE, "move"},
                  {CMI_EVENT_WAIT_DEVICE, "wait_device"},
                  {CMI_EVENT_WAIT_HOST, "wait_host"}};
    cmi_picture p;
    read_text(text, &p);
    assert_int_equal(p.event_count, sizeof events / sizeof *events);
    for (size_t i = 0; i < p.event_count; i++) {
        assert_int_equal(p.events[i].kind, events[i].kind);
        assert_string_equal(cmi_event_kind_name(events[i].kind), events[i].name);
    }
    assert_true(p.events[1].address == 8388608 && p.events[1].bytes == 2097152);
    cmi_picture_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_before_the_window_come_first),
        cmocka_unit_test(refusal_is_judged_by_its_own_moment),
        cmocka_unit_test(idle_in_private_pools),
        cmocka_unit_test(own_moves_and_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
