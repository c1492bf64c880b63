/*
 * Preloaded into test programs that run behind the preload library: each test of a group runs in a process of its own, so that one which
 * fails, and leaves its pools behind, does not make the next ones fail.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

typedef int (*run_function)(const char *, const struct CMUnitTest *, size_t, CMFixtureFunction, CMFixtureFunction);

__attribute__((visibility("default"))) int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *const tests,
                                                                   const size_t count, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    int failed = 0;
    run_function run;
    void *found = dlsym(RTLD_NEXT, "_cmocka_run_group_tests");
    memcpy(&run, &found, sizeof found);
    for (size_t i = 0; i < count; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) { /* has nothing of CUDA yet: the parent never calls it */
            int failures = run(group, &tests[i], 1, setup, teardown);
            fflush(NULL);
            _exit(failures ? 1 : 0);
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
            fprintf(stderr, "failed alone: %s\n", tests[i].name);
            failed++;
        }
    }
    return failed;
}
