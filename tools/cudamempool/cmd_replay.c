/* `cudamempool replay`: allocation traces run by the real pool. Owns the command line and the walk over the files. One thread. */
#include "replay_tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "Usage: cudamempool replay [OPTION]... FILE...\n"
                            "Run the allocations of recorded traces and memory snapshots (cmtrace, PyTorch snapshots, RMM logs, profiler\n"
                            "traces; plain or gzip) through the pool and report what it took.\n"
                            "\n"
                            "  --device D        sim:SIZE[,order=eager|lazy|random:SEED][,page=SIZE]... or cuda:N; without it sim:24GiB\n"
                            "  --conf C          pool options \"key:value,key:value\", applied over CUDAMEMPOOL_CONF\n"
                            "  --find-capacity   also find the smallest simulated device on which every request is served\n"
                            "  --repeat-last N   run the last step N more times; steady figures are then of the repetitions\n"
                            "  --sync-steps      wait for the device at each step\n"
                            "  --json            one JSON object a file, on one line\n"
                            "  --help            this text\n"
                            "\n"
                            "Exit status: 0 everything served; 1 a refusal, a race or another finding; 2 wrong usage or unreadable input;\n"
                            "3 device or driver trouble.\n";

/* The least of a few timed runs: other programs on the machine only ever add to it. */
enum { MOST_REPEATS = 1000000, TIMED_RUNS = 3 };

/* Exit status, or -1 to go on. */
static int read_option(tool_words *words, const tool_option *option, replay_options *options)
{
    const char *value;
    uint64_t count;
    if (strcmp(option->name, "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_FINE;
    }
    if (strcmp(option->name, "--json") == 0 && option->value == NULL)
        options->json = true;
    else if (strcmp(option->name, "--find-capacity") == 0 && option->value == NULL)
        options->find_capacity = true;
    else if (strcmp(option->name, "--sync-steps") == 0 && option->value == NULL)
        options->sync_steps = true;
    else if (strcmp(option->name, "--device") == 0 || strcmp(option->name, "--conf") == 0) {
        value = tool_option_value(words, option);
        if (value == NULL)
            return EXIT_BAD_INPUT;
        *(option->name[2] == 'd' ? &options->device : &options->conf.text) = value;
    } else if (strcmp(option->name, "--repeat-last") == 0) {
        value = tool_option_value(words, option);
        if (value == NULL || !tool_parse_count("--repeat-last", value, MOST_REPEATS, &count))
            return EXIT_BAD_INPUT;
        options->repeat_last = (unsigned)count;
    } else
        return tool_say(EXIT_BAD_INPUT, "replay knows no option '%s'; see 'cudamempool replay --help'", option->name);
    return -1;
}

/* Everything that is asked of one file; the report is printed only when all of it is there. */
static int measure(const char *file, const cmi_trace *trace, const replay_options *options, tool_progress *progress, replay_outcome *run,
                   size_t steps, unsigned *rows)
{
    replay_report report = {.file = file, .trace = trace, .options = options, .run = run, .ns_per_call = -1};
    int code = replay_run(file, trace, options, REPLAY_FULL, options->words.capacity_bytes, progress, run, steps);
    for (int i = 0; i < TIMED_RUNS && code == EXIT_FINE && options->words.simulated; i++) {
        replay_outcome timed;
        progress->stage = "timing";
        tool_progress_draw(progress, 1, 1);
        code = replay_run(file, trace, options, REPLAY_TIMED, options->words.capacity_bytes, progress, &timed, 0);
        if (report.ns_per_call < 0 || timed.ns_per_call < report.ns_per_call)
            report.ns_per_call = timed.ns_per_call;
    }
    if (code == EXIT_FINE && options->find_capacity)
        code = replay_find_capacity(file, trace, options, progress, &report.capacity_bytes);
    tool_progress_end(progress);
    if (code != EXIT_FINE)
        return code;
    replay_explain(&report);
    replay_closing(&report, options->closing);
    if (options->json) {
        if (replay_print_json(&report) != 0)
            return tool_say(EXIT_DEVICE, "%s: its result could not be written", file);
    } else {
        if ((*rows)++ == 0)
            replay_table_begin(options);
        replay_table_row(&report);
    }
    return run->refusals + run->races + run->other_findings > 0 ? EXIT_ANSWER_NO : EXIT_FINE;
}

static int replay_file(const char *file, const replay_options *options, unsigned *rows)
{
    cmi_trace trace;
    char fault[512];
    if (cmi_trace_read(file, &trace, fault, sizeof fault) != 0)
        return tool_say_plain(EXIT_BAD_INPUT, fault);
    size_t steps = trace.step_count + options->repeat_last;
    replay_outcome *run = calloc(1, replay_outcome_bytes(steps));
    int code;
    if (run == NULL)
        code = tool_say(EXIT_DEVICE, "%s: no host memory for its result", file);
    else {
        const char *slash = strrchr(file, '/');
        tool_progress progress;
        tool_progress_begin(&progress, slash != NULL ? slash + 1 : file);
        code = measure(file, &trace, options, &progress, run, steps, rows);
    }
    free(run);
    cmi_trace_free(&trace);
    return code;
}

/* Exit status: the worst over all files. */
static int replay_files(char **files, int count, replay_options *options)
{
    unsigned rows = 0; /* of the table */
    int worst = EXIT_FINE;
    char *sentences = NULL;
    size_t bytes;
    options->closing = open_memstream(&sentences, &bytes);
    if (options->closing == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for what is to be said");
    for (int i = 0; i < count; i++) {
        int code = replay_file(files[i], options, &rows);
        worst = code > worst ? code : worst;
    }
    if (rows > 0)
        replay_table_end(options);
    if (fclose(options->closing) == 0 && sentences[0] != '\0')
        fprintf(options->json ? stderr : stdout, "%s%s", options->json ? "" : "\n", sentences);
    free(sentences);
    return worst;
}

int cmd_replay(int argc, char **argv)
{
    replay_options options = {.device = "sim:24GiB"};
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    char **files = calloc((size_t)argc, sizeof *files);
    int count = 0, code = -1;
    if (files == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for the list of files");
    while (code < 0 && tool_next_option(&words, &option, files, &count))
        code = read_option(&words, &option, &options);
    if (code < 0 && count == 0)
        code = tool_say(EXIT_BAD_INPUT, "replay needs a file; see 'cudamempool replay --help'");
    if (code < 0) {
        code = device_parse(options.device, &options.words);
        if (code == EXIT_FINE && options.find_capacity && !options.words.simulated)
            code = tool_say(EXIT_BAD_INPUT, "--find-capacity needs a simulated device");
        if (code == EXIT_FINE)
            code = pool_conf_check(&options.conf, &options.words);
        if (code == EXIT_FINE)
            code = -1;
    }
    if (code < 0)
        code = replay_files(files, count, &options);
    free(files);
    return code;
}
