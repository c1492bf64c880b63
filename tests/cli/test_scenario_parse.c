/* The scenario language: arithmetic of sizes, replacement of $i, and the one line for each kind of fault. */
#include "../../tools/cudamempool/scenario.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expressions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t i;
        int64_t value;
    } cases[] = {
        {"1032", 0, 1032},
        {"2K", 0, 2048},
        {"180M+2M*$i", 3, (180 + 6) * INT64_C(1048576)},
        {"3400M-190M*$i", 5, (3400 - 950) * INT64_C(1048576)},
        {"2*(1K+$i)-1", 2, 2051},
        {"9.9G", 0, 10630044057},
        {"1T", 0, INT64_C(1) << 40},
        {"1K-2K", 0, -1024},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int64_t value = 0;
        assert_null(scenario_evaluate(cases[k].text, cases[k].i, &value));
        assert_true(value == cases[k].value);
    }
    static const char *const wrong[] = {"", "M", "1Q", "1M+", "(1M", "1M)", "1M 2M", "-1", "0x10", "1e9", "$j", "9999999999T", "4T*4T*4T"};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        int64_t value = 0;
        if (scenario_evaluate(wrong[k], 0, &value) == NULL)
            fail_msg("'%s' was taken for a size", wrong[k]);
    }
}

static void substitution(void **state)
{
    (void)state;
    char out[16];
    assert_true(scenario_substitute("p$i_a", 12, out, sizeof out));
    assert_string_equal(out, "p12_a");
    assert_true(scenario_substitute("q2_$i$i", 3, out, sizeof out));
    assert_string_equal(out, "q2_33");
    assert_true(scenario_substitute("plain", 3, out, sizeof out));
    assert_string_equal(out, "plain");
    assert_false(scenario_substitute("longer_than_sixteen", 0, out, sizeof out));
    assert_false(scenario_substitute("0123456789abcde$i", 0, out, sizeof out));
}

static int parse(const char *text, scenario_script *script, char fault[256])
{
    return scenario_parse("t", text, strlen(text), script, fault, 256);
}

static void statements(void **state)
{
    (void)state;
    scenario_script s;
    char fault[256];
    assert_int_equal(parse("# words\n@cap 2G # here\n@fifo\n@maxsplit 20M\n\nrep 3 {\n a b$i 1M+$i s$i\n rep 2 {\n  use b$i s1\n }\n}\n"
                           "ext -1G\nexpect drvcalls<=7\npool P end\ndrvbad 0\nx c 1G",
                           &s, fault),
                     0);
    assert_true(s.capacity_bytes == UINT64_C(2) << 30);
    assert_int_equal(s.count, 9);
    assert_int_equal(s.statements[0].verb, VERB_REP);
    assert_int_equal(s.statements[0].times, 3);
    assert_int_equal(s.statements[0].body_end, 4);
    assert_int_equal(s.statements[2].verb, VERB_REP);
    assert_int_equal(s.statements[2].body_end, 4);
    assert_int_equal(s.statements[1].line, 7);
    assert_string_equal(s.statements[1].stream, "s$i");
    assert_int_equal(s.statements[4].verb, VERB_EXT_RETURN);
    assert_int_equal(s.statements[5].figure, FIGURE_drvcalls);
    assert_string_equal(s.statements[5].relation, "<=");
    assert_string_equal(s.statements[5].size, "7");
    assert_int_equal(s.statements[6].verb, VERB_POOL_END);
    assert_int_equal(s.statements[8].verb, VERB_REFUSE);
    assert_string_equal(s.statements[8].stream, "s0");
    scenario_free(&s);
}

static void faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *fault;
    } cases[] = {
        {"", "t:1: the file is empty"},
        {"# nothing\n", "t:1: the file holds no statement"},
        {"a b 1M\nalloc c 1M\n", "t:2: unknown word 'alloc'"},
        {"@size 1M\n", "t:1: unknown word '@size'"},
        {"@cap 0\n", "t:1: '0': not a size above 0"},
        {"a b\n", "t:1: 'a' needs more words"},
        {"a b 1M s0 s1\n", "t:1: 's1' after the end of the statement"},
        {"a b 1X\n", "t:1: '1X': not a size"},
        {"a b 1M 0\n", "t:1: '0' is not a stream"},
        {"busy sx\n", "t:1: 'sx' is not a stream"},
        {"ext 1G\n", "t:1: '1G' begins with neither + nor -"},
        {"drvbad 2\n", "t:1: '2' is neither 1 nor 0"},
        {"pool P open\n", "t:1: 'open' is neither begin nor end"},
        {"expect used<=1G\n", "t:1: 'used<=1G' begins with no figure"},
        {"expect live<1G\n", "t:1: 'live<1G' has none of <=, >= and =="},
        {"trim\nrep 3 {\ntrim\n", "t:2: 'rep' without its '}'"},
        {"trim\n}\n", "t:2: '}' without a 'rep'"},
        {"rep x {\n}\n", "t:1: 'x' is not a number of repetitions"},
        {"rep 3 [\n}\n", "t:1: '[' where '{' belongs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scenario_script s;
        char fault[256] = "";
        assert_int_equal(parse(cases[i].text, &s, fault), -1);
        if (strncmp(fault, cases[i].fault, strlen(cases[i].fault)) != 0)
            fail_msg("expected '%s...', got '%s'", cases[i].fault, fault);
        assert_null(s.statements);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions),
        cmocka_unit_test(substitution),
        cmocka_unit_test(statements),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
