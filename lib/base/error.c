/*
 * The calling thread's last-error detail.
 * A thread costs one pointer of initial-exec TLS (room for more is not certain where the library is loaded late, and other TLS would
 * call the program's malloc); the record behind it is metadata memory, made at the first failure and given back when the thread ends.
 * No lock: a record belongs to its thread. Called by every room on the way out of a failure.
 */
#include "base/error.h"

#include "base/meta.h"

#include <pthread.h>
#include <string.h>

static const cmpool_error no_failure = {.status = CMPOOL_OK, .call = "", .driver_call = ""};
/* Shown by threads whose record could not be made; the numbers written meanwhile go to a scratch record that nobody reads. */
static const cmpool_error no_record = {.status = CMPOOL_ERR_OUT_OF_HOST_MEMORY, .call = "", .driver_call = ""};
static cmpool_error scratch;

static __thread const cmpool_error *detail __attribute__((tls_model("initial-exec")));

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static enum { NO_KEY, KEY } key_state;

static void thread_end(void *record)
{
    detail = NULL;
    cmi_meta_free(record, sizeof(cmpool_error));
}

static void make_key(void) { key_state = pthread_key_create(&key, thread_end) == 0 ? KEY : NO_KEY; }

cmpool_error *cmi_error_detail(void)
{
    if (detail != NULL && detail != &no_record)
        return (cmpool_error *)detail; /* made below, so not const */

    pthread_once(&key_once, make_key);
    cmpool_error *record = key_state == KEY ? cmi_meta_alloc(sizeof(cmpool_error)) : NULL;
    if (record != NULL && pthread_setspecific(key, record) != 0) {
        cmi_meta_free(record, sizeof(cmpool_error));
        record = NULL;
    }
    if (record == NULL) {
        detail = &no_record;
        return &scratch;
    }
    *record = no_failure;
    detail = record;
    return record;
}

cmpool_status cmi_error_set(cmpool_status status, const char *call)
{
    cmpool_error *record = cmi_error_detail();
    *record = no_failure;
    record->status = status;
    record->call = call;
    return status;
}

const cmpool_error *cmi_error_last(void) { return detail != NULL ? detail : &no_failure; }

void cmi_error_unload(void)
{
    if (key_state == KEY)
        pthread_key_delete(key);
}
