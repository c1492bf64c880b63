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
    "Without FILE, or where it is -, standard input is read. Known are the messages of PyTorch (1.0 and newer, with cudaMallocAsync too),\n"
    "RMM, TensorFlow, JAX, CuPy and PaddlePaddle.\n"
    "\n"
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

/* ---- output ------------------------------------------------------------------------------------------------------------------------- */

static void put_figure(json *out, const char *key, uint64_t value)
{
    if (value == CMI_FIGURE_UNKNOWN)
        json_null(out, key);
    else
        json_integer(out, key, value);
}

static void put_lines(json *out, const char *key, const explain_lines *lines)
{
    json_begin_array(out, key);
    for (size_t i = 0; i < lines->count; i++)
        json_string(out, NULL, lines->text[i]);
    json_end_array(out);
}

static int print_json(const char *file, const cmi_oom_message *message, const explain_answer *answer)
{
    const cmi_shortage *figures = &message->figures;
    json out = {0};
    json_begin_object(&out, NULL);
    json_string(&out, "file", file);
    put_figure(&out, "line", message->line != 0 ? message->line : CMI_FIGURE_UNKNOWN);
    json_string(&out, "format", cmi_oom_format_name(message->format));
    put_figure(&out, "device", message->device >= 0 ? (uint64_t)message->device : CMI_FIGURE_UNKNOWN);
    json_string(&out, "verdict", cmi_verdict_key(answer->verdict));
    json_string(&out, "sentence", cmi_verdict_sentence(answer->verdict));
    put_figure(&out, "request_bytes", figures->request);
    put_figure(&out, "live_bytes", figures->live);
    put_figure(&out, "idle_bytes", figures->idle);
    put_figure(&out, "driver_free_bytes", figures->driver_free);
    put_figure(&out, "total_bytes", figures->total);
    put_figure(&out, "outside_bytes", figures->outside);
    put_figure(&out, "private_pool_bytes", figures->private_live);
    put_figure(&out, "short_by_bytes", answer->short_by);
    json_integer(&out, "doubt_bytes", figures->doubt);
    put_lines(&out, "advice", &answer->helps);
    put_lines(&out, "does_not_help", &answer->useless);
    put_lines(&out, "missing", &answer->missing);
    json_end_object(&out);
    return json_print(&out, stdout);
}

static void print_figure(const char *what, uint64_t bytes)
{
    char text[32];
    if (bytes != CMI_FIGURE_UNKNOWN)
        printf("  %-22s %12s\n", what, explain_size(bytes, text));
}

static void print_lines(const char *title, const explain_lines *lines)
{
    if (lines->count > 0)
        printf("  %s\n", title);
    for (size_t i = 0; i < lines->count; i++)
        printf("  - %s\n", lines->text[i]);
}

static void print_answer(const char *file, const cmi_oom_message *message, const explain_answer *answer)
{
    const cmi_shortage *figures = &message->figures;
    char device[32] = "", text[32];
    if (message->device >= 0)
        snprintf(device, sizeof device, ", GPU %d", message->device);
    printf("%s:%zu: %s%s: %s\n", file, message->line, cmi_oom_format_name(message->format), device, cmi_verdict_key(answer->verdict));
    printf("  %s%s.\n", answer->verdict == CMI_VERDICT_UNCLEAR ? "cannot tell: " : "", cmi_verdict_sentence(answer->verdict));
    print_figure("asked for", figures->request);
    print_figure("live", figures->live);
    print_figure("in private pools", figures->private_live);
    print_figure("idle in the allocator", figures->idle);
    print_figure("free on the device", figures->driver_free);
    print_figure("held by others, about", figures->outside);
    print_figure("the device", figures->total);
    if (answer->short_by != CMI_FIGURE_UNKNOWN && answer->short_by > 0)
        printf("  %-22s %12s%s\n", "short by", explain_size(answer->short_by, text),
               figures->doubt > 0 ? ", as far as the message rounds" : "");
    print_lines("missing:", &answer->missing);
    print_lines("what helps:", &answer->helps);
    print_lines("what does not:", &answer->useless);
    printf("\n");
}

/* ---- command line ------------------------------------------------------------------------------------------------------------------- */

static int explain_text(const char *file, const char *text, size_t bytes, bool as_json)
{
    cmi_oom_message *messages;
    int code = EXIT_FINE;
    size_t count = cmi_oom_messages_find(text, bytes, &messages);
    if (count == SIZE_MAX)
        return tool_say(EXIT_DEVICE, "%s: no host memory", file);
    for (size_t i = 0; i < count; i++) {
        explain_answer answer;
        explain_refusal(&messages[i], &answer);
        if (answer.verdict == CMI_VERDICT_UNCLEAR)
            code = EXIT_ANSWER_NO;
        if (!as_json)
            print_answer(file, &messages[i], &answer);
        else if (print_json(file, &messages[i], &answer) != 0)
            code = tool_say(EXIT_DEVICE, "%s: its result could not be written", file);
    }
    free(messages);
    if (count > 0)
        return code;
    tool_say(EXIT_FINE, "%s: there is no out-of-memory message in it", file);
    if (as_json) {
        cmi_oom_message none = {.format = CMI_OOM_BARE, .device = -1};
        explain_answer answer;
        cmi_shortage_init(&none.figures);
        explain_refusal(&none, &answer);
        if (print_json(file, &none, &answer) != 0)
            return tool_say(EXIT_DEVICE, "%s: its result could not be written", file);
    }
    return EXIT_ANSWER_NO;
}

static int explain_file(const char *file, bool as_json)
{
    char *text;
    size_t bytes;
    int code = read_all(file, &text, &bytes);
    if (code == EXIT_FINE)
        code = explain_text(file, text, bytes, as_json);
    free(text);
    return code;
}

int cmd_explain(int argc, char **argv)
{
    tool_words words = {argv, argc, 1, false};
    tool_option option;
    bool as_json = false;
    int count = 0, worst = EXIT_FINE;
    char **files = calloc((size_t)argc + 1, sizeof *files);
    if (files == NULL)
        return tool_say(EXIT_DEVICE, "no host memory");
    while (tool_next_option(&words, &option, files, &count)) {
        if (strcmp(option.name, "--help") == 0) {
            fputs(usage, stdout);
            free(files);
            return EXIT_FINE;
        }
        if (strcmp(option.name, "--json") != 0 || option.value != NULL) {
            free(files);
            return tool_say(EXIT_BAD_INPUT, "explain knows no option '%s'; see 'cudamempool explain --help'", option.name);
        }
        as_json = true;
    }
    if (count == 0)
        files[count++] = (char[]){"-"};
    for (int i = 0; i < count; i++) {
        int code = explain_file(files[i], as_json);
        worst = code > worst ? code : worst;
    }
    free(files);
    return worst;
}
