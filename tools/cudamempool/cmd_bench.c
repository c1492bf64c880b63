/* `cudamempool bench`: how fast an allocator is. Owns the command line and the walk over workloads and traces. One thread. */
#include "bench_tool.h"
#include "tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: cudamempool bench [OPTION]... [TRACE]...\n"
    "Measure an allocator: times of operations, of single calls, host memory. Without TRACE all workloads are run;\n"
    "with it, those traces are replayed.\n"
    "\n"
    "  --workload NAME   only workloads whose name begins so; may be repeated\n"
    "  --allocator A     cudamempool, driver, driver-async, nothing, or the path of a shared library with another one;\n"
    "                    without it cudamempool\n"
    "  --device cuda:N   measure on a real device; without it on simulated ones as large as each workload needs\n"
    "  --order O         order of the simulated device: eager (without it), lazy, random:SEED\n"
    "  --capacity SIZE   simulated devices of this size, instead of what each workload needs\n"
    "  --count N         operations a round, instead of each workload's own number\n"
    "  --live N          at most so many live blocks\n"
    "  --rounds N        rounds, 1 to 5, of which the best counts; without it 5\n"
    "  --profile         one workload once, in this process and without timing single calls: for perf or valgrind\n"
    "  --json            JSON Lines: command, machine, date and build first, then one object a workload\n"
    "  --list            name the workloads and what an operation is in each\n"
    "  --help            this text\n"
    "\n"
    "Exit status: 0 measured; 2 wrong usage or unreadable input; 3 device or driver trouble.\n";

enum { MOST_NAMES = 32 };

typedef struct selection {
    const char *names[MOST_NAMES];
    unsigned count;
} selection;

static bool is_selected(const selection *chosen, const char *name)
{
    for (unsigned i = 0; i < chosen->count; i++)
        if (strncmp(name, chosen->names[i], strlen(chosen->names[i])) == 0)
            return true;
    return chosen->count == 0;
}

/* How many workloads are named; 0 for all. */
static unsigned selected(const selection *chosen)
{
    unsigned count = 0;
    for (size_t i = 0; i < bench_workload_count && chosen->count > 0; i++)
        count += is_selected(chosen, bench_workloads[i].name);
    return count;
}

static int select_name(selection *chosen, const char *name)
{
    const selection one = {{name}, 1};
    size_t i = 0;
    while (i < bench_workload_count && !is_selected(&one, bench_workloads[i].name))
        i++;
    if (i == bench_workload_count || chosen->count == MOST_NAMES)
        return tool_say(EXIT_BAD_INPUT, "no workload's name begins with '%s'; see 'cudamempool bench --list'", name);
    chosen->names[chosen->count++] = name;
    return -1;
}

/* Exit status, or -1 to go on. */
static int read_option(tool_words *words, const tool_option *option, bench_options *options, selection *chosen)
{
    const struct {
        const char *name;
        const char **text;
        uint64_t *number, most;
    } known[] = {
        {"--workload", NULL, NULL, 0},
        {"--allocator", &options->allocator, NULL, 0},
        {"--device", &options->device, NULL, 0},
        {"--order", &options->order, NULL, 0},
        {"--capacity", &options->capacity, NULL, 0},
        {"--count", NULL, &options->count, UINT64_C(1000000000)},
        {"--live", NULL, &options->live, UINT64_C(1000000000)},
        {"--rounds", NULL, &options->rounds, BENCH_ROUNDS},
    };
    if (strcmp(option->name, "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_FINE;
    }
    if (strcmp(option->name, "--list") == 0) {
        bench_print_list();
        return EXIT_FINE;
    }
    if ((strcmp(option->name, "--json") == 0 || strcmp(option->name, "--profile") == 0) && option->value == NULL) {
        *(option->name[2] == 'j' ? &options->json : &options->profile) = true;
        return -1;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(option->name, known[i].name) != 0)
            continue;
        const char *value = tool_option_value(words, option);
        if (value == NULL)
            return EXIT_BAD_INPUT;
        if (known[i].number != NULL)
            return tool_parse_count(option->name, value, known[i].most, known[i].number) ? -1 : EXIT_BAD_INPUT;
        if (known[i].text == NULL)
            return select_name(chosen, value);
        *known[i].text = value;
        return -1;
    }
    return tool_say(EXIT_BAD_INPUT, "bench knows no option '%s'; see 'cudamempool bench --help'", option->name);
}

static int bench_one(const bench_workload *workload, const cmi_trace *trace, const char *label, const bench_options *options)
{
    bench_outcome outcome = {.skipped = ""};
    int code = bench_measure(workload, trace, label, options, &outcome);
    if (code == EXIT_FINE && bench_print(workload, label, options, &outcome) != 0)
        code = tool_say(EXIT_DEVICE, "%s: its result could not be written", label);
    return code;
}

static int bench_trace(const bench_workload *workload, const char *file, const bench_options *options)
{
    cmi_trace trace;
    char fault[512], label[64];
    const char *slash = strrchr(file, '/'), *name = slash != NULL ? slash + 1 : file;
    if (cmi_trace_read(file, &trace, fault, sizeof fault) != 0)
        return tool_say_plain(EXIT_BAD_INPUT, fault);
    const char *suffix = strstr(name, ".cmtrace");
    snprintf(label, sizeof label, "%.*s", suffix != NULL ? (int)(suffix - name) : (int)strlen(name), name);
    int code = bench_one(workload, &trace, label, options);
    cmi_trace_free(&trace);
    return code;
}

/* Exit status: the worst of all. */
static int bench_all(char **files, int count, const bench_options *options, const selection *chosen)
{
    int worst = bench_print_header(options) == 0 ? EXIT_FINE : EXIT_DEVICE;
    for (size_t i = 0; i < bench_workload_count; i++) {
        const bench_workload *workload = &bench_workloads[i];
        bool replays = bench_is_replay(workload);
        if (replays != (count > 0) || (!replays && !is_selected(chosen, workload->name)))
            continue;
        for (int k = 0; k < (replays ? count : 1); k++) {
            int code = replays ? bench_trace(workload, files[k], options) : bench_one(workload, NULL, workload->name, options);
            worst = code > worst ? code : worst;
        }
    }
    return worst;
}

/* Before the words are taken apart. */
static void keep_command(bench_options *options, int argc, char **argv)
{
    size_t used = (size_t)snprintf(options->command, sizeof options->command, "cudamempool");
    for (int i = 0; i < argc && used < sizeof options->command; i++)
        used += (size_t)snprintf(options->command + used, sizeof options->command - used, " %s", argv[i]);
}

int cmd_bench(int argc, char **argv)
{
    bench_options options = {.order = "eager", .allocator = "cudamempool"};
    selection chosen = {.count = 0};
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    char **files = calloc((size_t)argc, sizeof *files);
    int count = 0, code = -1;
    if (files == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for the list of files");
    keep_command(&options, argc, argv);
    while (code < 0 && tool_next_option(&words, &option, files, &count))
        code = read_option(&words, &option, &options, &chosen);
    if (code < 0 && options.device != NULL && strncmp(options.device, "cuda:", 5) != 0)
        code = tool_say(EXIT_BAD_INPUT, "--device %s: bench takes cuda:N; simulated devices are made as large as each workload needs",
                        options.device);
    if (code < 0 && options.profile && count + (int)selected(&chosen) != 1)
        code = tool_say(EXIT_BAD_INPUT, "--profile takes one workload or one trace");
    if (code < 0)
        code = bench_all(files, count, &options, &chosen);
    free(files);
    return code;
}
