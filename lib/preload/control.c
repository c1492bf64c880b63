/*
 * The control file (<cudamempool/control.h>): pauses and resumes that are asked for from outside. Owns the file and its mapping, made once,
 * by the thread that makes the first pool. No lock: a request is carried out by the one thread that changes the word `state` to AT_WORK, at
 * the beginning of a call, where it holds nothing of this library; the others wait for that word. Called by every replacement on its way
 * in.
 *
 * What stands in the file may have been written by anybody of the same user. It is copied, ended and checked before it is used.
 */
#include "preload/preload.h"

#include <cudamempool/control.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const _Atomic uint32_t idle = CMPOOL_CONTROL_IDLE;
_Atomic(const _Atomic uint32_t *) cmi_preload_request = &idle;

static cmpool_control *control;
static _Atomic uint32_t *state, *answers; /* words of it */
static char path[CMPOOL_CONTROL_TEXT_BYTES];

/* ---- the file -------------------------------------------------------------------------------------------------------------------------
 */

static bool lock_first_byte(int file, int command, short *type)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    bool done = fcntl(file, command, &lock) == 0;
    *type = lock.l_type;
    return done;
}

/* One that is left over from an earlier process of this number, or from this one before an exec. */
static void remove_leftover(void)
{
    short type = F_WRLCK;
    int old = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (old >= 0) {
        if (lock_first_byte(old, F_GETLK, &type) && type == F_UNLCK) {
            unlink(path);
        }
        close(old);
    }
}

static int make_file(void)
{
    const char *folder = getenv("CUDAMEMPOOL_LIVE_DIR");
    int length = snprintf(path, sizeof path, "%s/cudamempool-control.%lu.%ld", folder && folder[0] ? folder : "/dev/shm",
                          (unsigned long)geteuid(), (long)getpid());
    if (length >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    remove_leftover();
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void cmi_preload_control_open(void)
{
    static _Atomic bool tried;
    static const uint64_t magic_bytes = sizeof control->magic;
    if (!cmi_preload_control_is_asked_for() || atomic_exchange(&tried, true)) {
        return;
    }
    short type;
    void *memory = MAP_FAILED;
    int file = make_file(); /* stays open: with it goes the lock */
    if (file >= 0 && lock_first_byte(file, F_SETLK, &type) && ftruncate(file, sizeof *control) == 0) {
        memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (memory == MAP_FAILED) {
        cmi_preload_say("cudamempool: control: %s: %s", path, strerror(errno));
        return;
    }
    control = memory;
    state = (_Atomic uint32_t *)&control->state;
    answers = (_Atomic uint32_t *)&control->answers;
    control->version = CMPOOL_CONTROL_VERSION;
    control->bytes = sizeof *control;
    control->process = (uint64_t)getpid();
    atomic_thread_fence(memory_order_release);
    memcpy(control->magic, CMPOOL_CONTROL_MAGIC, magic_bytes);
    atomic_store(&cmi_preload_request, state);
}

void cmi_preload_control_close(void)
{
    if (atomic_exchange(&cmi_preload_request, &idle) != &idle) {
        unlink(path);
    }
}

/* ---- pause and resume -----------------------------------------------------------------------------------------------------------------
 */

static void change(uint32_t to)
{
    atomic_store(state, to);
    syscall(SYS_futex, state, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void answer(cmpool_status status, int device)
{
    control->status = status;
    control->device = device;
    atomic_fetch_add(answers, 1);
    syscall(SYS_futex, answers, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static uint64_t reserved_bytes(cmpool_t pool)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    return cmpool_stats_get(pool, &stats) == CMPOOL_OK ? stats.reserved_bytes : 0;
}

/* All pools; *device is the one that could not be resumed, and those behind it are paused still. */
static cmpool_status resume_all(int *device)
{
    cmpool_status status = CMPOOL_OK;
    for (*device = 0; *device < PRELOAD_DEVICES; ++*device) {
        cmpool_t pool = cmi_preload_pool_of(*device);
        status = pool ? cmpool_resume(pool) : CMPOOL_OK;
        if (status != CMPOOL_OK) {
            break;
        }
    }
    return status;
}

/* A file for each device: of several, those behind the first have its number in their names. */
static const char *file_of(int device, bool first, const char *name, char *text, size_t room)
{
    if (!name[0] || first) {
        return name[0] ? name : NULL;
    }
    return snprintf(text, room, "%s.%d", name, device) < (int)room ? text : name;
}

static cmpool_status pause_all(const cmpool_control *request, uint64_t *given, uint64_t *fixed, int *device)
{
    bool first = true;
    *given = *fixed = 0;
    for (*device = 0; *device < PRELOAD_DEVICES; ++*device) {
        cmpool_t pool = cmi_preload_pool_of(*device);
        if (pool) {
            char file[CMPOOL_CONTROL_TEXT_BYTES];
            uint64_t before = reserved_bytes(pool);
            cmpool_pause_request pause = {.struct_size = sizeof pause,
                                          .contents = request->contents,
                                          .tag_name = request->tag[0] ? request->tag : NULL,
                                          .file = file_of(*device, first, request->file, file, sizeof file)};
            cmpool_status status = cmpool_pause_ex(pool, &pause);
            if (status != CMPOOL_OK) {
                *fixed = pause.fixed_count;
                return status;
            }
            uint64_t after = reserved_bytes(pool);
            *given += before > after ? before - after : 0;
            first = false;
        }
    }
    return CMPOOL_OK;
}

/* By the thread that has set the state to AT_WORK. */
static void carry_out(void)
{
    cmpool_control request = *control;
    int device;
    request.tag[sizeof request.tag - 1] = request.file[sizeof request.file - 1] = '\0';
    if (request.action == CMPOOL_CONTROL_PAUSE) {
        uint64_t given, fixed;
        cmpool_status status = pause_all(&request, &given, &fixed, &device);
        uint32_t next = status == CMPOOL_OK && !request.tag[0] ? CMPOOL_CONTROL_STOPPED : CMPOOL_CONTROL_IDLE;
        int unused;
        /* One that was refused leaves nothing paused, unless the driver will not have it: then there is something to resume. */
        if (status != CMPOOL_OK && status != CMPOOL_ERR_PAUSED && resume_all(&unused) != CMPOOL_OK) {
            next = CMPOOL_CONTROL_STOPPED;
        }
        control->bytes_given = given;
        control->fixed_addresses = fixed;
        change(next);
        answer(status, device);
    } else {
        cmpool_status status = resume_all(&device);
        change(status == CMPOOL_OK ? CMPOOL_CONTROL_IDLE : CMPOOL_CONTROL_STOPPED);
        answer(status, device);
    }
}

void cmi_preload_obey(void)
{
    int kept = errno;
    cmi_preload_depth++;
    for (bool done = false; !done && atomic_load(&cmi_preload_request) != &idle;) {
        static const struct timespec patience = {.tv_sec = 1}; /* whoever was to wake us may be gone */
        uint32_t is = atomic_load(state);
        switch (is) {
        case CMPOOL_CONTROL_ASKED:
        case CMPOOL_CONTROL_RESUME:
            if (atomic_compare_exchange_strong(state, &is, CMPOOL_CONTROL_AT_WORK)) {
                if (is == CMPOOL_CONTROL_RESUME) {
                    control->action = CMPOOL_CONTROL_RESUME_PAUSED;
                }
                carry_out();
            }
            break;
        case CMPOOL_CONTROL_AT_WORK:
        case CMPOOL_CONTROL_STOPPED:
            syscall(SYS_futex, state, FUTEX_WAIT, is, &patience, NULL, 0);
            break;
        default:
            done = true;
        }
    }
    cmi_preload_depth--;
    errno = kept;
}

bool cmi_preload_waited_for_resume(cmpool_status status)
{
    bool waited = status == CMPOOL_ERR_PAUSED && atomic_load(&cmi_preload_request) != &idle;
    if (waited) {
        cmi_preload_obey();
    }
    return waited;
}
