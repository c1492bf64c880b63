/*
 * Programs in processes of their own, and failing ones made short: operations are left out in ever smaller groups while the program still
 * fails in the same way, then numbers are made rounder. Owns nothing between calls. Called by the property test.
 */
#include "program.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS_OF_A_PROGRAM = 30 }; /* unless CMPOOL_TEST_PROGRAM_SECONDS says otherwise */

void program_run_apart(const program *p, outcome *result)
{
    outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        abort();
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        const char *seconds = getenv("CMPOOL_TEST_PROGRAM_SECONDS");
        alarm(seconds ? (unsigned)strtoul(seconds, NULL, 10) : SECONDS_OF_A_PROGRAM);
        program_run(p, shared);
        fflush(NULL);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    *result = *shared;
    munmap(shared, sizeof *shared);
    if (!result->failed && status != 0) {
        result->failed = true;
        snprintf(result->fault, sizeof result->fault, "crash: %s",
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "the process ended by itself");
    }
}

static size_t kind_length(const outcome *o) { return strcspn(o->fault, ":"); }

/* Fails in the same way: the words before the colon are the same. */
static bool fails_alike(const program *p, const outcome *wanted, outcome *got)
{
    program_run_apart(p, got);
    return got->failed && kind_length(got) == kind_length(wanted) && strncmp(got->fault, wanted->fault, kind_length(wanted)) == 0;
}

static bool try_program(program *p, const program *candidate, outcome *result)
{
    outcome got;
    if (!fails_alike(candidate, result, &got)) {
        return false;
    }
    *p = *candidate;
    *result = got;
    p->count = got.at + 1 < p->count ? got.at + 1 : p->count; /* nothing behind the failure matters */
    return true;
}

static bool leave_out(program *p, outcome *result, program *candidate, size_t first, size_t count)
{
    candidate->world = p->world;
    memcpy(candidate->operations, p->operations, first * sizeof p->operations[0]);
    memcpy(candidate->operations + first, p->operations + first + count, (p->count - first - count) * sizeof p->operations[0]);
    candidate->count = p->count - count;
    return try_program(p, candidate, result);
}

/* Sizes without low bits, and everything else 0 where that does as well. */
static void simplify(program *p, outcome *result, program *candidate, time_t end)
{
    for (size_t i = 0; i < p->count && time(NULL) < end; i++) {
        uint64_t page = program_page_bytes(&p->world), bytes = p->operations[i].bytes;
        const uint64_t simpler[] = {page, bytes / page * page, bytes / 512 * 512};
        for (size_t k = 0; k < sizeof simpler / sizeof simpler[0] && i < p->count; k++) {
            if (bytes && simpler[k] && simpler[k] != p->operations[i].bytes) {
                *candidate = *p;
                candidate->operations[i].bytes = simpler[k];
                if (try_program(p, candidate, result)) {
                    break;
                }
            }
        }
        if (i < p->count && p->operations[i].align) {
            *candidate = *p;
            candidate->operations[i].align = 0;
            try_program(p, candidate, result);
        }
    }
}

void program_shrink(program *p, outcome *result, unsigned seconds)
{
    program *candidate = malloc(sizeof *candidate);
    time_t end = time(NULL) + seconds;
    if (!candidate) {
        return;
    }
    p->count = result->at + 1 < p->count ? result->at + 1 : p->count;
    bool shorter = true;
    for (size_t group = p->count / 2 + 1; group > 0 && time(NULL) < end; group = shorter && group == 1 ? 1 : group / 2) {
        shorter = false;
        for (size_t first = p->count; first > 0 && time(NULL) < end;) { /* from the end: late operations depend on early ones */
            size_t count = group < first ? group : first;
            first -= count;
            if (first + count <= p->count) {
                shorter = leave_out(p, result, candidate, first, count) || shorter;
            }
            first = first < p->count ? first : p->count;
        }
    }
    simplify(p, result, candidate, end);
    free(candidate);
}
