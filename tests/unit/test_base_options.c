/*
 * The option parser and the numbers it reads: what is understood, what is refused with which line, what is merely not needed.
 */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define SIZE_OF(text, result) cmi_parse_size(text, strlen(text), result)

static void sizes_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"1K", 1024},
        {"64KiB", 65536},
        {"512MiB", 536870912},
        {"24GiB", 25769803776},
        {"1.5GiB", 1610612736},
        {"2T", 2199023255552},
        {"0.0009765625K", 1},
        {"0.33333333333333333333333333333333M", 349525},
        {"18446744073709551615", UINT64_MAX},
        {"17179869183G", 18446744072635809792u},
        {"16777215.99999999999999999999T", UINT64_MAX},
    };
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(good); i++) {
        uint64_t bytes = 1;
        assert_true(SIZE_OF(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    assert_true(cmi_parse_size("12345", 2, &(uint64_t){0})); /* the length counts, not a terminator */
}

static void bad_sizes_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      " ",
                                      "-1",
                                      "+1",
                                      "x",
                                      "1x",
                                      "1kb",
                                      "1k",
                                      "1Ki",
                                      "1KB",
                                      "1 K",
                                      "1.",
                                      ".5G",
                                      "1.5",
                                      "1..5G",
                                      "1.2.3G",
                                      "0x10",
                                      "1e3",
                                      "KiB",
                                      "1KiBs",
                                      "1iB",
                                      "nan",
                                      "1,5G",
                                      "18446744073709551616",
                                      "16777216T",
                                      "17179869184G",
                                      "99999999999999999999999999999999"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(bad); i++) {
        uint64_t bytes = 77;
        if (SIZE_OF(bad[i], &bytes))
            fail_msg("\"%s\" was read as %llu", bad[i], (unsigned long long)bytes);
        assert_int_equal(bytes, 77);
    }
}

static void ratios_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t parts;
    } good[] = {{"0.01", 10000}, {"1%", 10000}, {"1", 1000000}, {"100%", 1000000}, {"0.5%", 5000}, {"0", 0}, {"0.0000019", 1}};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(good); i++) {
        uint64_t parts = 77;
        assert_true(cmi_parse_ratio(good[i].text, strlen(good[i].text), &parts));
        assert_int_equal(parts, good[i].parts);
    }
    static const char *const bad[] = {"", "%", "1%%", "-1%", "1 %", "one", "1.%", ".1", "18446744073709551615"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(bad); i++)
        assert_false(cmi_parse_ratio(bad[i], strlen(bad[i]), &(uint64_t){0}));
}

static void seconds_are_read(void **state)
{
    (void)state;
    uint64_t seconds = 77;
    assert_true(cmi_parse_seconds("30", 2, &seconds));
    assert_int_equal(seconds, 30);
    assert_true(cmi_parse_seconds("0s", 2, &seconds));
    assert_int_equal(seconds, 0);
    static const char *const bad[] = {"", "s", "1.5", "1ms", "-1", "1m", "1 s", "18446744073709551616"};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(bad); i++)
        assert_false(cmi_parse_seconds(bad[i], strlen(bad[i]), &seconds));
}

static int parse(cmi_options *options, const char *text, char *fault, size_t fault_bytes)
{
    cmi_options_default(options);
    return cmi_options_parse(options, text, "test", fault, fault_bytes);
}

static void defaults_are_those_of_the_list(void **state)
{
    (void)state;
    cmi_options options;
    assert_int_equal(parse(&options, NULL, NULL, 0), 0);
#define CMPOOL_OPTION(key, kind, value, low, high, help) \
    assert_int_equal(options.key, value);                \
    assert_in_range(options.key, low, high);
#include <cudamempool/options.def>
#undef CMPOOL_OPTION
    assert_int_equal(parse(&options, "", NULL, 0), 0);
    assert_int_equal(parse(&options, " , ,", NULL, 0), 0);
}

static void good_settings_are_applied(void **state)
{
    (void)state;
    cmi_options options;
    assert_int_equal(parse(&options,
                           "limit:24GiB, floor : 1G ,slack:2%,stale_budget:0,pending:wait,cross_stream_wait:off,"
                           "stream_check:always,backend:malloc,strict:true,page_size:4MiB,verbose:3,idle_release:90s,limit:512MiB",
                           NULL, 0),
                     0);
    assert_int_equal(options.limit, 536870912); /* the last one counts */
    assert_int_equal(options.floor, 1073741824);
    assert_int_equal(options.slack, 20000);
    assert_int_equal(options.stale_budget, 0);
    assert_int_equal(options.pending, CMI_PENDING_WAIT);
    assert_int_equal(options.cross_stream_wait, 0);
    assert_int_equal(options.stream_check, CMI_STREAM_CHECK_ALWAYS);
    assert_int_equal(options.backend, CMI_BACKEND_MALLOC);
    assert_int_equal(options.strict, 1);
    assert_int_equal(options.page_size, 4194304);
    assert_int_equal(options.verbose, 3);
    assert_int_equal(options.headroom, 0);
    assert_int_equal(options.idle_release, 90);
    assert_int_equal(parse(&options, "stream_check:slow", NULL, 0), 0);
    assert_int_equal(options.stream_check, CMI_STREAM_CHECK_SLOW);
    cmi_options plain;
    parse(&plain, NULL, NULL, 0);
    assert_int_equal(parse(&options, "bypass:libnccl+libucx*+lib_a-1.2, bypass : ,bypass:*", NULL, 0), 0);
    assert_memory_equal(&options, &plain, sizeof plain); /* a list has no field */
    assert_int_equal(parse(&options, "stream_check:off,pending:grow,backend:vmm", NULL, 0), 0);
    assert_int_equal(options.stream_check, CMI_STREAM_CHECK_OFF);
}

static void every_nth_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t nth;
    } good[] = {{"stacks:off", 0},
                {"stacks:all", 1},
                {"stacks:sampled:1", 1},
                {"stacks: sampled:7 ", 7},
                {"stacks:sampled:1000000000", 1000000000}};
    static const char *const bad[] = {"stacks:",          "stacks:some",      "stacks:sampled",    "stacks:sampled:",
                                      "stacks:sampled:0", "stacks:sampled:x", "stacks:sampled:-1", "stacks:sampled:1000000001"};
    cmi_options options;
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(good); i++) {
        assert_int_equal(parse(&options, good[i].text, NULL, 0), 0);
        assert_int_equal(options.stacks, good[i].nth);
    }
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(bad); i++) {
        char fault[256];
        assert_int_equal(parse(&options, bad[i], fault, sizeof fault), 1);
        assert_int_equal(options.stacks, 0);
        assert_non_null(strstr(fault, "off, all, or sampled:N"));
    }
}

static void texts_are_kept(void **state)
{
    (void)state;
    cmi_options options, again;
    assert_int_equal(parse(&options, "trace:out/run-%p.cmtrace.gz,snapshot_file:a:b c", NULL, 0), 0);
    assert_string_equal(cmi_options_text(options.trace), "out/run-%p.cmtrace.gz");
    assert_string_equal(cmi_options_text(options.snapshot_file), "a:b c");
    assert_string_equal(cmi_options_text(options.snapshot_at_exit), "");
    assert_int_equal(parse(&again, "snapshot_at_exit:a:b c,trace:", NULL, 0), 0);
    assert_int_equal(again.snapshot_at_exit, options.snapshot_file); /* the same text has the same number */
    assert_string_equal(cmi_options_text(again.trace), "");
    assert_string_equal(cmi_options_text(UINT64_MAX), "");
}

static void bad_texts_are_refused(void **state)
{
    (void)state;
    static char text[sizeof "trace:" + CMI_TEXT_BYTES];
    cmi_options options;
    char fault[256];
    assert_int_equal(parse(&options, "trace:a\tb", fault, sizeof fault), 1);
    assert_non_null(strstr(fault, "a text without commas"));
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "trace:", strlen("trace:"));
    assert_int_equal(parse(&options, text, NULL, 0), 1);
    assert_int_equal(options.trace, 0);
    text[sizeof text - 2] = '\0'; /* as long as one may be */
    assert_int_equal(parse(&options, text, NULL, 0), 0);
    assert_string_equal(cmi_options_text(options.trace), text + strlen("trace:"));
}

/* The last test: texts are kept for good. */
static void more_texts_than_there_is_room_for(void **state)
{
    (void)state;
    cmi_options options;
    char text[32];
    int faults = 0, kept = 0;
    for (; kept < 1000 && faults == 0; kept++) {
        snprintf(text, sizeof text, "trace:file%d", kept);
        faults = parse(&options, text, NULL, 0);
    }
    assert_int_equal(faults, 1);
    assert_int_equal(options.trace, 0);
    assert_in_range(kept, 200, 256);
    assert_int_equal(parse(&options, "trace:file0", NULL, 0), 0); /* a known one */
    assert_string_equal(cmi_options_text(options.trace), "file0");
}

/* What a run of the parser writes to stderr. */
static size_t captured_parse(const char *text, int *faults, char *output, size_t bytes)
{
    int ends[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    cmi_options options;
    *faults = parse(&options, text, NULL, 0);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t length = read(ends[0], output, bytes - 1);
    close(ends[0]);
    output[length > 0 ? length : 0] = '\0';
    return length > 0 ? (size_t)length : 0;
}

static size_t count_lines(const char *text)
{
    size_t lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

static void each_fault_is_one_line_with_key_value_and_what_is_allowed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *key, *value, *allowed;
    } bad[] = {
        {"colour:red", "colour", "red", "known keys: page_size limit"},
        {"limit:much", "limit", "much", "24GiB"},
        {"limit:", "limit", "\"\"", "24GiB"},
        {"limit:99999999999999999999", "limit", "99999999999999999999", "24GiB"},
        {"limit:-1", "limit", "-1", "24GiB"},
        {"page_size:3MiB", "page_size", "3MiB", "power of two"},
        {"page_size:2GiB", "page_size", "2GiB", "1073741824"},
        {"slack:0", "slack", "\"0\"", "0.01% to 1000.00%"},
        {"stale_budget:1.1", "stale_budget", "1.1", "0.00% to 100.00%"},
        {"pending:maybe", "pending", "maybe", "grow|wait"},
        {"backend:", "backend", "\"\"", "vmm|malloc"},
        {"backend:gro", "backend", "gro", "vmm|malloc"},
        {"strict:yes", "strict", "yes", "true, false, on, off, 1 or 0"},
        {"idle_release:soon", "idle_release", "soon", "seconds from 0 to 31536000"},
        {"idle_release:31536001", "idle_release", "31536001", "seconds from 0 to 31536000"},
        {"verbose:4", "verbose", "\"4\"", "from 0 to 3"},
        {"stacks:sampled:0", "stacks", "sampled:0", "off, all, or sampled:N for every Nth, N up to 1000000000"},
        {"trace:a\177b", "trace", "a?b", "a text without commas, at most 4095 bytes"},
        {"limit", "limit", "no value", "key:value"},
        {":5", "\"\"", "\"5\"", "known keys"},
        {"li\nmit:5", "li?mit", "\"5\"", "known keys"},
    };
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(bad); i++) {
        char output[2048];
        int faults;
        captured_parse(bad[i].text, &faults, output, sizeof(output));
        assert_int_equal(faults, 1);
        assert_int_equal(count_lines(output), 1);
        if (strstr(output, bad[i].key) == NULL || strstr(output, bad[i].value) == NULL || strstr(output, bad[i].allowed) == NULL)
            fail_msg("for \"%s\": %s", bad[i].text, output);
    }
}

static void faults_skip_only_themselves(void **state)
{
    (void)state;
    cmi_options options;
    char fault[256];
    assert_int_equal(parse(&options, "limit:1G,colour:red,floor:x,headroom:2M", fault, sizeof(fault)), 2);
    assert_int_equal(options.limit, 1073741824);
    assert_int_equal(options.floor, 0);
    assert_int_equal(options.headroom, 2097152);
    assert_non_null(strstr(fault, "colour"));
    assert_null(strchr(fault, '\n'));
    char small[8];
    assert_int_equal(parse(&options, "colour:red", small, sizeof(small)), 1);
    assert_string_equal(small, "test: u");
}

static void long_and_wild_text_is_survived(void **state)
{
    (void)state;
    static char text[20000], output[2048];
    int faults;
    memset(text, 'a', sizeof(text) - 1);
    captured_parse(text, &faults, output, sizeof(output));
    assert_int_equal(faults, 1);
    assert_int_equal(count_lines(output), 1);
    memset(text, '[', sizeof(text) - 1);
    captured_parse(text, &faults, output, sizeof(output));
    assert_int_equal(faults, 1);
}

static void pytorch_keys_are_no_faults(void **state)
{
    (void)state;
    static const char *const settings[] = {
#define CMI_PYTORCH_KEY(key, why) #key ":1",
#define CMI_PYTORCH_VALUE(key, word, why) #key ":" #word,
#include "base/pytorch_keys.def"
#undef CMI_PYTORCH_KEY
#undef CMI_PYTORCH_VALUE
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    };
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(settings); i++) {
        char output[2048];
        int faults;
        captured_parse(settings[i], &faults, output, sizeof(output));
        assert_int_equal(faults, 0);
        assert_int_equal(count_lines(output), 1);
        assert_non_null(strstr(output, "not needed"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(ratios_are_read),
        cmocka_unit_test(seconds_are_read),
        cmocka_unit_test(defaults_are_those_of_the_list),
        cmocka_unit_test(good_settings_are_applied),
        cmocka_unit_test(each_fault_is_one_line_with_key_value_and_what_is_allowed),
        cmocka_unit_test(faults_skip_only_themselves),
        cmocka_unit_test(long_and_wild_text_is_survived),
        cmocka_unit_test(every_nth_is_read),
        cmocka_unit_test(texts_are_kept),
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(pytorch_keys_are_no_faults),
        cmocka_unit_test(more_texts_than_there_is_room_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
