/*
 * A program that does with its pool what it is told, a word a line on its standard input, and answers each with a line: for the tests of
 * the live page. It ends when there are no more words. Links the shared library alone.
 */
#include <cudamempool/cudamempool.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_BLOCKS = 64, SMALL = 1000 };

static cmpool_t pool;
static void *blocks[MOST_BLOCKS];
static unsigned block_count;

static cmpool_status allocate(size_t bytes)
{
    cmpool_status status = block_count < MOST_BLOCKS ? cmpool_malloc(pool, &blocks[block_count], bytes, NULL) : CMPOOL_ERR_INVALID_ARGUMENT;
    block_count += status == CMPOOL_OK;
    return status;
}

/* Small blocks that come and go, after the first by the thread's cache. */
static cmpool_status come_and_go(void)
{
    cmpool_status status = CMPOOL_OK;
    for (unsigned i = 0; i < SMALL && status == CMPOOL_OK; i++) {
        void *block;
        status = cmpool_malloc(pool, &block, 256, NULL);
        status = status == CMPOOL_OK ? cmpool_free(pool, block, NULL) : status;
    }
    return status;
}

/* The child may call, is told that it is one, and ends as programs end. */
static cmpool_status fork_and_end(void)
{
    void *block;
    int code = 0;
    pid_t child = fork();
    if (child == 0) {
        exit(cmpool_malloc(pool, &block, 1 << 20, NULL) == CMPOOL_ERR_FORKED ? 7 : 1);
    }
    return child > 0 && waitpid(child, &code, 0) == child && WIFEXITED(code) && WEXITSTATUS(code) == 7 ? CMPOOL_OK : CMPOOL_ERR_DRIVER;
}

static cmpool_status obey(const char *word, size_t bytes)
{
    if (strcmp(word, "alloc") == 0) {
        return allocate(bytes);
    }
    if (strcmp(word, "free") == 0) {
        return block_count ? cmpool_free(pool, blocks[--block_count], NULL) : CMPOOL_ERR_INVALID_ARGUMENT;
    }
    if (strcmp(word, "small") == 0) {
        return come_and_go();
    }
    if (strcmp(word, "trim") == 0) {
        return cmpool_trim(pool, 0, NULL);
    }
    if (strcmp(word, "fork") == 0) {
        return fork_and_end();
    }
    return strcmp(word, "destroy") == 0 ? cmpool_destroy(pool) : CMPOOL_ERR_INVALID_ARGUMENT;
}

int main(void)
{
    char word[16];
    size_t bytes;
    cmpool_status status = cmpool_create(&pool, NULL);
    do {
        puts(cmpool_status_name(status));
        fflush(stdout);
        if (scanf("%15s", word) != 1) {
            return 0;
        }
        bytes = 0;
        if (strcmp(word, "alloc") == 0 && scanf("%zu", &bytes) != 1) {
            return 1;
        }
        status = obey(word, bytes);
    } while (true);
}
