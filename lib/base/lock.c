/*
 * Mutexes with ranks. Validating builds (CMI_VALIDATE) keep a stack of the locks a thread holds and stop the program at the first
 * one taken out of order, given back without being held, or missing where a function needs it; other builds add nothing.
 * Called by every room that shares state between threads.
 */
#include "base/lock.h"

#include <stddef.h>

#ifdef CMI_VALIDATE
#include "base/bits.h"
#include "base/log.h"

/* There are fewer ranks than entries, and a rank is held at most once. */
static __thread const cmi_lock *held[8];
static __thread size_t held_count;

static _Noreturn void lock_fault(const cmi_lock *lock, const char *what)
{
    cmi_log(CMI_LOG_ERROR, "lock fault: %s (rank %d, %zu held, highest rank %d)", what, (int)lock->rank, held_count,
            held_count > 0 ? (int)held[held_count - 1]->rank : 0);
    __builtin_trap();
}

static size_t held_position(const cmi_lock *lock)
{
    size_t position = 0;
    while (position < held_count && held[position] != lock)
        position++;
    return position;
}

static void note_acquire(const cmi_lock *lock)
{
    if (held_count > 0 && held[held_count - 1]->rank >= lock->rank)
        lock_fault(lock, "taken while a lock of the same or a higher rank is held");
    if (held_count == CMI_ARRAY_LENGTH(held))
        lock_fault(lock, "too many locks held");
    held[held_count++] = lock;
}

static void note_release(const cmi_lock *lock)
{
    size_t position = held_position(lock);
    if (position == held_count)
        lock_fault(lock, "given back by a thread that does not hold it");
    held_count--;
    for (; position < held_count; position++)
        held[position] = held[position + 1];
}

void cmi_lock_assert_held(const cmi_lock *lock)
{
    if (held_position(lock) == held_count)
        lock_fault(lock, "not held where it must be");
}

int cmi_lock_rank_held(cmi_lock_rank rank)
{
    for (size_t i = 0; i < held_count; i++)
        if (held[i]->rank == rank)
            return 1;
    return 0;
}
#else
static void note_acquire(const cmi_lock *lock) { (void)lock; }
static void note_release(const cmi_lock *lock) { (void)lock; }
void cmi_lock_assert_held(const cmi_lock *lock) { (void)lock; }
int cmi_lock_rank_held(cmi_lock_rank rank)
{
    (void)rank;
    return 0;
}
#endif

void cmi_lock_init(cmi_lock *lock, cmi_lock_rank rank)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->rank = rank;
}

void cmi_lock_fini(cmi_lock *lock) { pthread_mutex_destroy(&lock->mutex); }

void cmi_lock_acquire(cmi_lock *lock)
{
    note_acquire(lock); /* before blocking: an order that can deadlock is told even when it would */
    pthread_mutex_lock(&lock->mutex);
}

void cmi_lock_release(cmi_lock *lock)
{
    note_release(lock);
    pthread_mutex_unlock(&lock->mutex);
}
