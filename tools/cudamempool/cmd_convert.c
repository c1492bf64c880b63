/* `cudamempool convert`: any memory picture or trace in another format. Owns the command line and the output file. One thread. */
#include "tool.h"
#include "trace/convert.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static const char usage[] =
    "Usage: cudamempool convert [OPTION]... FILE -o OUT\n"
    "Read a memory snapshot, log or trace of any known format, and write it in another.\n"
    "\n"
    "  --to FORMAT       cmtrace, pytorch (pickle), json (the same for PyTorch's viewer) or perfetto (Chrome trace);\n"
    "                    without it as OUT's name ends: .cmtrace, .pickle or .pkl, .json, .perfetto-trace.json\n"
    "  -o OUT            file to write, compressed when its name ends in .gz; - is standard output\n"
    "  --gpu N           for cmtrace: the GPU to take; without it the one with the most events\n"
    "  --help            this text\n"
    "\n"
    "Exit status: 0 written; 2 wrong usage or unreadable input; 3 the output could not be written.\n";

typedef enum target { TO_UNKNOWN, TO_CMTRACE, TO_PYTORCH, TO_JSON, TO_PERFETTO } target;

static const struct {
    const char *text;
    target to;
} names[] = {{"cmtrace", TO_CMTRACE}, {"pytorch", TO_PYTORCH}, {"json", TO_JSON}, {"perfetto", TO_PERFETTO}},
  endings[] = {{".perfetto-trace.json", TO_PERFETTO},
               {".perfetto-trace", TO_PERFETTO},
               {".cmtrace", TO_CMTRACE},
               {".pickle", TO_PYTORCH},
               {".pkl", TO_PYTORCH},
               {".json", TO_JSON}};

typedef struct convert_options {
    target to;
    const char *out;
    bool one_gpu;
    uint64_t gpu;
} convert_options;

/* ---- command line ------------------------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, size_t length, const char *ending)
{
    size_t bytes = strlen(ending);
    return length > bytes && memcmp(name + length - bytes, ending, bytes) == 0;
}

static target target_of_name(const char *name)
{
    size_t length = strlen(name);
    if (ends_with(name, length, ".gz"))
        length -= 3;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, length, endings[i].text))
            return endings[i].to;
    return TO_UNKNOWN;
}

/* Exit status, or -1 to go on. */
static int read_option(tool_words *words, const tool_option *option, convert_options *options)
{
    if (strcmp(option->name, "--help") == 0) {
        fputs(usage, stdout);
        return EXIT_FINE;
    }
    bool to = strcmp(option->name, "--to") == 0, gpu = strcmp(option->name, "--gpu") == 0;
    if (!to && !gpu && strcmp(option->name, "-o") != 0 && strcmp(option->name, "--output") != 0)
        return tool_say(EXIT_BAD_INPUT, "convert knows no option '%s'; see 'cudamempool convert --help'", option->name);
    const char *value = tool_option_value(words, option);
    if (value == NULL)
        return EXIT_BAD_INPUT;
    if (gpu) {
        options->one_gpu = true;
        return tool_parse_count("--gpu", value, UINT32_MAX, &options->gpu) ? -1 : EXIT_BAD_INPUT;
    }
    if (!to) {
        options->out = value;
        return -1;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(value, names[i].text) == 0)
            options->to = names[i].to;
    return options->to != TO_UNKNOWN ? -1 : tool_say(EXIT_BAD_INPUT, "--to: '%s' is none of cmtrace, pytorch, json and perfetto", value);
}

/* ---- output ------------------------------------------------------------------------------------------------------------------------- */

static int write_out(void *user, const void *data, size_t bytes)
{
    return bytes == 0 || gzwrite(user, data, (unsigned)bytes) == (int)bytes ? 0 : -1;
}

static gzFile open_out(const char *name)
{
    bool packed = ends_with(name, strlen(name), ".gz");
    if (strcmp(name, "-") != 0)
        return gzopen(name, packed ? "wbe" : "wbeT");
    int copy = dup(STDOUT_FILENO); /* so that closing it leaves standard output alone */
    gzFile out = copy >= 0 ? gzdopen(copy, "wbT") : NULL;
    if (out == NULL && copy >= 0)
        close(copy);
    return out;
}

/* Exit status: what is written as a trace of one device is made before the output file is touched. */
static int make_trace(const char *file, const convert_options *options, const cmi_picture *picture, cmi_trace *trace)
{
    char fault[512];
    uint32_t device = options->one_gpu ? CMI_NONE : cmi_picture_busiest_device(picture);
    for (uint32_t i = 0; options->one_gpu && i < picture->device_count; i++)
        if (picture->devices[i].ordinal == options->gpu)
            device = i;
    if (options->one_gpu && device == CMI_NONE)
        return tool_say(EXIT_BAD_INPUT, "%s: it holds nothing of GPU %llu", file, (unsigned long long)options->gpu);
    if (cmi_trace_from_picture(file, picture, device, trace, fault, sizeof fault) != 0)
        return tool_say_plain(EXIT_BAD_INPUT, fault);
    if (!options->one_gpu && picture->device_count > 1)
        tool_say(0, "%s: of %zu GPUs, GPU %u is taken, which has the most events (see --gpu)", file, picture->device_count,
                 (unsigned)picture->devices[device].ordinal);
    return EXIT_FINE;
}

static int write_file(const char *file, const convert_options *options, cmi_picture *picture, const cmi_trace *trace)
{
    bool pytorch = options->to == TO_PYTORCH || options->to == TO_JSON;
    if (pytorch && !picture->has_state && cmi_picture_make_state(picture) != 0)
        return tool_say(EXIT_DEVICE, "%s: no host memory to convert it", file);
    errno = 0;
    gzFile out = open_out(options->out);
    if (out == NULL)
        return tool_say(EXIT_DEVICE, "%s: %s", options->out, errno != 0 ? strerror(errno) : "no host memory to write it");
    gzbuffer(out, 1 << 17);
    int result = options->to == TO_CMTRACE    ? cmi_write_cmtrace(trace, write_out, out)
                 : options->to == TO_PERFETTO ? cmi_write_perfetto(picture, write_out, out)
                                              : cmi_write_pytorch(picture, options->to == TO_JSON, write_out, out);
    int closed = gzclose(out);
    if (result != 0 || closed != Z_OK)
        return tool_say(EXIT_DEVICE, "%s: it could not be written whole", options->out);
    return EXIT_FINE;
}

static int convert_file(const char *file, const convert_options *options)
{
    cmi_picture picture;
    cmi_trace trace = {0};
    char fault[512];
    if (cmi_picture_read(file, &picture, fault, sizeof fault) != 0)
        return tool_say_plain(EXIT_BAD_INPUT, fault);
    int code = options->to == TO_CMTRACE ? make_trace(file, options, &picture, &trace) : EXIT_FINE;
    if (code == EXIT_FINE)
        code = write_file(file, options, &picture, &trace);
    cmi_trace_free(&trace);
    cmi_picture_free(&picture);
    return code;
}

int cmd_convert(int argc, char **argv)
{
    convert_options options = {0};
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    char **files = calloc((size_t)argc, sizeof *files);
    int count = 0, code = -1;
    if (files == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for the list of files");
    while (code < 0 && tool_next_option(&words, &option, files, &count))
        code = read_option(&words, &option, &options);
    if (code < 0 && count != 1)
        code = tool_say(EXIT_BAD_INPUT, "convert needs one file; see 'cudamempool convert --help'");
    if (code < 0 && options.out == NULL)
        code = tool_say(EXIT_BAD_INPUT, "convert needs -o OUT; see 'cudamempool convert --help'");
    if (code < 0 && options.to == TO_UNKNOWN && (options.to = target_of_name(options.out)) == TO_UNKNOWN)
        code = tool_say(EXIT_BAD_INPUT, "the name of %s says no format; --to does", options.out);
    if (code < 0)
        code = convert_file(files[0], &options);
    free(files);
    return code;
}
