/* What the subcommands share: exit codes, messages, option words, processes for runs. */
#ifndef TOOL_H
#define TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit status of every command; the worst over all files is the command's. */
enum {
    EXIT_FINE = 0,  /* done and fine */
    EXIT_ANSWER_NO, /* done, and the answer is no: a refusal, a race, a finding */
    EXIT_BAD_INPUT, /* wrong usage or unreadable input */
    EXIT_DEVICE,    /* device or driver trouble */
};

/* "cudamempool: ..." and a newline on stderr; returns status. */
int tool_say(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line that already names its file. */
int tool_say_plain(int status, const char *line);

/* Subcommands: argv[0] is the subcommand's name. */
int cmd_bench(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_pause(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_resume(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_scenario(int argc, char **argv);
int cmd_serve_metrics(int argc, char **argv);
int cmd_top(int argc, char **argv);

/* ---- command line (words.c) --------------------------------------------------------------------------------------------------- */

typedef struct tool_words {
    char **argv;
    int argc, at;
    bool only_files; /* after "--" */
} tool_words;

typedef struct tool_option {
    const char *name;  /* "--json" */
    const char *value; /* after '=', or NULL */
} tool_option;
/* The next option, true; file operands on the way are collected in files. false when the words have ended. */
bool tool_next_option(tool_words *words, tool_option *option, char **files, int *file_count);
/* The value of an option: after '=' or the next word; NULL (and a message) when there is none. */
const char *tool_option_value(tool_words *words, const tool_option *option);
/* A whole number within bounds; false with a message. */
bool tool_parse_count(const char *option, const char *text, uint64_t most, uint64_t *value);

/* ---- a process for each run (worker.c) ------------------------------------------------------------------------------------------ */

/*
 * Run work(argument, result) in a child process, so that each run finds library and device as a fresh program does. The result is memory
 * that both share, zeroed before. Returns work's own exit status, or EXIT_DEVICE with a message when the child died or could not start.
 */
int tool_run_apart(const char *what, int (*work)(void *argument, void *result), void *argument, void *result, size_t result_bytes);

/* ---- progress (progress.c) -------------------------------------------------------------------------------------------------------- */

/* A bar on stderr, drawn only when that is a terminal. */
typedef struct tool_progress {
    const char *label;
    const char *stage;
    bool shown;
    int drawn_percent;
} tool_progress;
void tool_progress_begin(tool_progress *progress, const char *label);
void tool_progress_draw(void *progress, size_t done, size_t total); /* fits cmi_replay_config.progress */
void tool_progress_end(tool_progress *progress);

#endif
