/*
 * A program whose pool is told by CUDAMEMPOOL_CONF what to write when: it sends itself a signal, is refused twice and exits, with live
 * blocks. With an argument it uses that signal itself. For check_snapshots.py.
 */
#include <cudamempool/cudamempool.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static void own_use(int number) { (void)number; }

int main(int argc, char **argv)
{
    cmpool_t pool;
    void *block, *refused;
    if (argc > 1) {
        signal(atoi(argv[1]), own_use);
    }
    cmpool_status status = cmpool_create(&pool, NULL);
    if (status == CMPOOL_OK) {
        status = cmpool_malloc(pool, &block, 3 << 20, NULL);
    }
    raise(SIGUSR2);
    if (status == CMPOOL_OK) {
        status = cmpool_malloc(pool, &block, 5 << 20, NULL);
    }
    if (status == CMPOOL_OK && (cmpool_malloc(pool, &refused, (size_t)1 << 40, NULL) == CMPOOL_OK ||
                                cmpool_malloc(pool, &refused, (size_t)1 << 40, NULL) == CMPOOL_OK)) {
        status = CMPOOL_ERR_INVALID_ARGUMENT;
    }
    printf("%s\n", cmpool_status_name(status));
    return status != CMPOOL_OK;
}
