/*
 * `cudamempool pause` and `cudamempool resume`: a running process behind the preload library gives its device memory up, and takes it back.
 * Talks to it through its control file (<cudamempool/control.h>). Owns nothing; one thread. Called by main.c.
 */
#include "tool.h"

#include <cudamempool/control.h>
#include <cudamempool/cudamempool.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STANDARD_PATIENCE = 30, MOST_PATIENCE = 1000000 };

static const char pause_usage[] =
    "Usage: cudamempool pause [--keep|--discard] [--tag T] [--file F] [--wait S] PROCESS\n"
    "\n"
    "Gives the device memory of a running program back to the device; `cudamempool resume` takes it back, at the same addresses. The "
    "program\n"
    "stands still in its next call for memory until then. It must have been started behind the preload library with the option "
    "control:on.\n"
    "\n"
    "  --keep     save what is in the memory, and put it back (the default)\n"
    "  --discard  do not: it comes back undefined\n"
    "  --tag T    only memory taken under the tag T; the program goes on and must not use it meanwhile\n"
    "  --file F   save into a new file F, which has no name afterwards, instead of pinned host memory\n"
    "  --wait S   give up when the program makes no call for memory within S seconds (30); nothing has happened then\n"
    "  --help     this text\n";
static const char resume_usage[] =
    "Usage: cudamempool resume [--wait S] PROCESS\n"
    "\n"
    "Takes the device memory back that `cudamempool pause` made a program give up. Where the device has not\n"
    "enough, the program stays paused and loses nothing.\n"
    "\n"
    "  --wait S  as of pause, for memory that was paused by a tag\n"
    "  --help    this text\n";

typedef struct request {
    cmpool_control_action action;
    cmpool_contents contents;
    const char *tag, *file;
    uint64_t process, patience;
} request;

/* ---- the file ------------------------------------------------------------------------------------------ */

static bool lock_byte(int file, int command, off_t byte, short *type)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    bool done = fcntl(file, command, &lock) == 0;
    *type = lock.l_type;
    return done;
}

/* Whose process it is: root may ask anybody's. */
static uid_t owner_of(uint64_t process)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%llu", (unsigned long long)process);
    return geteuid() == 0 && stat(path, &about) == 0 ? about.st_uid : geteuid();
}

/* The process' control page, or NULL with a message. Another one that asks is waited for. */
static cmpool_control *open_control(uint64_t process)
{
    char path[CMPOOL_CONTROL_TEXT_BYTES];
    const char *folder = getenv("CUDAMEMPOOL_LIVE_DIR");
    struct stat about;
    uid_t owner = owner_of(process);
    short type;
    snprintf(path, sizeof path, "%s/cudamempool-control.%lu.%llu", folder != NULL && folder[0] != '\0' ? folder : "/dev/shm",
             (unsigned long)owner, (unsigned long long)process);
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) {
        tool_say(EXIT_ANSWER_NO,
                 "process %llu: %s: it has no option control:on, or has not asked for device memory behind the preload library",
                 (unsigned long long)process, path);
        return NULL;
    }
    bool whole = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == owner && about.st_size == sizeof(cmpool_control);
    cmpool_control *control = MAP_FAILED;
    if (lock_byte(file, F_GETLK, 0, &type) && type == F_UNLCK) {
        tool_say(EXIT_ANSWER_NO, "process %llu has ended", (unsigned long long)process);
        if (kill((pid_t)process, 0) != 0 && errno == ESRCH)
            unlink(path);
        whole = false;
    } else if (whole && lock_byte(file, F_SETLKW, 1, &type)) {
        control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (control != MAP_FAILED && (memcmp(control->magic, CMPOOL_CONTROL_MAGIC, sizeof control->magic) != 0 ||
                                  control->version != CMPOOL_CONTROL_VERSION || control->bytes != sizeof *control)) {
        tool_say(EXIT_ANSWER_NO, "%s: of another version of the library", path);
        return NULL;
    }
    return control != MAP_FAILED ? control : NULL; /* the file stays open: with it goes the lock */
}

/* ---- asking --------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int tell(const request *asked, const cmpool_control *control)
{
    unsigned long long process = asked->process, given = control->bytes_given, fixed = control->fixed_addresses;
    const char *words = cmpool_status_text((cmpool_status)control->status);
    if (control->status == CMPOOL_OK && asked->action == CMPOOL_CONTROL_PAUSE)
        printf("process %llu: paused, %.1f MiB given back\n", process, (double)given / (1 << 20));
    else if (control->status == CMPOOL_OK)
        printf("process %llu: resumed\n", process);
    else if (fixed)
        return tool_say(EXIT_ANSWER_NO, "process %llu, device %d: %s; %llu blocks are exported or in graphs", process, control->device,
                        words, fixed);
    else
        return tool_say(EXIT_ANSWER_NO, "process %llu, device %d: %s", process, control->device, words);
    return EXIT_FINE;
}

static int wait_for_answer(const request *asked, cmpool_control *control, uint32_t before)
{
    static const struct timespec step = {.tv_nsec = 100000000};
    _Atomic uint32_t *state = (_Atomic uint32_t *)&control->state, *answers = (_Atomic uint32_t *)&control->answers;
    uint64_t end = now_ns() + asked->patience * 1000000000u;
    while (atomic_load(answers) == before) {
        uint32_t untaken = CMPOOL_CONTROL_ASKED;
        if (kill((pid_t)asked->process, 0) != 0 && errno == ESRCH)
            return tool_say(EXIT_ANSWER_NO, "process %llu has ended", (unsigned long long)asked->process);
        if (now_ns() >= end && atomic_compare_exchange_strong(state, &untaken, CMPOOL_CONTROL_IDLE))
            return tool_say(EXIT_ANSWER_NO, "process %llu has made no call for memory within %llu s: nothing was done",
                            (unsigned long long)asked->process, (unsigned long long)asked->patience);
        syscall(SYS_futex, answers, FUTEX_WAIT, before, &step, NULL, 0);
    }
    return tell(asked, control);
}

static int ask(const request *asked, cmpool_control *control)
{
    _Atomic uint32_t *state = (_Atomic uint32_t *)&control->state, *answers = (_Atomic uint32_t *)&control->answers;
    uint32_t idle = CMPOOL_CONTROL_IDLE, stopped = CMPOOL_CONTROL_STOPPED, before = atomic_load(answers);
    if (asked->action == CMPOOL_CONTROL_RESUME_PAUSED && atomic_compare_exchange_strong(state, &stopped, CMPOOL_CONTROL_RESUME)) {
        syscall(SYS_futex, state, FUTEX_WAKE, 1, NULL, NULL, 0);
        return wait_for_answer(asked, control, before);
    }
    if (atomic_load(state) == CMPOOL_CONTROL_STOPPED)
        return tool_say(EXIT_ANSWER_NO, "process %llu is paused already", (unsigned long long)asked->process);
    control->action = asked->action;
    control->contents = asked->contents;
    snprintf(control->tag, sizeof control->tag, "%s", asked->tag);
    snprintf(control->file, sizeof control->file, "%s", asked->file);
    if (!atomic_compare_exchange_strong(state, &idle, CMPOOL_CONTROL_ASKED))
        return tool_say(EXIT_ANSWER_NO, "process %llu is at work on an earlier request", (unsigned long long)asked->process);
    return wait_for_answer(asked, control, before);
}

/* ---- the command line ----------------------------------------------------------------------------------- */

/* -1: go on. */
static int read_option(tool_words *words, const tool_option *option, request *to)
{
    const char *value;
    bool pause = to->action == CMPOOL_CONTROL_PAUSE;
    if (strcmp(option->name, "--help") == 0) {
        fputs(pause ? pause_usage : resume_usage, stdout);
        return EXIT_FINE;
    }
    if (pause && (strcmp(option->name, "--keep") == 0 || strcmp(option->name, "--discard") == 0)) {
        to->contents = option->name[2] == 'k' ? CMPOOL_KEEP : CMPOOL_DISCARD;
        return -1;
    }
    bool text = pause && (strcmp(option->name, "--tag") == 0 || strcmp(option->name, "--file") == 0);
    if (!text && strcmp(option->name, "--wait") != 0)
        return tool_say(EXIT_BAD_INPUT, "unknown option %s", option->name);
    value = tool_option_value(words, option);
    if (value == NULL || (!text && !tool_parse_count("--wait", value, MOST_PATIENCE, &to->patience)))
        return EXIT_BAD_INPUT;
    if (text && (value[0] == '\0' || strlen(value) >= CMPOOL_CONTROL_TEXT_BYTES))
        return tool_say(EXIT_BAD_INPUT, "%s: a name of 1 to %d characters", option->name, CMPOOL_CONTROL_TEXT_BYTES - 1);
    if (text)
        *(option->name[2] == 't' ? &to->tag : &to->file) = value;
    return -1;
}

static int run(int argc, char **argv, request *asked)
{
    tool_words words = {.argv = argv, .argc = argc, .at = 1};
    tool_option option;
    char **operands = argv + 1, *end; /* no more of them than words that were read */
    int count = 0;
    while (tool_next_option(&words, &option, operands, &count)) {
        int status = read_option(&words, &option, asked);
        if (status >= 0)
            return status;
    }
    if (count != 1)
        return tool_say(EXIT_BAD_INPUT, "give the number of one process; %s --help tells more", argv[0]);
    errno = 0;
    asked->process = strtoull(operands[0], &end, 10);
    if (*end != '\0' || end == operands[0] || errno != 0 || asked->process == 0 || asked->process > INT32_MAX)
        return tool_say(EXIT_BAD_INPUT, "%s: not the number of a process", operands[0]);
    if (asked->contents == CMPOOL_DISCARD && asked->file[0] != '\0')
        return tool_say(EXIT_BAD_INPUT, "--file is for contents that are kept");
    cmpool_control *control = open_control(asked->process);
    return control != NULL ? ask(asked, control) : EXIT_ANSWER_NO;
}

int cmd_pause(int argc, char **argv)
{
    request asked = {.action = CMPOOL_CONTROL_PAUSE, .contents = CMPOOL_KEEP, .tag = "", .file = "", .patience = STANDARD_PATIENCE};
    return run(argc, argv, &asked);
}

int cmd_resume(int argc, char **argv)
{
    request asked = {.action = CMPOOL_CONTROL_RESUME_PAUSED, .tag = "", .file = "", .patience = STANDARD_PATIENCE};
    return run(argc, argv, &asked);
}
