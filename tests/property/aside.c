/*
 * Owns the second thread of a random program: it asks for a block and stands still in a driver call while the program does its next
 * operation. One at a time; the thread touches its own record alone, and what it got becomes part of the world when it has ended. Where the
 * next operation would have to wait for the request, a third thread lets the request go on. Called by run.c.
 */
#include "world.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { PATIENCE_MS = 3 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool answered, met; /* the request has ended; so has the operation beside it */

static void *request(void *argument)
{
    world_aside *aside = argument;
    aside->status = cmpool_malloc(aside->pool, &aside->address, aside->bytes, aside->stream);
    pthread_mutex_lock(&lock);
    answered = true;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Until the operation beside is done, or for as long as it might only be waiting for us. */
static void *release(void *argument)
{
    world *w = argument;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    while (!met && pthread_cond_timedwait(&changed, &lock, &until) != ETIMEDOUT) {}
    pthread_mutex_unlock(&lock);
    w->device.release_parked();
    return NULL;
}

static bool has_answered(void)
{
    pthread_mutex_lock(&lock);
    bool yes = answered;
    pthread_mutex_unlock(&lock);
    return yes;
}

bool world_ask_aside(world *w, cmpool_t pool, uint64_t bytes, CUstream stream, unsigned place)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"};
    const char *call = place < 200 ? "*" : calls[place % 4]; /* mostly one of the first calls, whichever it is */
    world_aside *aside = &w->aside;
    *aside = (world_aside){.pool = pool, .bytes = bytes, .stream = stream};
    answered = met = false;
    if (w->device.park(call, 1 + place % (place < 200 ? 32 : 3)) != 0 || pthread_create(&aside->thread, NULL, request, aside) != 0) {
        return world_fault(w, "start: no second thread");
    }
    const struct timespec pause = {0, 50000};
    bool parked;
    while (!(parked = w->device.wait_parked(0)) && !has_answered()) {
        nanosleep(&pause, NULL);
    }
    if (parked && pthread_create(&aside->release, NULL, release, w) != 0) {
        parked = false;
    }
    aside->lives = parked;
    return true;
}

void world_end_aside(world *w)
{
    pthread_mutex_lock(&lock);
    met = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (w->aside.lives) {
        pthread_join(w->aside.release, NULL);
    } else {
        w->device.release_parked(); /* and forget the plan */
    }
    pthread_join(w->aside.thread, NULL);
    w->aside.lives = false;
}
