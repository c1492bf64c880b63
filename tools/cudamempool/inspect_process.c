/*
 * Owns the way to a running process: finds out from /proc which signal it listens to for snapshots (option snapshot_signal) and into which
 * file it writes them, sends the signal and waits for the file. Nothing is sent that the process does not catch. One thread.
 */
#include "base/options.h"
#include "inspect.h"
#include "tool.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { POLL_MS = 50, MOST_TEXT = 1 << 24 };

static const char how[] = "start it with CUDAMEMPOOL_CONF=snapshot_signal:12 in its environment (see 'man cudamempool-inspect')";

/* A file of /proc/PID, which has no size beforehand, in malloc'ed memory with a zero behind it; NULL with errno. */
static char *read_proc(uint64_t pid, const char *name, size_t *bytes)
{
    char path[64], *text = NULL;
    size_t used = 0, room = 0;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/%s", pid, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    do {
        if (room - used < 4096) {
            char *larger = room < MOST_TEXT ? realloc(text, room += 65536) : NULL;
            if (larger == NULL)
                break;
            text = larger;
        }
        used += fread(text + used, 1, room - used - 1, file);
    } while (!feof(file) && !ferror(file));
    fclose(file);
    if (text != NULL)
        text[used] = '\0';
    *bytes = used;
    return text;
}

/* The process' number where it lives, which is another one in a container of its own, and the signals it catches. */
static bool read_status(uint64_t pid, uint64_t *own_pid, uint64_t *caught)
{
    size_t bytes;
    char *text = read_proc(pid, "status", &bytes);
    const char *line = text != NULL ? strstr(text, "\nNSpid:") : NULL, *signals = text != NULL ? strstr(text, "\nSigCgt:") : NULL;
    *own_pid = pid;
    if (line != NULL) {
        char *end;
        for (line += strlen("\nNSpid:"); *line != '\n'; line = end) {
            unsigned long long number = strtoull(line, &end, 10);
            if (end == line)
                break;
            *own_pid = number;
        }
    }
    *caught = signals != NULL ? strtoull(signals + strlen("\nSigCgt:"), NULL, 16) : 0;
    free(text);
    return signals != NULL;
}

static const char *find_variable(const char *environment, size_t bytes, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = environment; at < environment + bytes; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at + length + 1;
    return NULL;
}

/* The file as it is seen from here: %p filled in, under the process' own root or folder. false when it is longer than a path may be. */
static bool make_path(uint64_t pid, uint64_t own_pid, const char *pattern, char path[PATH_MAX])
{
    int used = snprintf(path, PATH_MAX, "/proc/%" PRIu64 "/%s", pid, pattern[0] == '/' ? "root" : "cwd/");
    for (const char *p = pattern; *p != '\0' && used < PATH_MAX; p++) {
        bool place = p[0] == '%' && (p[1] == 'p' || p[1] == '%');
        p += place;
        used += place && *p == 'p' ? snprintf(path + used, (size_t)(PATH_MAX - used), "%" PRIu64, own_pid)
                                   : snprintf(path + used, (size_t)(PATH_MAX - used), "%c", *p);
    }
    return used < PATH_MAX;
}

static bool has_changed(const struct stat *before, const char *path)
{
    struct stat now;
    return stat(path, &now) == 0 && (now.st_ino != before->st_ino || now.st_size != before->st_size ||
                                     now.st_mtim.tv_sec != before->st_mtim.tv_sec || now.st_mtim.tv_nsec != before->st_mtim.tv_nsec);
}

/* A snapshot that is still being written is no JSON yet. */
static bool is_whole(const char *path)
{
    char fault[256];
    cmi_picture picture;
    bool whole = cmi_picture_read(path, &picture, fault, sizeof fault) == 0;
    if (whole)
        cmi_picture_free(&picture);
    return whole;
}

static int wait_for(uint64_t pid, uint64_t wait_seconds, const struct stat *before, const char *path)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    for (uint64_t waited = 0; waited <= wait_seconds * 1000; waited += POLL_MS) {
        if (has_changed(before, path) && is_whole(path))
            return EXIT_FINE;
        nanosleep(&pause, NULL);
    }
    return tool_say(EXIT_DEVICE,
                    "process %" PRIu64 " has written no snapshot within %" PRIu64
                    " s: it does so in its next call on a pool, into %s; it may have none, or stand still elsewhere",
                    pid, wait_seconds, path);
}

/* What its environment asks for: the signal, 0 for none, and the file. Exit status. */
static int read_options(uint64_t pid, uint64_t *number, const char **pattern)
{
    size_t bytes = 0;
    char *maps = read_proc(pid, "maps", &bytes), fault[256], source[64];
    if (maps == NULL)
        return errno == ENOENT ? tool_say(EXIT_BAD_INPUT, "there is no process %" PRIu64 ", and no file of that name", pid)
                               : tool_say(EXIT_DEVICE, "process %" PRIu64 ": %s", pid, strerror(errno));
    bool loaded = strstr(maps, "libcudamempool") != NULL;
    free(maps);
    if (!loaded)
        return tool_say(EXIT_DEVICE, "process %" PRIu64 " has not loaded libcudamempool: nothing in it can write a snapshot", pid);
    char *environment = read_proc(pid, "environ", &bytes);
    if (environment == NULL)
        return tool_say(EXIT_DEVICE, "process %" PRIu64 ": its environment cannot be read: %s", pid, strerror(errno));
    const char *text = find_variable(environment, bytes, "CUDAMEMPOOL_CONF");
    cmi_options options;
    cmi_options_default(&options);
    snprintf(source, sizeof source, "CUDAMEMPOOL_CONF of process %" PRIu64, pid);
    cmi_options_parse(&options, text, source, fault, sizeof fault);
    free(environment);
    *number = options.snapshot_signal;
    *pattern = cmi_options_text(options.snapshot_file);
    if (**pattern == '\0')
        *pattern = "cudamempool-%p.json";
    return EXIT_FINE;
}

int inspect_ask_process(uint64_t pid, uint64_t wait_seconds, char **path)
{
    uint64_t number = 0, own_pid, caught;
    const char *pattern = "";
    char place[PATH_MAX];
    struct stat before = {0};
    *path = NULL;
    int code = read_options(pid, &number, &pattern);
    if (code != EXIT_FINE)
        return code;
    if (number == 0)
        return tool_say(EXIT_DEVICE, "process %" PRIu64 " does not listen for requests of snapshots: %s", pid, how);
    if (!read_status(pid, &own_pid, &caught) || (caught >> (number - 1) & 1) == 0)
        return tool_say(EXIT_DEVICE,
                        "process %" PRIu64 " does not listen to signal %" PRIu64 " (yet): it made no pool, or could not take the signal",
                        pid, number);
    if (!make_path(pid, own_pid, pattern, place))
        return tool_say(EXIT_DEVICE, "process %" PRIu64 ": the name of its snapshot is too long", pid);
    (void)stat(place, &before);
    if (kill((pid_t)pid, (int)number) != 0)
        return tool_say(EXIT_DEVICE, "process %" PRIu64 ": no signal may be sent to it: %s", pid, strerror(errno));
    code = wait_for(pid, wait_seconds, &before, place);
    if (code == EXIT_FINE && (*path = strdup(place)) == NULL)
        code = tool_say(EXIT_DEVICE, "no host memory");
    return code;
}
