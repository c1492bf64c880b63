/*
 * cudamempool run: starts a program with the preload library in front of its driver, and Python with the hook for PyTorch. Owns nothing;
 * the process becomes the program, so that signals, terminal and exit status are the program's own.
 */
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libcudamempool_preload.so"

static const char usage[] = "Usage: cudamempool run [--conf C] [--report FILE] [--trace FILE] [--] PROGRAM [ARGUMENT]...\n"
                            "\n"
                            "Starts PROGRAM with its device memory served by the pool. cudaFree no longer waits for the device.\n"
                            "\n"
                            "  --conf C       options of the pools, \"key:value,key:value\", after those of CUDAMEMPOOL_CONF\n"
                            "  --report FILE  what the program used, as JSON, one line for each process that had a driver\n"
                            "  --trace FILE   record what the program asks for, for cudamempool replay; %p is the process, %d the device\n"
                            "  --help         this text\n";

/* The library beside the tool, as built and as installed. */
static bool find_library(char *path, size_t room)
{
    static const char *const places[] = {"../lib/" LIBRARY, "../" TOOL_LIBDIR "/" LIBRARY, LIBRARY};
    char self[PATH_MAX], candidate[2 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return false;
    self[length] = '\0';
    char *slash = strrchr(self, '/');
    *(slash != NULL ? slash + 1 : self) = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char whole[PATH_MAX];
        snprintf(candidate, sizeof candidate, "%s%s", self, places[i]);
        if (realpath(candidate, whole) != NULL && strlen(whole) < room) {
            strcpy(path, whole);
            return true;
        }
    }
    return false;
}

/* Put words behind what a variable has already. */
static bool append(const char *variable, const char *separator, const char *words)
{
    const char *old = getenv(variable);
    if (old == NULL || old[0] == '\0')
        return setenv(variable, words, 1) == 0;
    char *both = malloc(strlen(old) + strlen(separator) + strlen(words) + 1);
    if (both == NULL)
        return false;
    sprintf(both, "%s%s%s", old, separator, words);
    bool done = setenv(variable, both, 1) == 0;
    free(both);
    return done;
}

static bool record_into(const char *file)
{
    char setting[PATH_MAX + 8];
    snprintf(setting, sizeof setting, "trace:%s", file);
    return strchr(file, ',') == NULL && append("CUDAMEMPOOL_CONF", ",", setting);
}

/* Python programs that import PyTorch get its allocator exchanged, by a folder that Python looks into at its start; it comes before all
 * others so that what it hides is still there behind it. library: the preload library, beside which the rest lies. */
static bool prepare_python(const char *library)
{
    char beside[PATH_MAX + 64];
    const char *old = getenv("PYTHONPATH"), *slash = strrchr(library, '/');
    int folder = (int)(slash - library);
    snprintf(beside, sizeof beside, "%.*s/libcudamempool.so", folder, library);
    if (setenv("CUDAMEMPOOL_LIBRARY", beside, 0) != 0)
        return false;
    snprintf(beside, sizeof beside, "%.*s/cudamempool/python/startup", folder, library);
    if (access(beside, R_OK) != 0)
        return true; /* not installed: the preload library serves */
    if (old == NULL || old[0] == '\0')
        return setenv("PYTHONPATH", beside, 1) == 0;
    char *both = malloc(strlen(beside) + strlen(old) + 2);
    if (both == NULL)
        return false;
    sprintf(both, "%s:%s", beside, old);
    bool done = setenv("PYTHONPATH", both, 1) == 0;
    free(both);
    return done;
}

/* Empty the file now, so that a bad name is told before the program runs; its whole path, since programs change folders. */
static int begin_report(const char *name)
{
    char whole[PATH_MAX];
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0 || realpath(name, whole) == NULL)
        return tool_say(EXIT_BAD_INPUT, "%s: %s", name, strerror(errno));
    close(file);
    return setenv("CUDAMEMPOOL_REPORT", whole, 1) == 0 ? EXIT_FINE : tool_say(EXIT_DEVICE, "no host memory");
}

static int start(char **program)
{
    char library[PATH_MAX];
    if (!find_library(library, sizeof library))
        return tool_say(EXIT_DEVICE, "%s is not beside this program", LIBRARY);
    if (strpbrk(library, " :") != NULL)
        return tool_say(EXIT_DEVICE, "LD_PRELOAD cannot name %s: it has a space or a colon in its path", library);
    if (!prepare_python(library) || !append("LD_PRELOAD", ":", library)) /* last, since sanitizers want to be first */
        return tool_say(EXIT_DEVICE, "no host memory");
    execvp(program[0], program);
    return tool_say(EXIT_BAD_INPUT, "%s: %s", program[0], strerror(errno));
}

int cmd_run(int argc, char **argv)
{
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) { /* options end where the program begins: what follows is its own */
        tool_words words = {.argv = argv, .argc = argc, .at = at};
        tool_option option;
        char *none[1];
        int count = 0;
        if (strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        if (!tool_next_option(&words, &option, none, &count))
            break;
        if (strcmp(option.name, "--help") == 0 || strcmp(option.name, "-h") == 0)
            return fputs(usage, stdout) < 0 ? EXIT_DEVICE : EXIT_FINE;
        bool conf = strcmp(option.name, "--conf") == 0;
        bool trace = strcmp(option.name, "--trace") == 0;
        if (!conf && !trace && strcmp(option.name, "--report") != 0)
            return tool_say(EXIT_BAD_INPUT, "there is no option '%s'; see 'cudamempool run --help'", option.name);
        const char *value = tool_option_value(&words, &option);
        if (value == NULL)
            return EXIT_BAD_INPUT;
        if (conf && !append("CUDAMEMPOOL_CONF", ",", value))
            return tool_say(EXIT_DEVICE, "no host memory");
        if (trace && !record_into(value))
            return tool_say(EXIT_BAD_INPUT, "the name of a trace has no commas: '%s'", value);
        if (!conf && !trace && begin_report(value) != EXIT_FINE)
            return EXIT_BAD_INPUT;
        at = words.at - 1;
    }
    if (at >= argc)
        return tool_say(EXIT_BAD_INPUT, "run needs a program; see 'cudamempool run --help'");
    return start(argv + at);
}
