/* `cudamempool scenario`: scripts that model reports of allocator trouble, run by the real pool. Owns the command line. One thread. */
#include "json.h"
#include "scenario.h"
#include "tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: cudamempool scenario [OPTION]... FILE...\n"
    "Run scenario scripts through the pool on a simulated device and say of each whether every line holds.\n"
    "\n"
    "  --device D   sim:SIZE[,order=eager|lazy|random:SEED]...; SIZE is for scripts without @cap; without it sim:24GiB\n"
    "  --conf C     pool options \"key:value,key:value\", applied over CUDAMEMPOOL_CONF\n"
    "  --json       one JSON object a file, on one line\n"
    "  --help       this text\n"
    "\n"
    "Exit status: 0 all passed; 1 a script failed; 2 wrong usage or unreadable input; 3 device or driver trouble.\n";

typedef struct scenario_options {
    const char *device;
    device_words words;
    pool_conf conf;
    bool json;
} scenario_options;

/* Exit status, or -1 to go on. */
static int read_option(tool_words *words, const tool_option *option, scenario_options *options)
{
    if (strcmp(option->name, "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_FINE;
    }
    if (strcmp(option->name, "--json") == 0 && option->value == NULL)
        options->json = true;
    else if (strcmp(option->name, "--device") == 0 || strcmp(option->name, "--conf") == 0) {
        const char *value = tool_option_value(words, option);
        if (value == NULL)
            return EXIT_BAD_INPUT;
        *(option->name[2] == 'd' ? &options->device : &options->conf.text) = value;
    } else
        return tool_say(EXIT_BAD_INPUT, "scenario knows no option '%s'; see 'cudamempool scenario --help'", option->name);
    return -1;
}

static int print_json(const char *file, const scenario_outcome *outcome)
{
    json out = {0};
    json_begin_object(&out, NULL);
    json_string(&out, "file", file);
    json_bool(&out, "passed", outcome->passed);
    if (outcome->line != 0)
        json_integer(&out, "line", outcome->line);
    else
        json_null(&out, "line");
    if (outcome->passed)
        json_null(&out, "reason");
    else
        json_string(&out, "reason", outcome->reason);
    json_end_object(&out);
    return json_print(&out, stdout);
}

static void print_line(const char *file, const scenario_outcome *outcome)
{
    if (outcome->passed)
        printf("pass  %s\n", file);
    else if (outcome->line != 0)
        printf("FAIL  %s:%u: %s\n", file, outcome->line, outcome->reason);
    else
        printf("FAIL  %s: at its end: %s\n", file, outcome->reason);
    fflush(stdout);
}

static int scenario_file(const char *file, const scenario_options *options, unsigned *passed)
{
    scenario_script script;
    scenario_outcome outcome = {0};
    char fault[512];
    if (scenario_read(file, &script, fault, sizeof fault) != 0)
        return tool_say_plain(EXIT_BAD_INPUT, fault);
    int code = scenario_run(file, &script, &options->words, &options->conf, &outcome);
    scenario_free(&script);
    if (code != EXIT_FINE && code != EXIT_ANSWER_NO)
        return code;
    *passed += outcome.passed;
    if (!options->json)
        print_line(file, &outcome);
    else if (print_json(file, &outcome) != 0)
        return tool_say(EXIT_DEVICE, "%s: its result could not be written", file);
    return code;
}

int cmd_scenario(int argc, char **argv)
{
    scenario_options options = {.device = "sim:24GiB"};
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    char **files = calloc((size_t)argc, sizeof *files);
    int count = 0, code = -1, worst = EXIT_FINE;
    unsigned passed = 0;
    if (files == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for the list of files");
    while (code < 0 && tool_next_option(&words, &option, files, &count))
        code = read_option(&words, &option, &options);
    if (code < 0 && count == 0)
        code = tool_say(EXIT_BAD_INPUT, "scenario needs a file; see 'cudamempool scenario --help'");
    if (code < 0)
        code = device_parse(options.device, &options.words);
    else
        goto done;
    if (code == EXIT_FINE && !options.words.simulated)
        code = tool_say(EXIT_BAD_INPUT, "scenarios run on a simulated device");
    if (code == EXIT_FINE)
        code = pool_conf_check(&options.conf, &options.words);
    if (code != EXIT_FINE)
        goto done;
    for (int i = 0; i < count; i++) {
        code = scenario_file(files[i], &options, &passed);
        worst = code > worst ? code : worst;
    }
    if (!options.json && count > 1)
        printf("%u of %d passed\n", passed, count);
    code = worst;
done:
    free(files);
    return code;
}
