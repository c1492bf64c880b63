/*
 * A program that keeps blocks of a pool and goes on allocating until its standard input ends: what `cudamempool inspect PID` is asked
 * about. For test_inspect.py.
 */
#include <cudamempool/cudamempool.h>

#include <poll.h>
#include <stdio.h>

int main(void)
{
    cmpool_t pool;
    void *kept[3], *block;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    cmpool_status status = cmpool_create(&pool, NULL);
    for (int i = 0; i < 3 && status == CMPOOL_OK; i++) {
        status = cmpool_malloc(pool, &kept[i], (size_t)(i + 1) << 21, NULL);
    }
    printf("%s\n", cmpool_status_name(status));
    fflush(stdout);
    /* A signal ends poll early, with -1. */
    while (status == CMPOOL_OK && poll(&input, 1, 5) <= 0) {
        status = cmpool_malloc(pool, &block, 1 << 20, NULL);
        if (status == CMPOOL_OK) {
            status = cmpool_free(pool, block, NULL);
        }
    }
    return status != CMPOOL_OK;
}
