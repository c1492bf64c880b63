/*
 * Owns the child process of a run. A driver, the simulated device and the library keep state for the life of a process; a run that
 * begins in a fork of a process that has used none of them begins as a program does, and one that crashes takes no other down.
 * Called by the subcommands, from their only thread.
 */
#include "tool.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int tool_run_apart(const char *what, int (*work)(void *argument, void *result), void *argument, void *result, size_t result_bytes)
{
    void *shared = mmap(NULL, result_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return tool_say(EXIT_DEVICE, "%s: no host memory for its result", what);
    fflush(stdout);
    fflush(stderr);
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int code = work(argument, shared);
        fflush(stderr);
        exit(code); /* as a program ends: exit handlers of library and device included */
    }
    if (child < 0)
        status = tool_say(EXIT_DEVICE, "%s: cannot start a process: %s", what, strerror(errno));
    else {
        pid_t ended;
        do
            ended = waitpid(child, &status, 0);
        while (ended < 0 && errno == EINTR);
        if (ended == child && WIFEXITED(status))
            status = WEXITSTATUS(status) <= EXIT_DEVICE ? WEXITSTATUS(status) : EXIT_DEVICE;
        else if (ended == child && WIFSIGNALED(status))
            status = tool_say(EXIT_DEVICE, "%s: the run died of signal %d (%s)", what, WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            status = tool_say(EXIT_DEVICE, "%s: the run was lost", what);
    }
    memcpy(result, shared, result_bytes);
    munmap(shared, result_bytes);
    return status;
}
