/*
 * `cudamempool explain`: which case an out-of-memory message is, and what helps. Owns the command line, reading of the text and the output.
 * One thread.
 */
#include "explain.h"
#include "json.h"
#include "tool.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: cudamempool explain [OPTION]... [FILE]...\n"
    "Find out-of-memory messages in a log or a pasted text and say which case each is, what helps in it and what does not.\n"
    "Without FILE, or where it is -, standard input is read. FILE may also be a memory snapshot: its refusals are explained. Known are the "
    "messages of PyTorch (1.0 and newer, with cudaMallocAsync too),\n"
    "RMM, TensorFlow, JAX, CuPy and PaddlePaddle, and the reports and exceptions of libcudamempool itself.\n"
    "\n"
    "  --snapshot S a memory snapshot that tells what a message does not say\n"
    "  --json       one JSON object a message, on one line\n"
    "  --help       this text\n"
    "\n"
    "Exit status: 0 each message is explained; 1 one is unclear, or there is none; 2 wrong usage or unreadable input.\n";

#define TEXT_LIMIT ((size_t)1 << 30) /* longer logs are cut by whoever pastes them */

/* ---- the text ----------------------------------------------------------------------------------------------------------------------- */

/* Whole content of a file in malloc'ed memory; EXIT_FINE or a status with a message. */
static int read_all(const char *path, char **text, size_t *bytes)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    size_t room = 0, used = 0;
    char *all = NULL;
    *text = NULL;
    *bytes = 0;
    if (file == NULL)
        return tool_say(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
    int code = EXIT_FINE;
    do {
        if (used == room) {
            char *larger = room < TEXT_LIMIT ? realloc(all, room = 2 * room + 65536) : NULL;
            if (larger == NULL) {
                code = tool_say(EXIT_BAD_INPUT, "%s: %s", path, room < TEXT_LIMIT ? strerror(ENOMEM) : "longer than 1 GiB");
                break;
            }
            all = larger;
        }
        used += fread(all + used, 1, room - used, file);
    } while (!feof(file) && !ferror(file));
    if (code == EXIT_FINE && ferror(file))
        code = tool_say(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
    if (!standard)
        fclose(file);
    *text = all;
    *bytes = used;
    return code;
}

/* ---- command line ------------------------------------------------------------------------------------------------------------------- */

typedef struct explain_options {
    bool json;
    const char *snapshot;
    cmi_picture picture; /* of the snapshot; empty without one */
} explain_options;

static int print_json(const char *file, const cmi_oom_message *message, const explain_answer *answer)
{
    json out = {0};
    json_begin_object(&out, NULL);
    json_string(&out, "file", file);
    explain_put(&out, message, answer);
    json_end_object(&out);
    return json_print(&out, stdout);
}

static int answer_message(const char *file, cmi_oom_message *message, const explain_options *options)
{
    explain_answer answer;
    if (options->snapshot != NULL)
        explain_with_picture(&options->picture, message);
    explain_refusal(message, &answer);
    if (!options->json)
        explain_print(file, message, &answer);
    else if (print_json(file, message, &answer) != 0)
        return tool_say(EXIT_DEVICE, "%s: its result could not be written", file);
    return answer.verdict == CMI_VERDICT_UNCLEAR ? EXIT_ANSWER_NO : EXIT_FINE;
}

static int explain_bytes(const char *file, const char *text, size_t bytes, const explain_options *options)
{
    cmi_picture picture = {0};
    char fault[256];
    cmi_oom_message *messages;
    int worst = EXIT_FINE;
    bool is_picture = cmi_picture_read_memory(file, text, bytes, &picture, fault, sizeof fault) == 0;
    size_t count = is_picture ? explain_picture(&picture, &messages) : cmi_oom_messages_find(text, bytes, &messages);
    cmi_picture_free(&picture);
    if (count == SIZE_MAX)
        return tool_say(EXIT_DEVICE, "%s: no host memory", file);
    for (size_t i = 0; i < count; i++) {
        int code = answer_message(file, &messages[i], options);
        worst = code > worst ? code : worst;
    }
    free(messages);
    if (count > 0)
        return worst;
    tool_say(EXIT_FINE, "%s: there is no %s in it", file, is_picture ? "refusal" : "out-of-memory message");
    cmi_oom_message none = {.format = CMI_OOM_BARE, .device = -1, .from_snapshot = is_picture, .short_by = CMI_FIGURE_UNKNOWN};
    cmi_shortage_init(&none.figures);
    worst = options->json ? answer_message(file, &none, options) : EXIT_ANSWER_NO;
    return worst;
}

static int explain_file(const char *file, const explain_options *options)
{
    char *text;
    size_t bytes;
    int code = read_all(file, &text, &bytes);
    if (code == EXIT_FINE)
        code = explain_bytes(file, text, bytes, options);
    free(text);
    return code;
}

/* Exit status, or -1 to go on. */
static int read_option(tool_words *words, const tool_option *option, explain_options *options)
{
    if (strcmp(option->name, "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_FINE;
    }
    if (strcmp(option->name, "--json") == 0 && option->value == NULL) {
        options->json = true;
    } else if (strcmp(option->name, "--snapshot") == 0) {
        options->snapshot = tool_option_value(words, option);
        if (options->snapshot == NULL)
            return EXIT_BAD_INPUT;
    } else {
        return tool_say(EXIT_BAD_INPUT, "explain knows no option '%s'; see 'cudamempool explain --help'", option->name);
    }
    return -1;
}

int cmd_explain(int argc, char **argv)
{
    static char standard_input[] = "-";
    tool_words words = {argv, argc, 1, false};
    tool_option option;
    explain_options options = {0};
    int count = 0, code = -1;
    char fault[512];
    char **files = calloc((size_t)argc + 1, sizeof *files);
    if (files == NULL)
        return tool_say(EXIT_DEVICE, "no host memory");
    while (code < 0 && tool_next_option(&words, &option, files, &count))
        code = read_option(&words, &option, &options);
    if (code < 0 && options.snapshot != NULL && cmi_picture_read(options.snapshot, &options.picture, fault, sizeof fault) != 0)
        code = tool_say_plain(EXIT_BAD_INPUT, fault);
    if (code < 0) {
        code = EXIT_FINE;
        if (count == 0)
            files[count++] = standard_input;
        for (int i = 0; i < count; i++) {
            int of_file = explain_file(files[i], &options);
            code = of_file > code ? of_file : code;
        }
    }
    cmi_picture_free(&options.picture);
    free(files);
    return code;
}
