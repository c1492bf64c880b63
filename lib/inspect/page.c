/*
 * The live page of this process. Owns the file, its mapping and the places in it. Opening, claiming and giving up places is guarded by the
 * registry lock, each place's figures by the device lock of its pool; readers in other processes see words that are written whole. What
 * readers could have written there is never believed: of the page only `wanted` is read. Called by api.
 */
#include "inspect/page.h"

#include <cudamempool/live.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST_NAMES = 16, COUNT_SHARE = 100 };
static const uint64_t least_interval_ns = 100000000; /* between two counts */

_Static_assert(sizeof(cmi_counters) == CMPOOL_LIVE_COUNTERS * sizeof(uint64_t), "the words of a place are the counters, in one order");
_Static_assert(offsetof(cmpool_live_page, pools) % 64 == 0 && offsetof(cmpool_live_page, wanted) % 64 == 0, "cache lines");

/* A pool that is shown. */
typedef struct cmi_shown {
    cmpool_live_pool *place; /* NULL: not in use */
    uint64_t sequence, number, counted_ns, count_from_ns;
    uint64_t refusals_by[CMPOOL_LIVE_VERDICTS];
} cmi_shown;

static const _Atomic uint64_t nobody;
_Atomic(const _Atomic uint64_t *) cmi_page_wanted = &nobody;

static cmi_shown shown[CMPOOL_LIVE_POOLS];
static cmpool_live_page *page;
static _Atomic int page_file = -1;
static bool tried;
static char path[CMI_TEXT_BYTES];

/* Plain moves on the usual machines; each is behind all that were before it. */
static void put(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/* ---- the file (registry lock held) -------------------------------------------------------------------- */

static int lock_of(int file, int command, short *type)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    int result = fcntl(file, command, &lock);
    *type = lock.l_type;
    return result;
}

/* A file of our name is there: an earlier process of this number left it, or one of another container has it. */
static void remove_leftover(void)
{
    short type = F_WRLCK;
    int old = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (old >= 0) {
        if (lock_of(old, F_GETLK, &type) == 0 && type == F_UNLCK) {
            unlink(path);
        }
        close(old);
    }
}

static int make_file(void)
{
    const char *folder = getenv("CUDAMEMPOOL_LIVE_DIR");
    for (unsigned attempt = 0; attempt < 2 * MOST_NAMES; attempt++) {
        int length = snprintf(path, sizeof path, "%s/cudamempool.%lu.%ld.%u", folder && folder[0] ? folder : "/dev/shm",
                              (unsigned long)geteuid(), (long)getpid(), attempt / 2);
        if (length >= (int)sizeof path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file >= 0 || errno != EEXIST) {
            return file;
        }
        remove_leftover();
    }
    return -1;
}

static void fill_head(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    page->version = CMPOOL_LIVE_VERSION;
    page->page_bytes = sizeof *page;
    page->pool_bytes = sizeof *page->pools;
    page->pool_count = CMPOOL_LIVE_POOLS;
    page->verdict_count = CMPOOL_LIVE_VERDICTS;
    page->counter_count = CMPOOL_LIVE_COUNTERS;
    page->process = (uint64_t)getpid();
    page->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    snprintf(page->program, sizeof page->program, "%s", program_invocation_short_name);
    uint64_t magic;
    memcpy(&magic, CMPOOL_LIVE_MAGIC, sizeof magic);
    put((uint64_t *)(void *)page->magic, magic);
}

/* Locked before it has its length: a file without is never taken for one that was left over. */
static void open_page(void)
{
    short type;
    void *memory = MAP_FAILED;
    int file = make_file();
    int error = file < 0 ? errno : lock_of(file, F_SETLK, &type) < 0 ? errno : posix_fallocate(file, 0, sizeof *page);
    if (error == 0) {
        memory = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        error = memory == MAP_FAILED ? errno : 0;
    }
    if (error == 0) {
        page = memory;
        fill_head();
        atomic_store(&page_file, file);
        atomic_store(&cmi_page_wanted, (const _Atomic uint64_t *)&page->wanted);
    } else {
        cmi_log(CMI_LOG_ERROR, "live: %s: %s", path, strerror(error));
        if (file >= 0) {
            unlink(path);
            close(file);
        }
    }
}

void cmi_page_show(cmi_pool *pool, uint64_t number)
{
    if (!tried) {
        tried = true;
        open_page();
    }
    for (unsigned i = 0; page && i < CMPOOL_LIVE_POOLS; i++) {
        if (!shown[i].place) {
            shown[i] = (cmi_shown){.place = &page->pools[i], .number = number, .sequence = shown[i].sequence};
            pool->shown = &shown[i];
            cmi_page_publish(pool);
            return;
        }
    }
    if (page) {
        cmi_log(CMI_LOG_WARNING, "live: pool %llu is not shown, %d are", (unsigned long long)number, CMPOOL_LIVE_POOLS);
    }
}

void cmi_page_hide(cmi_pool *pool)
{
    cmi_shown *at = pool->shown;
    if (at) {
        put(&at->place->sequence, at->sequence + 1);
        put(&at->place->number, 0);
        at->sequence += 2;
        put(&at->place->sequence, at->sequence);
        at->place = NULL;
        pool->shown = NULL;
    }
}

/* ---- figures (device lock held) ----------------------------------------------------------------------- */

static void count(cmi_pool *pool, uint64_t now)
{
    cmi_shown *at = pool->shown;
    cmpool_stats unused = {.struct_size = sizeof unused};
    uint64_t from = cmi_clock_ns();
    cmi_pool_stats(pool, 0, &unused); /* brings the pool's own counters up to date */
    uint64_t pause = (cmi_clock_ns() - from) * COUNT_SHARE;
    at->counted_ns = now;
    at->count_from_ns = now + (pause > least_interval_ns ? pause : least_interval_ns);
}

void cmi_page_publish(cmi_pool *pool)
{
    cmi_shown *at = pool->shown;
    cmpool_live_pool *place = at->place;
    uint64_t now = cmi_clock_coarse_ns();
    if (now >= at->count_from_ns) {
        count(pool, now);
    }
    pool->counters.reserved_bytes = pool->reserved_pages << pool->heap.page_shift;
    put(&place->sequence, at->sequence + 1);
    put(&place->number, at->number);
    put(&place->device, (uint64_t)pool->device->ordinal);
    put(&place->device_bytes, pool->device->total_bytes);
    put(&place->limit_bytes, pool->options.limit);
    put(&place->published_ns, now);
    put(&place->counted_ns, at->counted_ns);
    for (unsigned i = 0; i < CMPOOL_LIVE_VERDICTS; i++) {
        put(&place->refusals_by[i], at->refusals_by[i]);
    }
#define CMPOOL_COUNTER(name, kind, help) put(&place->counters[CMPOOL_LIVE_COUNTER_##name], pool->counters.name);
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
    at->sequence += 2;
    put(&place->sequence, at->sequence);
}

void cmi_page_note_refusal(cmi_pool *pool, unsigned verdict)
{
    if (pool->shown && verdict < CMPOOL_LIVE_VERDICTS) {
        pool->shown->refusals_by[verdict]++;
    }
}

bool cmi_page_take_wish(void)
{
    const _Atomic uint64_t *wanted = atomic_load(&cmi_page_wanted);
    return wanted != &nobody && __atomic_exchange_n(&page->wanted, 0, __ATOMIC_ACQ_REL) != 0;
}

/* ---- the end ------------------------------------------------------------------------------------------ */

void cmi_page_close(void)
{
    int file = atomic_exchange(&page_file, -1);
    if (file >= 0) {
        unlink(path);
        close(file);
    }
}

void cmi_page_unload(void)
{
    if (page) {
        atomic_store(&cmi_page_wanted, &nobody);
        munmap(page, sizeof *page);
        page = NULL;
    }
}

void cmi_page_forget(void)
{
    int file = atomic_exchange(&page_file, -1);
    atomic_store(&cmi_page_wanted, &nobody);
    if (file >= 0) {
        close(file); /* the parent's lock is the parent's */
    }
}
