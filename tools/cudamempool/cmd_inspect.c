/*
 * `cudamempool inspect`: the layout of a memory picture in figures, or as a page to look at; of files, or of running processes, which are
 * asked for a snapshot. Owns the command line. One thread.
 */
#include "explain.h"
#include "inspect.h"
#include "tool.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "Usage: cudamempool inspect [OPTION]... FILE|PID...\n"
    "Show what device memory is used for: by this library's snapshots, PyTorch's, RMM logs, profiler traces, cmtrace, or a running "
    "process\n"
    "that is asked for a snapshot.\n"
    "\n"
    "  --json       one JSON object a file, on one line\n"
    "  --html OUT   of one file a page to look at, which needs no network; - is standard output\n"
    "  --top N      most lines of each list; without it 10\n"
    "  --wait S     seconds a process is given to write its snapshot; without it 10\n"
    "  --help       this text\n"
    "\n"
    "Exit status: 0 shown; 2 wrong usage or unreadable input; 3 a process cannot be asked, or the output could not be written.\n";

typedef struct command {
    inspect_options options;
    uint64_t wait_seconds;
    cmi_picture_totals sum; /* over all files */
} command;

/* ---- one picture -------------------------------------------------------------------------------------------------------------------- */

/* The last refusals of one device. */
static void show_refusals(const char *file, const cmi_picture *p, const cmi_oom_message *messages, size_t count, command *c,
                          uint32_t device, json *out)
{
    size_t of_device = 0, at = 0;
    for (size_t i = 0; i < count; i++)
        of_device += p->refusals[i].device == device;
    for (size_t i = 0; i < count; i++) {
        explain_answer answer;
        if (p->refusals[i].device != device || of_device - at++ > c->options.top)
            continue;
        explain_refusal(&messages[i], &answer);
        if (!c->options.json) {
            explain_print(file, &messages[i], &answer);
            continue;
        }
        json_begin_object(out, NULL);
        explain_put(out, &messages[i], &answer);
        json_end_object(out);
    }
}

static void add_to_sum(cmi_picture_totals *sum, const cmi_picture_totals *totals)
{
    sum->reserved_bytes += totals->reserved_bytes;
    sum->live_bytes += totals->live_bytes;
    sum->pending_bytes += totals->pending_bytes;
    sum->idle_bytes += totals->idle_bytes;
    sum->fixed_bytes += totals->fixed_bytes;
}

static int show_device(const char *file, const cmi_picture *p, const cmi_oom_message *messages, size_t count, command *c, uint32_t device,
                       json *out)
{
    inspect_report report;
    if (inspect_make(p, device, &report) != 0)
        return tool_say(EXIT_DEVICE, "%s: no host memory", file);
    add_to_sum(&c->sum, &report.totals);
    if (c->options.json) {
        json_begin_object(out, NULL);
        inspect_put(out, &report, &c->options);
        json_begin_array(out, "refusals");
        show_refusals(file, p, messages, count, c, device, out);
        json_end_array(out);
        json_end_object(out);
    } else {
        inspect_print(file, &report, &c->options);
        show_refusals(file, p, messages, count, c, device, out);
    }
    inspect_free(&report);
    return EXIT_FINE;
}

static int show_picture(const char *file, const cmi_picture *p, command *c)
{
    json out = {0};
    cmi_picture_totals totals;
    cmi_oom_message *messages;
    int code = EXIT_FINE;
    size_t count = explain_picture(p, &messages);
    if (count == SIZE_MAX)
        return tool_say(EXIT_DEVICE, "%s: no host memory", file);
    if (c->options.json) {
        cmi_picture_total(p, CMI_NONE, &totals);
        json_begin_object(&out, NULL);
        json_string(&out, "file", file);
        json_string(&out, "format", p->format);
        json_bool(&out, "has_state", p->has_state);
        json_integer(&out, "events", p->event_count);
        inspect_put_totals(&out, &totals);
        json_begin_array(&out, "devices");
    }
    for (uint32_t device = 0; code == EXIT_FINE && device < p->device_count; device++)
        code = show_device(file, p, messages, count, c, device, &out);
    if (!c->options.json && p->device_count == 0)
        printf("%s: %s, which holds nothing\n\n", file, p->format);
    if (c->options.json) {
        json_end_array(&out);
        json_end_object(&out);
        if (json_print(&out, stdout) != 0)
            code = tool_say(EXIT_DEVICE, "%s: its result could not be written", file);
    }
    free(messages);
    return code;
}

static int show_file(const char *name, const char *path, command *c)
{
    cmi_picture picture;
    char fault[512];
    if (cmi_picture_read(path, &picture, fault, sizeof fault) != 0)
        return tool_say_plain(EXIT_BAD_INPUT, fault);
    int code = c->options.html != NULL ? inspect_write_page(name, &picture, c->options.html) : show_picture(name, &picture, c);
    cmi_picture_free(&picture);
    return code;
}

/* ---- command line ------------------------------------------------------------------------------------------------------------------- */

/* A number is a process, unless there is a file of that name. */
static bool is_process(const char *name, uint64_t *pid)
{
    char *end;
    errno = 0;
    *pid = name[0] >= '1' && name[0] <= '9' ? strtoull(name, &end, 10) : 0;
    return *pid != 0 && *end == '\0' && errno == 0 && *pid <= INT_MAX && access(name, F_OK) != 0;
}

static int show(const char *name, command *c)
{
    uint64_t pid;
    char *path, title[64];
    if (!is_process(name, &pid))
        return show_file(name, name, c);
    int code = inspect_ask_process(pid, c->wait_seconds, &path);
    if (code != EXIT_FINE)
        return code;
    snprintf(title, sizeof title, "process %s", name);
    code = show_file(title, path, c);
    free(path);
    return code;
}

/* Exit status, or -1 to go on. */
static int read_option(tool_words *words, const tool_option *option, command *c)
{
    if (strcmp(option->name, "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_FINE;
    }
    if (strcmp(option->name, "--json") == 0 && option->value == NULL) {
        c->options.json = true;
        return -1;
    }
    bool top = strcmp(option->name, "--top") == 0, wait = strcmp(option->name, "--wait") == 0;
    if (!top && !wait && strcmp(option->name, "--html") != 0)
        return tool_say(EXIT_BAD_INPUT, "inspect knows no option '%s'; see 'cudamempool inspect --help'", option->name);
    const char *value = tool_option_value(words, option);
    if (value == NULL)
        return EXIT_BAD_INPUT;
    if (top || wait)
        return tool_parse_count(option->name, value, top ? 1000000 : 3600, top ? &c->options.top : &c->wait_seconds) ? -1 : EXIT_BAD_INPUT;
    c->options.html = value;
    return -1;
}

int cmd_inspect(int argc, char **argv)
{
    command c = {.options = {.top = 10}, .wait_seconds = 10};
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    char **files = calloc((size_t)argc, sizeof *files);
    int count = 0, code = -1;
    if (files == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for the list of files");
    while (code < 0 && tool_next_option(&words, &option, files, &count))
        code = read_option(&words, &option, &c);
    if (code < 0 && count == 0)
        code = tool_say(EXIT_BAD_INPUT, "inspect needs a file or a process; see 'cudamempool inspect --help'");
    if (code < 0 && c.options.html != NULL && (count != 1 || c.options.json))
        code = tool_say(EXIT_BAD_INPUT, "--html makes a page of one file, without --json");
    if (code < 0) {
        int shown = 0;
        code = EXIT_FINE;
        for (int i = 0; i < count; i++) {
            int of_file = show(files[i], &c);
            shown += of_file == EXIT_FINE;
            code = of_file > code ? of_file : code;
        }
        if (shown > 1 && !c.options.json)
            inspect_print_sum((size_t)shown, &c.sum);
    }
    if (fflush(stdout) != 0)
        code = tool_say(EXIT_DEVICE, "the output could not be written");
    free(files);
    return code;
}
