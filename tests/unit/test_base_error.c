/*
 * Error detail per thread, status words, log, clock and lock ranks.
 */
#include "base/base.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void *other_thread(void *argument)
{
    (void)argument;
    if (cmi_error_last()->status != CMPOOL_OK)
        return "a new thread has a failure";
    cmi_error_set(CMPOOL_ERR_LIMIT, "other");
    cmi_error_detail()->short_bytes = 5;
    return cmi_error_last()->short_bytes == 5 ? NULL : "detail not kept";
}

static void each_thread_has_its_own_detail(void **state)
{
    (void)state;
    assert_int_equal(cmi_error_last()->status, CMPOOL_OK);
    cmi_error_detail()->bytes = 9;
    assert_int_equal(cmi_error_set(CMPOOL_ERR_BUSY, "call"), CMPOOL_ERR_BUSY);
    assert_int_equal(cmi_error_last()->bytes, 0); /* set clears what was there */
    assert_string_equal(cmi_error_last()->driver_call, "");

    uint64_t before = cmi_meta_bytes();
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *fault;
        assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
        pthread_join(thread, &fault);
        assert_null(fault);
    }
    assert_int_equal(cmi_meta_bytes(), before); /* a thread's record goes with it */
    assert_int_equal(cmi_error_last()->status, CMPOOL_ERR_BUSY);
    assert_string_equal(cmi_error_last()->call, "call");
}

static void *thread_without_memory(void *argument)
{
    (void)argument;
    cmi_meta_fail(1, 1);
    cmi_error_set(CMPOOL_ERR_LIMIT, "lost");
    if (cmi_error_last()->status != CMPOOL_ERR_OUT_OF_HOST_MEMORY)
        return "a lost record does not say so";
    cmi_error_set(CMPOOL_ERR_LIMIT, "kept");
    return cmi_error_last()->status == CMPOOL_ERR_LIMIT ? NULL : "no second try";
}

static void no_host_memory_is_told(void **state)
{
    (void)state;
    pthread_t thread;
    void *fault;
    assert_int_equal(pthread_create(&thread, NULL, thread_without_memory, NULL), 0);
    pthread_join(thread, &fault);
    assert_null(fault);
}

static void statuses_have_names_and_texts(void **state)
{
    (void)state;
    assert_string_equal(cmpool_status_name(CMPOOL_ERR_LIMIT), "CMPOOL_ERR_LIMIT");
#define CMPOOL_STATUS(name, number, text)                                    \
    assert_int_equal(CMPOOL_##name, number);                                 \
    assert_string_equal(cmpool_status_name(CMPOOL_##name), "CMPOOL_" #name); \
    assert_string_equal(cmpool_status_text(CMPOOL_##name), text);
#include <cudamempool/status.def>
#undef CMPOOL_STATUS
    assert_non_null(cmpool_status_name((cmpool_status)12345));
    assert_non_null(cmpool_status_text((cmpool_status)-1));
}

static size_t captured_log(int verbose, cmi_log_level level, const char *text, char *output, size_t bytes)
{
    int ends[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    cmi_log_set_level(verbose);
    cmi_log(level, "%s", text);
    cmi_log_set_level(0);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t length = read(ends[0], output, bytes);
    close(ends[0]);
    return length > 0 ? (size_t)length : 0;
}

static void log_shows_what_was_asked_for(void **state)
{
    (void)state;
    char output[4096], text[3000];
    assert_int_equal(captured_log(0, CMI_LOG_ERROR, "bad", output, sizeof(output)), strlen("cudamempool: bad\n"));
    assert_memory_equal(output, "cudamempool: bad\n", strlen("cudamempool: bad\n"));
    assert_int_equal(captured_log(0, CMI_LOG_WARNING, "x", output, sizeof(output)), 0);
    assert_true(captured_log(1, CMI_LOG_WARNING, "x", output, sizeof(output)) > 0);
    assert_int_equal(captured_log(2, CMI_LOG_STEP, "x", output, sizeof(output)), 0);
    assert_true(captured_log(3, CMI_LOG_STEP, "x", output, sizeof(output)) > 0);

    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    size_t length = captured_log(0, CMI_LOG_ERROR, text, output, sizeof(output));
    assert_true(length > 500 && length < sizeof(text)); /* cut, in one line */
    assert_ptr_equal(memchr(output, '\n', length), output + length - 1);
}

static uint64_t frozen(void) { return 42; }

static void clock_rises_and_can_be_replaced(void **state)
{
    (void)state;
    uint64_t first = cmi_clock_ns(), second = cmi_clock_ns();
    assert_true(first > 0 && second >= first);
    cmi_clock_replace(frozen);
    assert_int_equal(cmi_clock_ns(), 42);
    cmi_clock_replace(NULL);
    assert_true(cmi_clock_ns() >= second);
}

static void bit_tricks(void **state)
{
    (void)state;
    assert_int_equal(cmi_log2_floor(1), 0);
    assert_int_equal(cmi_log2_floor(UINT64_MAX), 63);
    assert_int_equal(cmi_lowest_bit(40), 3);
    assert_false(cmi_is_power2(0));
    assert_true(cmi_is_power2((uint64_t)1 << 63));
    assert_int_equal(cmi_round_up(513, 512), 1024);
    assert_int_equal(cmi_round_down(1023, 512), 512);
    assert_int_equal(cmi_div_up(UINT64_MAX, 2), (uint64_t)1 << 63);
}

#ifdef CMI_VALIDATE
typedef void (*lock_fault)(cmi_lock *low, cmi_lock *high);

static void take_falling(cmi_lock *low, cmi_lock *high)
{
    cmi_lock_acquire(high);
    cmi_lock_acquire(low);
}

static void take_same_rank(cmi_lock *low, cmi_lock *high)
{
    cmi_lock other;
    (void)high;
    cmi_lock_init(&other, low->rank);
    cmi_lock_acquire(low);
    cmi_lock_acquire(&other);
}

static void release_unheld(cmi_lock *low, cmi_lock *high)
{
    cmi_lock_acquire(low);
    cmi_lock_release(high);
}

static void assert_unheld(cmi_lock *low, cmi_lock *high)
{
    cmi_lock_acquire(high);
    cmi_lock_assert_held(low);
}

static void lock_faults_stop_the_program(void **state)
{
    (void)state;
    static const lock_fault faults[] = {take_falling, take_same_rank, release_unheld, assert_unheld};
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(faults); i++) {
        pid_t child = fork();
        if (child == 0) {
            cmi_lock low = CMI_LOCK_INITIALIZER(CMI_RANK_DEVICE), high = CMI_LOCK_INITIALIZER(CMI_RANK_VMM);
            signal(SIGILL, SIG_DFL); /* cmocka turns it into a failure of this very test */
            signal(SIGTRAP, SIG_DFL);
            close(STDERR_FILENO);
            faults[i](&low, &high);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
    }
}
#endif

static void locks_in_order_are_fine(void **state)
{
    (void)state;
    cmi_lock low, high = CMI_LOCK_INITIALIZER(CMI_RANK_VMM);
    cmi_lock_init(&low, CMI_RANK_DEVICE);
    for (int i = 0; i < 3; i++) {
        cmi_lock_acquire(&low);
        cmi_lock_acquire(&high);
        cmi_lock_assert_held(&low);
        cmi_lock_assert_held(&high);
#ifdef CMI_VALIDATE
        assert_true(cmi_lock_rank_held(CMI_RANK_DEVICE));
#endif
        assert_false(cmi_lock_rank_held(CMI_RANK_REGISTRY));
        cmi_lock_release(&low); /* not the last one taken */
        assert_false(cmi_lock_rank_held(CMI_RANK_DEVICE));
        cmi_lock_release(&high);
    }
    cmi_lock_fini(&low);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_thread_has_its_own_detail),  cmocka_unit_test(no_host_memory_is_told),
        cmocka_unit_test(statuses_have_names_and_texts),   cmocka_unit_test(log_shows_what_was_asked_for),
        cmocka_unit_test(clock_rises_and_can_be_replaced), cmocka_unit_test(bit_tricks),
        cmocka_unit_test(locks_in_order_are_fine),
#ifdef CMI_VALIDATE
        cmocka_unit_test(lock_faults_stop_the_program),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
