/*
 * Reads live pages. Files are read with calls, not mapped, so that one that is cut short under our hands is a short read and no signal.
 * Owns nothing but what a view holds; one thread. Called by cmd_top.c and cmd_serve_metrics.c.
 */
#include "live.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TRIES = 1000 };

const live_counter live_counters[] = {
#define CMPOOL_COUNTER(name, kind, help) {#name, help, LIVE_##kind},
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
};

const char *const live_verdicts[] = {
#define CMPOOL_VERDICT(name, number, key, sentence) [number] = key,
#include <cudamempool/verdicts.def>
#undef CMPOOL_VERDICT
};

const char *live_folder(void)
{
    const char *folder = getenv("CUDAMEMPOOL_LIVE_DIR");
    return folder != NULL && folder[0] != '\0' ? folder : "/dev/shm";
}

static bool read_at(int file, void *to, size_t bytes, size_t offset) { return pread(file, to, bytes, (off_t)offset) == (ssize_t)bytes; }

/* A pool's figures of one moment; after many tries its process stopped while it wrote, and each word is right by itself. */
static bool read_pool(int file, unsigned place, cmpool_live_pool *pool)
{
    const size_t offset = offsetof(cmpool_live_page, pools) + place * sizeof *pool;
    uint64_t after = 1;
    for (int i = 0; i < MOST_TRIES; i++) {
        if (!read_at(file, pool, sizeof *pool, offset) || !read_at(file, &after, sizeof after, offset))
            return false;
        if (after == pool->sequence && after % 2 == 0)
            break;
    }
    return pool->number != 0;
}

static bool add(live_view *view, const live_pool *pool)
{
    if (view->count == view->room) {
        size_t room = 2 * view->room + 16;
        live_pool *larger = realloc(view->pools, room * sizeof *larger);
        if (larger == NULL)
            return false;
        view->pools = larger;
        view->room = room;
    }
    view->pools[view->count++] = *pool;
    return true;
}

static bool head_is_known(const cmpool_live_page *page)
{
    return memcmp(page->magic, CMPOOL_LIVE_MAGIC, sizeof page->magic) == 0 && page->version == CMPOOL_LIVE_VERSION &&
           page->page_bytes == sizeof *page && page->pool_bytes == sizeof *page->pools && page->pool_count == CMPOOL_LIVE_POOLS &&
           page->verdict_count == CMPOOL_LIVE_VERDICTS && page->counter_count == CMPOOL_LIVE_COUNTERS;
}

static bool read_page(live_view *view, int file, uint64_t user)
{
    cmpool_live_page page;
    const uint64_t wish = 1;
    live_pool pool = {.user = user};
    if (!read_at(file, &page, sizeof page, 0) || !head_is_known(&page)) {
        view->unreadable++;
        return true;
    }
    view->processes++;
    pool.process = page.process;
    for (size_t i = 0; i + 1 < sizeof pool.program && page.program[i] != '\0'; i++)
        pool.program[i] = isprint((unsigned char)page.program[i]) ? page.program[i] : '?';
    for (unsigned i = 0; i < CMPOOL_LIVE_POOLS; i++)
        if (page.pools[i].number != 0 && read_pool(file, i, &pool.figures) && !add(view, &pool))
            return false;
    (void)!pwrite(file, &wish, sizeof wish, offsetof(cmpool_live_page, wanted));
    return true;
}

/* A file whose name says that it is a page. */
static bool look_at(live_view *view, int folder, const char *name, uint64_t user, uint64_t process)
{
    struct stat about;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    bool well = true;
    int file = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return true;
    bool page = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == user && about.st_size > 0;
    if (page && fcntl(file, F_GETLK, &lock) == 0) {
        if (lock.l_type != F_UNLCK)
            well = read_page(view, file, user);
        else if (kill((pid_t)process, 0) != 0 && errno == ESRCH)
            unlinkat(folder, name, 0);
    }
    close(file);
    return well;
}

static int by_process(const void *a, const void *b)
{
    const live_pool *x = a, *y = b;
    if (x->process != y->process)
        return x->process < y->process ? -1 : 1;
    return (x->figures.number > y->figures.number) - (x->figures.number < y->figures.number);
}

bool live_read(live_view *view)
{
    struct timespec now;
    DIR *folder = opendir(live_folder());
    bool well = folder != NULL;
    view->count = view->processes = view->unreadable = 0;
    for (struct dirent *entry; well && (entry = readdir(folder)) != NULL;) {
        unsigned user, process, number;
        int end = 0;
        if (sscanf(entry->d_name, "cudamempool.%9u.%9u.%9u%n", &user, &process, &number, &end) == 3 && entry->d_name[end] == '\0' &&
            process > 0)
            well = look_at(view, dirfd(folder), entry->d_name, user, process);
    }
    if (folder != NULL)
        closedir(folder);
    if (view->count > 0)
        qsort(view->pools, view->count, sizeof *view->pools, by_process);
    clock_gettime(CLOCK_MONOTONIC, &now);
    view->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return well;
}

void live_free(live_view *view)
{
    free(view->pools);
    *view = (live_view){0};
}
