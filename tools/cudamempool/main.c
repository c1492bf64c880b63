/* The command-line tool: finds the subcommand. No state. */
#include "tool.h"
#include <cudamempool/cudamempool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"bench", cmd_bench, "measure the pool, or another allocator, on made-up and recorded work"},
    {"convert", cmd_convert, "write a memory snapshot, log or trace in another format"},
    {"explain", cmd_explain, "say why a program ran out of memory, from its message"},
    {"inspect", cmd_inspect, "show what device memory is used for, by a snapshot or a running process"},
    {"pause", cmd_pause, "have a running program give its device memory back for a while"},
    {"replay", cmd_replay, "run recorded allocation traces through the pool"},
    {"resume", cmd_resume, "let a paused program have its device memory again"},
    {"run", cmd_run, "start a program with its device memory served by the pool"},
    {"scenario", cmd_scenario, "run scripts that model reports of allocator trouble"},
    {"serve-metrics", cmd_serve_metrics, "serve the figures of running processes to Prometheus"},
    {"top", cmd_top, "watch the pools of running processes"},
};

static int print_help(FILE *file)
{
    fputs("Usage: cudamempool COMMAND [OPTION]... [FILE]...\n\nCommands:\n", file);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(file, "  %-13s %s\n", commands[i].name, commands[i].help);
    fputs("\n'cudamempool COMMAND --help' says more. 'cudamempool --version' names the version of the library.\n", file);
    return EXIT_FINE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_BAD_INPUT;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_help(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("cudamempool %s\n", cmpool_version());
        return EXIT_FINE;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return tool_say(EXIT_BAD_INPUT, "there is no command '%s'; see 'cudamempool --help'", argv[1]);
}
