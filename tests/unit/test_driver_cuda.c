/*
 * Finding the driver: which library, which functions, what is said when something is missing.
 */
#include "base/base.h"
#include "with_simcuda.h"

static char *driver_path; /* as the test run gives it */

static int setup(void **state)
{
    (void)state;
    setenv("CUDAMEMPOOL_DRIVER", driver_path, 1);
    sim_start("sim:64MiB,devices=2");
    return 0;
}

static void the_driver_is_opened_once(void **state)
{
    (void)state;
    const cmi_driver *first, *second;
    assert_int_equal(cmi_driver_open(&first), CMPOOL_OK);
    uint64_t inits = sim.calls_of("cuInit");
    assert_int_equal(inits, 1);
    assert_int_equal(cmi_driver_open(&second), CMPOOL_OK);
    assert_ptr_equal(first, second);
    assert_int_equal(sim.calls_of("cuInit"), inits);
    assert_true(first->version >= 12050);
    assert_true(cmi_driver_has_vmm(first));

    int count = 0;
    assert_int_equal(first->DeviceGetCount(&count), CUDA_SUCCESS);
    assert_int_equal(count, 2);
}

static void every_function_of_the_list_is_there(void **state)
{
    (void)state;
    const cmi_driver *driver;
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_OK);
#define CMI_DRIVER_SYMBOL(field, exported, version, need, result, params) assert_true(driver->field != NULL);
#include "driver/driver_syms.def"
#undef CMI_DRIVER_SYMBOL
}

static void a_missing_library_is_told(void **state)
{
    (void)state;
    const cmi_driver *driver;
    setenv("CUDAMEMPOOL_DRIVER", "/no/such/libcuda.so.1", 1);
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_ERR_DRIVER_MISSING);
    assert_null(driver);
    assert_string_equal(cmi_error_detail()->driver_call, "dlopen");
    setenv("CUDAMEMPOOL_DRIVER", driver_path, 1);
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_OK); /* a failure is not remembered */
}

static void a_missing_function_is_named(void **state)
{
    (void)state;
    const cmi_driver *driver;
    setenv("CUDAMEMPOOL_DRIVER", "libm.so.6", 1);
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_ERR_DRIVER_MISSING);
    assert_null(driver);
    assert_string_equal(cmi_error_detail()->driver_call, "cuInit");
    assert_int_equal(cmi_error_detail()->driver_code, CUDA_ERROR_NOT_FOUND);
}

static void what_a_driver_may_lack_is_null(void **state)
{
    (void)state;
    const cmi_driver *driver;
    sim.set_feature(SIMCUDA_FEATURE_STREAM_ID, 0);
    sim.set_feature(SIMCUDA_FEATURE_CONTEXT_EVENTS, 0);
    sim.set_feature(SIMCUDA_FEATURE_VMM, 0);
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_OK);
    assert_true(driver->StreamGetId == NULL);
    assert_true(driver->CtxRecordEvent == NULL && driver->CtxWaitEvent == NULL);
    assert_false(cmi_driver_has_vmm(driver));
    assert_true(driver->EventRecord != NULL);
}

static void a_driver_that_does_not_start_is_told(void **state)
{
    (void)state;
    const cmi_driver *driver;
    sim.fail("cuInit", 1, 1, CUDA_ERROR_NO_DEVICE, SIMCUDA_BEFORE);
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_ERR_DRIVER_MISSING);
    assert_string_equal(cmi_error_detail()->driver_call, "cuInit");
    assert_int_equal(cmi_error_detail()->driver_code, CUDA_ERROR_NO_DEVICE);

    sim.fail("cuInit", 1, 1, CUDA_ERROR_DEINITIALIZED, SIMCUDA_BEFORE);
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_ERR_SHUTTING_DOWN);

    sim.fail("cuDriverGetVersion", 1, 1, CUDA_ERROR_UNKNOWN, SIMCUDA_BEFORE);
    assert_int_equal(cmi_driver_open(&driver), CMPOOL_ERR_DRIVER_MISSING);
    assert_string_equal(cmi_error_detail()->driver_call, "cuDriverGetVersion");

    assert_int_equal(cmi_driver_open(&driver), CMPOOL_OK);
}

static void codes_become_statuses(void **state)
{
    (void)state;
    static const struct {
        CUresult code;
        cmpool_status status;
    } expected[] = {
        {CUDA_ERROR_OUT_OF_MEMORY, CMPOOL_ERR_OUT_OF_DEVICE_MEMORY},
        {CUDA_ERROR_DEINITIALIZED, CMPOOL_ERR_SHUTTING_DOWN},
        {CUDA_ERROR_INVALID_DEVICE, CMPOOL_ERR_DRIVER_MISSING},
        {CUDA_ERROR_CONTEXT_IS_DESTROYED, CMPOOL_ERR_DEVICE_LOST},
        {CUDA_ERROR_INVALID_CONTEXT, CMPOOL_ERR_DEVICE_LOST},
        {CUDA_ERROR_LAUNCH_FAILED, CMPOOL_ERR_DEVICE_LOST},
        {CUDA_ERROR_NOT_SUPPORTED, CMPOOL_ERR_UNSUPPORTED},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CMPOOL_ERR_CAPTURE},
        {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CMPOOL_ERR_CAPTURE},
        {CUDA_ERROR_INVALID_VALUE, CMPOOL_ERR_DRIVER},
        {CUDA_ERROR_TIMEOUT, CMPOOL_ERR_DRIVER},
        {CUDA_ERROR_UNKNOWN, CMPOOL_ERR_DRIVER},
    };
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(expected); i++) {
        assert_int_equal(cmi_driver_status("cuThing", expected[i].code), expected[i].status);
        assert_string_equal(cmi_error_detail()->driver_call, "cuThing");
        assert_int_equal(cmi_error_detail()->driver_code, expected[i].code);
    }
    assert_int_equal(cmi_driver_status("cuOther", CUDA_SUCCESS), CMPOOL_OK);
    assert_string_equal(cmi_error_detail()->driver_call, "cuThing"); /* success leaves the last failure alone */

    assert_string_equal(cmi_driver_code_name(CUDA_ERROR_NOT_READY), "CUDA_ERROR_NOT_READY");
    assert_string_equal(cmi_driver_code_name((CUresult)12345), "an unknown code");
}

int main(void)
{
    driver_path = strdup(getenv("CUDAMEMPOOL_DRIVER"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_driver_is_opened_once, setup),      cmocka_unit_test_setup(every_function_of_the_list_is_there, setup),
        cmocka_unit_test_setup(a_missing_library_is_told, setup),      cmocka_unit_test_setup(a_missing_function_is_named, setup),
        cmocka_unit_test_setup(what_a_driver_may_lack_is_null, setup), cmocka_unit_test_setup(a_driver_that_does_not_start_is_told, setup),
        cmocka_unit_test_setup(codes_become_statuses, setup),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(driver_path);
    return failed;
}
