/* Readers of snapshots, logs and traces: what each format says ends up in the picture; what runs code or lies is refused. */
#include "trace/convert.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CORPUS TEST_SOURCE_DIR "/tests/fuzz/corpus/fuzz_picture/"
#define BYTES(text) (text), sizeof(text) - 1

static const uint64_t page = 2097152, base = UINT64_C(1) << 33;

static void read_good(const char *path, cmi_picture *p)
{
    char fault[256] = "";
    if (cmi_picture_read(path, p, fault, sizeof fault) != 0)
        fail_msg("%s", fault);
}

static const char *text_of(const cmi_picture *p, cmi_string_id id) { return p->strings[id]; }

/* ---- formats ------------------------------------------------------------------------------------------------------------------------- */

/* The same snapshot in every protocol and in JSON. */
static void check_snapshot(const char *path)
{
    cmi_picture p;
    cmi_picture_totals totals;
    read_good(path, &p);
    assert_int_equal(p.segment_count, 1);
    assert_int_equal(p.device_count, 1);
    assert_true(p.has_state && p.has_history);
    const cmi_picture_segment *s = &p.segments[0];
    assert_true(s->address == base && s->bytes == page && s->expandable && s->block_count == 3);
    assert_true(p.pools[s->pool].is_private && p.pools[s->pool].id[1] == 1);
    assert_int_equal(p.blocks[0].state, CMI_BLOCK_LIVE);
    assert_int_equal(p.blocks[0].requested_bytes, 10);
    assert_int_equal(p.blocks[1].state, CMI_BLOCK_PENDING);
    assert_int_equal(p.blocks[2].state, CMI_BLOCK_IDLE);
    const cmi_picture_stack *stack = &p.stacks[p.blocks[0].stack];
    assert_int_equal(stack->count, 2);
    const cmi_picture_frame *inner = &p.frames[p.stack_frames[stack->first]];
    assert_string_equal(text_of(&p, inner->file), "a.py");
    assert_string_equal(text_of(&p, inner->function), "f");
    assert_int_equal(inner->line, 3);
    assert_int_equal(p.event_count, 7); /* five events and an annotation's two ends, by time */
    assert_int_equal(p.events[0].kind, CMI_EVENT_SEGMENT_ALLOC);
    assert_int_equal(p.events[2].kind, CMI_EVENT_RANGE_BEGIN);
    assert_string_equal(text_of(&p, p.events[2].tag), "step");
    assert_true(p.events[1].time_ns == INT64_C(1700000000000001000));
    assert_int_equal(p.note_count, 3); /* of the settings; the division that is 0 says nothing */
    assert_string_equal(text_of(&p, p.notes[2].key), "roundup_power2_divisions:2");
    cmi_picture_total(&p, 0, &totals);
    assert_true(totals.live_bytes == 512 && totals.pending_bytes == 512 && totals.idle_bytes == page - 1024);
    assert_int_equal(p.refusal_count, 1);
    const cmi_picture_refusal *r = &p.refusals[0];
    assert_true(r->request_bytes == UINT64_C(9) << 30 && r->device_free_bytes == 4096);
    assert_true(r->live_bytes == 512 && r->pending_bytes == 512 && r->reserved_bytes == page && r->idle_bytes == page - 1024);
    assert_true(r->largest_idle_bytes == page - 1024);
    cmi_picture_free(&p);
}

static void one_snapshot_in_every_form(void **state)
{
    (void)state;
    check_snapshot(CORPUS "snapshot.proto2.pickle");
    check_snapshot(CORPUS "snapshot.proto4.pickle");
    check_snapshot(CORPUS "snapshot.proto5.pickle");
    check_snapshot(CORPUS "snapshot.json");
}

static void oldest_generation(void **state)
{
    (void)state;
    cmi_picture p;
    read_good(CORPUS "list_only.pickle", &p);
    assert_int_equal(p.block_count, 2);
    assert_int_equal(p.blocks[0].address, 4096);
    assert_int_equal(p.blocks[0].requested_bytes, 100);
    assert_int_equal(p.stacks[p.blocks[0].stack].count, 2);
    assert_int_equal(p.blocks[1].address, 4096 + 512);
    cmi_picture_free(&p);
}

static void recorded_snapshot(void **state)
{
    (void)state;
    cmi_picture p;
    cmi_picture_totals totals;
    read_good(TEST_SOURCE_DIR "/tests/data/tiny.pickle", &p);
    cmi_picture_total(&p, CMI_NONE, &totals);
    assert_int_equal(totals.segments, 12);
    assert_int_equal(totals.reserved_bytes, 109051904);
    assert_int_equal(totals.live_bytes, 90861056);
    assert_int_equal(totals.live_blocks, 105);
    assert_int_equal(totals.idle_bytes, totals.reserved_bytes - totals.live_bytes);
    cmi_picture_free(&p);
}

static void profiler_trace(void **state)
{
    (void)state;
    cmi_picture p;
    cmi_picture_lives lives;
    read_good(CORPUS "profiler.json", &p);
    assert_string_equal(p.format, "kineto");
    assert_int_equal(p.event_count, 4); /* what the allocator took first, then the allocation and both halves of the free */
    assert_int_equal(p.events[0].kind, CMI_EVENT_SEGMENT_MAP);
    assert_int_equal(p.events[1].bytes, 4096);
    assert_int_equal(p.events[1].time_ns, 10500);
    assert_int_equal(cmi_picture_match(&p, 0, &lives), 0);
    assert_int_equal(lives.count, 1);
    assert_true(lives.run.peak_reserved_bytes == page && lives.run.peak_live_bytes == 4096);
    cmi_picture_lives_free(&lives);
    cmi_picture_free(&p);
}

static void rmm_logs(void **state)
{
    (void)state;
    cmi_picture p;
    read_good(CORPUS "rmm_new.csv", &p);
    assert_int_equal(p.event_count, 4);
    assert_true(p.events[0].address == UINT64_C(0x30a000000) && p.events[0].bytes == 256 && p.streams[p.events[0].stream].value == 2);
    assert_true(p.events[0].time_ns == INT64_C(51679998533000));
    assert_int_equal(p.refusal_count, 1);
    assert_true(p.refusals[0].live_bytes == 512 && p.refusals[0].largest_idle_bytes == CMI_UNKNOWN);
    cmi_picture_free(&p);
    read_good(CORPUS "rmm_old.csv", &p);
    assert_int_equal(p.event_count, 3);
    assert_int_equal(p.events[0].bytes, 1024);
    cmi_picture_free(&p);
}

/* The sample that goes with the schema. */
static void own_snapshot(void **state)
{
    (void)state;
    cmi_picture p;
    cmi_picture_totals totals;
    read_good(TEST_SOURCE_DIR "/include/cudamempool/snapshot.sample.json", &p);
    assert_string_equal(p.format, "cudamempool");
    assert_int_equal(p.devices[0].total_bytes, 1073741824);
    assert_int_equal(p.devices[0].limit_bytes, 10485760);
    cmi_picture_total(&p, 0, &totals);
    assert_int_equal(totals.reserved_bytes, 10485760);
    assert_int_equal(totals.live_bytes, 4196352);
    assert_int_equal(totals.live_blocks, 4);
    assert_int_equal(totals.pending_bytes, 1048576 + 2097152 + 1024);
    assert_int_equal(totals.private_live_bytes, 1048576);
    assert_int_equal(totals.fixed_bytes, 2097152);
    const cmi_picture_block *named = NULL;
    for (size_t i = 0; i < p.block_count; i++)
        if (p.blocks[i].requested_bytes == 3145628)
            named = &p.blocks[i];
    assert_non_null(named);
    assert_string_equal(text_of(&p, named->tag), "forward");
    const cmi_picture_stack *stack = &p.stacks[named->stack];
    assert_int_equal(stack->count, 2);
    assert_string_equal(text_of(&p, p.frames[p.stack_frames[stack->first]].function), "make_activations+0x2a");
    assert_string_equal(text_of(&p, p.frames[p.stack_frames[stack->first]].file), "/opt/app/train+0x142a");
    assert_int_equal(p.refusal_count, 1);
    assert_string_equal(text_of(&p, p.refusals[0].reason), "true_demand");
    assert_int_equal(p.events[p.refusals[0].event].kind, CMI_EVENT_REFUSED);
    assert_int_equal(p.refusals[0].rung_count, 8);
    assert_string_equal(text_of(&p, p.rungs[3].name), "move");
    assert_int_equal(p.rungs[3].bytes, 2097152);
    cmi_picture_free(&p);
}

/* ---- what is refused ----------------------------------------------------------------------------------------------------------------- */

static void expect_fault(const char *data, size_t bytes, const char *part)
{
    cmi_picture p;
    char fault[256] = "";
    assert_int_equal(cmi_picture_read_memory("t", data, bytes, &p, fault, sizeof fault), -1);
    if (strncmp(fault, "t:", 2) != 0 || strstr(fault, part) == NULL || strchr(fault, '\n') != NULL)
        fail_msg("expected '%s', got '%s'", part, fault);
    assert_null(p.strings);
}

static void nothing_of_a_pickle_is_run(void **state)
{
    (void)state;
    static const struct {
        const char *opcode, *name;
    } cases[] = {{"cos\nsystem\n", "GLOBAL"},
                 {"R", "REDUCE"},
                 {"b", "BUILD"},
                 {"ios\nsystem\n", "INST"},
                 {"o", "OBJ"},
                 {"\x81", "NEWOBJ"},
                 {"\x92", "NEWOBJ_EX"},
                 {"\x93", "STACK_GLOBAL"},
                 {"\x82\1", "EXT1"},
                 {"\x83\1\1", "EXT2"},
                 {"\x84\1\1\1\1", "EXT4"},
                 {"Pid\n", "PERSID"},
                 {"Q", "BINPERSID"},
                 {"\x97", "NEXT_BUFFER"},
                 {"\x98", "READONLY_BUFFER"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64] = "\x80\x04}";
        strcat(text, cases[i].opcode);
        strcat(text, ".");
        expect_fault(text, strlen(text), cases[i].name);
    }
}

static void what_does_not_fit_together(void **state)
{
    (void)state;
    expect_fault(BYTES("\x80\x06N."), "protocol");
    expect_fault(BYTES("\x80\x04}"), "cut off");
    expect_fault(BYTES("\x80\x04u."), "did not begin");
    expect_fault(BYTES("\x80\x04h\7."), "memo");
    expect_fault(BYTES("\x80\x04K\1."), "one dictionary or list");
    expect_fault(BYTES("\x80\x04K\1K\1s."), "no dictionary");
    expect_fault(BYTES("\x80\x04\x8a\x20"
                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa."),
                 "128 bits");
    expect_fault(BYTES("\x80\x04}."), "neither segments");
    expect_fault(BYTES("PK\3\4xxxx"), "zip");
    expect_fault(BYTES("{\"segments\": [}"), "word");
    expect_fault(BYTES("{\"segments\": []} 1"), "after the end");
    expect_fault(
        BYTES("{\"segments\": [{\"address\": 4096, \"total_size\": 512, \"blocks\": [{\"size\": 1024, \"state\": \"inactive\"}]}]}"),
        "do not lie in it");
    expect_fault(BYTES("{\"segments\": [{\"address\": 4096, \"total_size\": 512, \"blocks\": []}, {\"address\": 4200, \"total_size\": 512, "
                       "\"blocks\": []}]}"),
                 "overlap");
    expect_fault(BYTES("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,0x10,many,0\n"), "t:2: the size 'many'");
    char deep[1000];
    memset(deep, '[', sizeof deep);
    expect_fault(deep, sizeof deep, "deeper");
    memset(deep, '(', sizeof deep);
    memcpy(deep, "\x80\x04", 2);
    expect_fault(deep, sizeof deep, "deeper");
}

/* Lists that name one thing many times must not make a small file large. */
static void sharing_is_no_bomb(void **state)
{
    (void)state;
    static const char text[] = "\x80\x04}X\x08\0\0\0segments](}(X\x0a\0\0\0total_sizeK\1X\7\0\0\0address"
                               "K\0X\6\0\0\0blocks]uq\0h\0h\0h\0es.";
    expect_fault(BYTES(text), "twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_snapshot_in_every_form),
        cmocka_unit_test(oldest_generation),
        cmocka_unit_test(recorded_snapshot),
        cmocka_unit_test(profiler_trace),
        cmocka_unit_test(rmm_logs),
        cmocka_unit_test(own_snapshot),
        cmocka_unit_test(nothing_of_a_pickle_is_run),
        cmocka_unit_test(what_does_not_fit_together),
        cmocka_unit_test(sharing_is_no_bomb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
