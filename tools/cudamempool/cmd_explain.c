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
    "RMM, TensorFlow, JAX, CuPy and PaddlePaddle.\n"
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
    json_string(&out, "format", message->from_snapshot ? "snapshot" : cmi_oom_format_name(message->format));
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
    if (message->from_snapshot)
        printf("%s: snapshot%s: %s\n", file, device, cmi_verdict_key(answer->verdict));
    else
        printf("%s:%zu: %s%s: %s\n", file, message->line, cmi_oom_format_name(message->format), device, cmi_verdict_key(answer->verdict));
    printf("  %s%s.\n", answer->verdict == CMI_VERDICT_UNCLEAR ? "cannot tell: " : "", cmi_verdict_sentence(answer->verdict));
    print_figure("asked for", figures->request);
    print_figure("live", figures->live);
    print_figure("in private pools", figures->private_live);
    print_figure("idle in the allocator", figures->idle);
    print_figure("of that, pending", figures->pending);
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

typedef struct explain_options {
    bool json;
    const char *snapshot;
    cmi_picture picture; /* of the snapshot; empty without one */
} explain_options;

static int answer_message(const char *file, cmi_oom_message *message, const explain_options *options)
{
    explain_answer answer;
    if (options->snapshot != NULL)
        explain_with_picture(&options->picture, message);
    explain_refusal(message, &answer);
    if (!options->json)
        print_answer(file, message, &answer);
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
    cmi_oom_message none = {.format = CMI_OOM_BARE, .device = -1, .from_snapshot = is_picture};
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
