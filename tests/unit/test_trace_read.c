/* The trace reader: what it makes of good files, and the one line it gives for each kind of bad one. */
#include "trace/trace.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

static const char good[] = "# format cmtrace-1\n"
                           "# model small one\n"
                           "#\n"
                           "p load\n"
                           "a 7 1000 0\n"
                           "s 1\n"
                           "p forward\n"
                           "a 9 512 30\n"
                           "u 9 0\n"
                           "f 9 30\n"
                           "p load\n"
                           "a 8 1 0\n"
                           "f 7 0\n";

static void check_good(const cmi_trace *t)
{
    assert_int_equal(t->block_count, 3);
    assert_int_equal(t->event_count, 10);
    assert_int_equal(t->call_count, 6);
    assert_int_equal(t->step_count, 1);
    assert_int_equal(t->stream_count, 2);
    assert_int_equal(t->streams[0], 0);
    assert_int_equal(t->streams[1], 30);
    assert_int_equal(t->phase_count, 2);
    assert_string_equal(t->phases[1], "forward");
    assert_int_equal(t->header_count, 2);
    assert_string_equal(t->headers[1].key, "model");
    assert_string_equal(t->headers[1].value, "small one");
    assert_int_equal(t->peak_live_bytes, 1024 + 512);
    assert_int_equal(t->end_live_bytes, 512);
    assert_int_equal(t->events[5].kind, CMI_TRACE_USE);
    assert_int_equal(t->events[5].subject, 1);
    assert_int_equal(t->events[5].stream, 0);
    assert_int_equal(t->events[5].line, 9);
    assert_int_equal(t->blocks[1].id, 9);
    assert_int_equal(t->blocks[1].alloc_line, 8);
    assert_int_equal(t->blocks[1].free_line, 10);
    assert_int_equal(t->blocks[2].free_line, 0);
}

static void plain(void **state)
{
    (void)state;
    cmi_trace trace;
    char fault[256];
    assert_int_equal(cmi_trace_read_memory("t", good, sizeof good - 1, &trace, fault, sizeof fault), 0);
    assert_string_equal(trace.format, "cmtrace");
    check_good(&trace);
    cmi_trace_free(&trace);
}

/* gzip of text; the caller frees. */
static unsigned char *zipped(const char *text, size_t bytes, size_t *length)
{
    z_stream z = {0};
    unsigned char *out = malloc(bytes + 4096);
    assert_non_null(out);
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)text;
    z.avail_in = (uInt)bytes;
    z.next_out = out;
    z.avail_out = (uInt)(bytes + 4096);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    *length = z.total_out;
    deflateEnd(&z);
    return out;
}

static void gzip_by_content(void **state)
{
    (void)state;
    cmi_trace trace;
    char fault[256];
    size_t length;
    unsigned char *data = zipped(good, sizeof good - 1, &length);
    assert_int_equal(cmi_trace_read_memory("t.txt", data, length, &trace, fault, sizeof fault), 0);
    assert_string_equal(trace.format, "cmtrace.gz");
    check_good(&trace);
    cmi_trace_free(&trace);
    free(data);
}

/* Two members, cut between two lines, are one text, as gunzip has it. */
static void gzip_members(void **state)
{
    (void)state;
    cmi_trace trace;
    char fault[256];
    size_t first, second, cut = (size_t)(strstr(good, "s 1") - good);
    unsigned char *a = zipped(good, cut, &first), *b = zipped(good + cut, sizeof good - 1 - cut, &second);
    a = realloc(a, first + second);
    assert_non_null(a);
    memcpy(a + first, b, second);
    assert_int_equal(cmi_trace_read_memory("t", a, first + second, &trace, fault, sizeof fault), 0);
    check_good(&trace);
    cmi_trace_free(&trace);
    free(a);
    free(b);
}

static void expect_fault(const void *data, size_t bytes, const char *expected)
{
    cmi_trace trace;
    char fault[256] = "";
    assert_int_equal(cmi_trace_read_memory("t", data, bytes, &trace, fault, sizeof fault), -1);
    if (strncmp(fault, expected, strlen(expected)) != 0)
        fail_msg("expected '%s...', got '%s'", expected, fault);
    assert_null(strchr(fault, '\n'));
    assert_null(trace.events);
    assert_null(trace.blocks);
}

/* Every prefix of a gzip file, and every file with one bit turned, is refused; none is read as something else. */
static void gzip_damage(void **state)
{
    (void)state;
    cmi_trace trace;
    char fault[256];
    size_t length;
    unsigned char *data = zipped(good, sizeof good - 1, &length);
    for (size_t cut = 0; cut < length; cut++)
        assert_int_equal(cmi_trace_read_memory("t", data, cut, &trace, fault, sizeof fault), -1);
    for (size_t at = 10; at < length; at++) { /* the first ten bytes hold a time and flags that change nothing */
        data[at] ^= 0x10;
        assert_int_equal(cmi_trace_read_memory("t", data, length, &trace, fault, sizeof fault), -1);
        data[at] ^= 0x10;
    }
    expect_fault(data, length - 1, "t:14: truncated gzip data");
    data[length - 6] ^= 1;
    expect_fault(data, length, "t:14: corrupt gzip data");
    free(data);
}

static void faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *fault;
    } cases[] = {
        {"", "t:1: the file is empty"},
        {"# only a header\n", "t:1: the file holds no allocation"},
        {"a 1 512 0\nz 1 0\n", "t:2: unknown event 'z'"},
        {"a 1 512 0\nfree 1 0\n", "t:2: unknown event 'free'"},
        {"a 1 512 0\n\x01\x02 1\n", "t:2: unknown event '?\?'"},
        {"f 1 0\n", "t:1: free of id 1, which was never allocated"},
        {"u 3 0\n", "t:1: use of id 3, which was never allocated"},
        {"a 1 512 0\nf 1 0\nf 1 0\n", "t:3: free of id 1, which was freed at line 2"},
        {"a 1 512 0\nf 1 0\nu 1 0\n", "t:3: use of id 1, which was freed at line 2"},
        {"a 1 512 0\na 1 512 0\n", "t:2: id 1 was already used at line 1"},
        {"a 1 512 0\nf 1 0\na 1 512 0\n", "t:3: id 1 was already used at line 1"},
        {"a 1 0 0\n", "t:1: a size of 0"},
        {"a 1 140737488355329 0\n", "t:1: the size 140737488355329 is beyond 2^47"},
        {"a 1 18446744073709551615 0\n", "t:1: the size 18446744073709551615 is beyond 2^47"},
        {"a 1 18446744073709551616 0\n", "t:1: the size '18446744073709551616' is beyond 2^64"},
        {"a 1 -5 0\n", "t:1: the size '-5' is not a number"},
        {"a 1 512 zero\n", "t:1: the stream 'zero' is not a number"},
        {"a 1 512 0x1\n", "t:1: the stream '0x1' is not a number"},
        {"a 1 512\n", "t:1: the stream is missing"},
        {"a 1\n", "t:1: the size is missing"},
        {"a\n", "t:1: the id is missing"},
        {"a 1 512 0 9\n", "t:1: '9' after the end of the item"},
        {"s one\n", "t:1: the step 'one' is not a number"},
        {"p\n", "t:1: the phase is missing"},
        {"# format cmtrace-2\na 1 512 0\n", "t:1: the format 'cmtrace-2' is not known"},
        {"Thread,Time,Action,Pointer,Size,Stream\n", "t:1: the file holds no allocation"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_fault(cases[i].text, strlen(cases[i].text), cases[i].fault);
    expect_fault("\x80\x04\x95zz", 5, "t:1: byte 3: the pickle is cut off");
    expect_fault("a 1 512 0\n\0\0\0", 13, "t:1: binary data");
}

static void largest_size_is_fine(void **state)
{
    (void)state;
    static const char text[] = "a 18446744073709551615 140737488355328 18446744073709551615\n";
    cmi_trace trace;
    char fault[256];
    assert_int_equal(cmi_trace_read_memory("t", text, sizeof text - 1, &trace, fault, sizeof fault), 0);
    assert_true(trace.blocks[0].id == UINT64_MAX && trace.blocks[0].bytes == CMI_TRACE_LARGEST_BLOCK);
    cmi_trace_free(&trace);
}

/* Lines that cross the reader's window, and more blocks than its first index holds. */
static void long_trace(void **state)
{
    (void)state;
    enum { BLOCKS = 60000 };
    cmi_trace trace;
    char fault[256], *text = malloc(BLOCKS * 64), *at = text;
    assert_non_null(text);
    for (int i = 1; i <= BLOCKS; i++) {
        at += sprintf(at, "a %d %d %d\n", i * 7, i, i % 3);
        if (i > 10)
            at += sprintf(at, "f %d %d\n", (i - 10) * 7, (i - 10) % 3);
    }
    assert_int_equal(cmi_trace_read_memory("t", text, (size_t)(at - text), &trace, fault, sizeof fault), 0);
    assert_int_equal(trace.block_count, BLOCKS);
    assert_int_equal(trace.call_count, 2 * BLOCKS - 10);
    assert_int_equal(trace.blocks[BLOCKS - 1].id, BLOCKS * 7);
    for (int i = 0; i < BLOCKS; i++)
        assert_int_equal(trace.blocks[i].bytes, i + 1);
    cmi_trace_free(&trace);
    at += sprintf(at, "f 7 1\n");
    expect_fault(text, (size_t)(at - text), "t:119991: free of id 7, which was freed at line 12");
    free(text);
}

static void files(void **state)
{
    (void)state;
    cmi_trace trace;
    char fault[256], path[] = "test_trace_XXXXXX";
    assert_int_equal(cmi_trace_read("/", &trace, fault, sizeof fault), -1);
    assert_string_equal(fault, "/:0: is a directory");
    assert_int_equal(cmi_trace_read("no/such/file", &trace, fault, sizeof fault), -1);
    assert_string_equal(fault, "no/such/file:0: No such file or directory");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, good, sizeof good - 1), (ssize_t)(sizeof good - 1));
    close(fd);
    assert_int_equal(cmi_trace_read(path, &trace, fault, sizeof fault), 0);
    check_good(&trace);
    cmi_trace_free(&trace);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),  cmocka_unit_test(gzip_by_content),      cmocka_unit_test(gzip_members), cmocka_unit_test(gzip_damage),
        cmocka_unit_test(faults), cmocka_unit_test(largest_size_is_fine), cmocka_unit_test(long_trace),   cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
