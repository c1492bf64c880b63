/*
 * What the options ask to be told without a call for it: reports and snapshots at a refusal, a snapshot after a signal, one at the end of
 * the process, figures in the live page for readers that wish for them. Owns the process' files and counts, all atomic, and the handler of
 * the signal; no lock. Called by every public function on its way out, and by lifecycle.c.
 */
#include "api/inspect.h"

#include "api/registry.h"
#include "inspect/refusal.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static const char standard_file[] = "cudamempool-%p.json";

_Atomic bool cmi_snapshot_is_due;
static _Atomic uint64_t signal_file, exit_file; /* numbers of texts */
static _Atomic int caught_signal;
static _Atomic unsigned refusals_written;
static _Atomic uint64_t steps;

static void say_if_failed(cmpool_status status, const char *pattern)
{
    if (status != CMPOOL_OK) {
        cmi_log(CMI_LOG_ERROR, "snapshot to %s: %s", pattern, cmpool_status_text(status));
    }
}

/* ---- signal ------------------------------------------------------------------------------------------- */

static void on_signal(int number)
{
    (void)number;
    atomic_store_explicit(&cmi_snapshot_is_due, true, memory_order_relaxed);
}

static void catch_signal(int number)
{
    int none = 0;
    struct sigaction old, ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (!atomic_compare_exchange_strong(&caught_signal, &none, number)) {
        if (none != number) {
            cmi_log(CMI_LOG_ERROR, "snapshot_signal: signal %d is in use for this already, %d is not", none, number);
        }
        return;
    }
    bool ours_to_take = sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_DFL;
    if (!ours_to_take || sigaction(number, &ours, NULL) != 0) {
        cmi_log(CMI_LOG_ERROR, "snapshot_signal: signal %d is used by the program, or cannot be caught", number);
        atomic_store(&caught_signal, 0);
    }
}

/* All pools that are shown, for a reader that asked. */
static void publish_all(void)
{
    for (int i = 0; i < CMI_MAX_DEVICES; i++) {
        cmi_device *device = cmi_registry_device(i);
        if (device) {
            cmi_lock_acquire(&device->lock);
            for (cmi_pool *pool = device->pools; pool; pool = pool->next) {
                if (pool->shown) {
                    cmi_page_publish(pool);
                }
            }
            cmi_lock_release(&device->lock);
        }
    }
}

void cmi_watch_serve_wish(void)
{
    if (cmi_page_take_wish()) {
        publish_all();
    }
    if (atomic_exchange(&cmi_snapshot_is_due, false)) {
        const char *pattern = cmi_options_text(atomic_load(&signal_file));
        pattern = pattern[0] ? pattern : standard_file;
        say_if_failed(cmi_inspect_snapshot_to(pattern, NULL, CMI_SNAPSHOT_SIGNAL), pattern);
    }
}

/* ---- the life of the process -------------------------------------------------------------------------- */

void cmi_watch_process(const cmi_options *options)
{
    if (options->stacks) {
        cmi_stacks_set((uint32_t)options->stacks);
    }
    if (options->nvtx) {
        cmi_nvtx_open();
    }
    if (options->snapshot_at_exit) {
        atomic_store(&exit_file, options->snapshot_at_exit);
    }
    if (options->snapshot_signal) {
        atomic_store(&signal_file, options->snapshot_file);
        catch_signal((int)options->snapshot_signal);
    }
}

/* What was recorded so far goes into the files. */
static void drain_traces(void)
{
    for (int i = 0; i < CMI_MAX_DEVICES; i++) {
        cmi_device *device = cmi_registry_device(i);
        if (device && device->tracer) {
            cmi_tracer_drain(device->tracer, &device->lock, true);
        }
    }
}

cmpool_status cmpool_step(void)
{
    cmpool_status status = cmi_registry_usable();
    uint64_t step = status == CMPOOL_OK ? atomic_fetch_add(&steps, 1) : 0;
    for (int i = 0; i < CMI_MAX_DEVICES && status == CMPOOL_OK; i++) {
        cmi_device *device = cmi_registry_device(i);
        if (device) {
            cmi_lock_acquire(&device->lock);
            if (device->tracer) {
                cmi_tracer_append(device->tracer, CMI_TRACED_STEP, 0, step, 0);
            }
            cmi_lock_release(&device->lock);
        }
    }
    return cmi_registry_finish(status, "cmpool_step");
}

void cmi_watch_end(void)
{
    drain_traces();
    const char *pattern = cmi_options_text(atomic_load(&exit_file));
    if (pattern[0]) {
        say_if_failed(cmi_inspect_snapshot_to(pattern, NULL, CMI_SNAPSHOT_EXIT), pattern);
    }
    cmi_page_close();
    int number = atomic_exchange(&caught_signal, 0);
    struct sigaction old;
    if (number && sigaction(number, NULL, &old) == 0 && old.sa_handler == on_signal) {
        signal(number, SIG_DFL);
    }
}

/* ---- refusals ----------------------------------------------------------------------------------------- */

static void print(const cmpool_refusal *refusal)
{
    char text[4096];
    cmi_refusal_text(refusal, text, sizeof text);
    for (char *line = text, *next; *line; line = next) {
        next = line;
        while (*next && *next != '\n') {
            next++;
        }
        int length = (int)(next - line);
        next += *next == '\n';
        cmi_log(CMI_LOG_ERROR, "%.*s", length, line);
    }
}

void cmi_watch_refusal(cmpool_t pool)
{
    cmi_entry entry;
    if (cmi_registry_enter(pool, &entry) != CMPOOL_OK) {
        return;
    }
    cmpool_refusal refusal = entry.pool->refusal;
    cmpool_refusal_fn refused = entry.pool->refused;
    void *user = entry.pool->refused_user;
    cmi_options options = entry.pool->options;
    refusal.verdict = cmi_refusal_verdict(&refusal);
    cmi_page_note_refusal(entry.pool, refusal.verdict);
    cmi_registry_leave(&entry);
    cmpool_error kept = *cmi_error_detail();
    if (options.nvtx && cmi_nvtx_is_on()) {
        cmi_nvtx_mark(CMI_STEP_REFUSE, refusal.request_bytes);
    }
    if (options.refusal_report) {
        print(&refusal);
    }
    const char *pattern = cmi_options_text(options.snapshot_on_refusal);
    if (pattern[0] && atomic_load(&refusals_written) < options.snapshot_refusals) {
        unsigned number = atomic_fetch_add(&refusals_written, 1) + 1;
        if (number <= options.snapshot_refusals) {
            say_if_failed(cmi_inspect_snapshot_to(pattern, &number, CMI_SNAPSHOT_REFUSAL), pattern);
        }
    }
    if (refused) {
        refused(user, &refusal);
    }
    *cmi_error_detail() = kept; /* the program may have made calls that failed */
}

cmpool_status cmpool_refusal_get(cmpool_t pool, cmpool_refusal *refusal)
{
    cmi_entry entry;
    bool sound = refusal && refusal->struct_size == sizeof *refusal;
    cmpool_status status = sound ? cmi_registry_enter(pool, &entry) : CMPOOL_ERR_INVALID_ARGUMENT;
    if (status == CMPOOL_OK) {
        if (entry.pool->refusal.number) {
            *refusal = entry.pool->refusal;
            refusal->verdict = cmi_refusal_verdict(refusal);
        } else {
            status = CMPOOL_ERR_INVALID_ARGUMENT;
        }
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_refusal_get");
}

size_t cmpool_refusal_text(const cmpool_refusal *refusal, char *text, size_t bytes)
{
    bool sound = refusal && refusal->struct_size == sizeof *refusal && refusal->holder_count <= CMPOOL_HOLDERS && text;
    return sound ? cmi_refusal_text(refusal, text, bytes) : 0;
}

cmpool_status cmpool_set_refusal_callback(cmpool_t pool, cmpool_refusal_fn fn, void *user)
{
    cmi_entry entry;
    cmpool_status status = cmi_registry_enter(pool, &entry);
    if (status == CMPOOL_OK) {
        entry.pool->refused = fn;
        entry.pool->refused_user = user;
        cmi_registry_leave(&entry);
    }
    return cmi_registry_finish(status, "cmpool_set_refusal_callback");
}
