/*
 * Enter and leave: whatever the driver answers, the thread's context and capture mode are the caller's own again.
 */
#include "base/base.h"
#include "with_simcuda.h"

static const cmi_driver *driver;
static CUcontext contexts[2]; /* [0] is the caller's, [1] the one to be entered */

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
    assert_int_equal(driver->ThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    return mode;
}

static CUcontext current(void)
{
    CUcontext context = NULL;
    assert_int_equal(driver->CtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
}

static int setup(void **state)
{
    (void)state;
    sim_start("sim:64MiB,devices=2");
    if (cmi_driver_open(&driver) != CMPOOL_OK)
        return 1;
    for (int i = 0; i < 2; i++)
        if (driver->DevicePrimaryCtxRetain(&contexts[i], i) != CUDA_SUCCESS)
            return 1;
    driver->CtxSetCurrent(contexts[0]);
    exchange(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    return 0;
}

static void assert_callers_own(void)
{
    assert_ptr_equal(current(), contexts[0]);
    assert_int_equal(exchange(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

static void a_scope_changes_and_restores(void **state)
{
    (void)state;
    cmi_driver_scope scope;
    assert_int_equal(cmi_driver_enter(&scope, driver, contexts[1]), CMPOOL_OK);
    assert_ptr_equal(current(), contexts[1]);
    assert_int_equal(exchange(CU_STREAM_CAPTURE_MODE_RELAXED), CU_STREAM_CAPTURE_MODE_RELAXED);
    cmi_driver_leave(&scope);
    assert_callers_own();
}

static void scopes_nest(void **state)
{
    (void)state;
    cmi_driver_scope outer, inner;
    assert_int_equal(cmi_driver_enter(&outer, driver, contexts[1]), CMPOOL_OK);
    assert_int_equal(cmi_driver_enter(&inner, driver, contexts[0]), CMPOOL_OK);
    assert_ptr_equal(current(), contexts[0]);
    cmi_driver_leave(&inner);
    assert_ptr_equal(current(), contexts[1]);
    cmi_driver_leave(&outer);
    assert_callers_own();
}

static void a_thread_without_a_context_has_none_afterwards(void **state)
{
    (void)state;
    driver->CtxSetCurrent(NULL);
    cmi_driver_scope scope;
    assert_int_equal(cmi_driver_enter(&scope, driver, contexts[1]), CMPOOL_OK);
    assert_ptr_equal(current(), contexts[1]);
    cmi_driver_leave(&scope);
    assert_null(current());
}

static void the_callers_context_needs_no_push(void **state)
{
    (void)state;
    sim.counts_reset();
    cmi_driver_scope scope;
    assert_int_equal(cmi_driver_enter(&scope, driver, contexts[0]), CMPOOL_OK);
    cmi_driver_leave(&scope);
    assert_int_equal(sim.calls_of("cuCtxPushCurrent_v2") + sim.calls_of("cuCtxPushCurrent"), 0);
    assert_callers_own();
}

/* The nth driver call of a scope fails, before or after its effect: the caller's state is back in each case. */
static void every_failure_restores(void **state)
{
    (void)state;
    static const simcuda_when when[] = {SIMCUDA_BEFORE, SIMCUDA_AFTER};
    unsigned refused = 0, passed = 0;
    for (size_t w = 0; w < CMI_ARRAY_LENGTH(when); w++) {
        for (uint64_t nth = 1;; nth++) {
            uint64_t struck = sim.failures_injected();
            sim.fail("*", nth, 1, CUDA_ERROR_UNKNOWN, when[w]);
            cmi_driver_scope scope;
            cmpool_status status = cmi_driver_enter(&scope, driver, contexts[1]);
            if (status == CMPOOL_OK) {
                cmi_driver_leave(&scope);
                passed++;
            } else {
                assert_int_equal(status, CMPOOL_ERR_DRIVER);
                refused++;
            }
            bool reached = sim.failures_injected() > struck;
            sim.fail_clear();
            assert_callers_own();
            if (!reached)
                break;
        }
    }
    assert_true(refused >= 6 && passed >= 4); /* three calls on the way in, two on the way out, each in two ways */
}

static void a_dead_context_is_refused(void **state)
{
    (void)state;
    sim.fail("cuCtxPushCurrent", 1, 1, CUDA_ERROR_CONTEXT_IS_DESTROYED, SIMCUDA_BEFORE);
    cmi_driver_scope scope;
    assert_int_equal(cmi_driver_enter(&scope, driver, contexts[1]), CMPOOL_ERR_DEVICE_LOST);
    assert_string_equal(cmi_error_detail()->driver_call, "cuCtxPushCurrent");
    sim.fail_clear();
    assert_callers_own();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_scope_changes_and_restores, setup),
        cmocka_unit_test_setup(scopes_nest, setup),
        cmocka_unit_test_setup(a_thread_without_a_context_has_none_afterwards, setup),
        cmocka_unit_test_setup(the_callers_context_needs_no_push, setup),
        cmocka_unit_test_setup(every_failure_restores, setup),
        cmocka_unit_test_setup(a_dead_context_is_refused, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
