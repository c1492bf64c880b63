/*
 * How cuGetProcAddress finds functions, against its documentation in cuda.h, and what functions that are not simulated do.
 */
#include "test_rt_driver.h"

static void *find(const char *name, int version, cuuint64_t flags)
{
    void *function = NULL;
    OK(get_proc_address(name, &function, version, flags, NULL));
    return function;
}

static CUdriverProcAddressQueryResult status_of(const char *name, int version)
{
    CUdriverProcAddressQueryResult status = 99;
    void *function;
    OK(get_proc_address(name, &function, version, 0, &status));
    assert_true((function != NULL) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
    return status;
}

/* "If the specified version is greater than or equal to the version in which the driver symbol was introduced, this API will return the
 * function pointer to the corresponding versioned function." */
static void version_selects_the_form(void **state)
{
    (void)state;
    assert_ptr_equal(find("cuMemAlloc", 3020, 0), test_symbol("cuMemAlloc_v2"));
    assert_ptr_equal(find("cuMemAlloc", 13000, 0), test_symbol("cuMemAlloc_v2"));
    assert_ptr_equal(find("cuMemAlloc", 2000, 0), test_symbol("cuMemAlloc"));
    assert_ptr_equal(find("cuCtxCreate", 3020, 0), test_symbol("cuCtxCreate_v2"));
    assert_ptr_equal(find("cuCtxCreate", 11040, 0), test_symbol("cuCtxCreate_v3"));
    assert_ptr_equal(find("cuCtxCreate", 13000, 0), test_symbol("cuCtxCreate_v4"));
    assert_ptr_equal(find("cuDevicePrimaryCtxReset", 7000, 0), test_symbol("cuDevicePrimaryCtxReset"));
    assert_ptr_equal(find("cuDevicePrimaryCtxReset", 11000, 0), test_symbol("cuDevicePrimaryCtxReset_v2"));
    assert_ptr_equal(find("cuStreamBeginCapture", 10000, 0), test_symbol("cuStreamBeginCapture"));
    assert_ptr_equal(find("cuStreamBeginCapture", 10010, 0), test_symbol("cuStreamBeginCapture_v2"));
    assert_ptr_equal(find("cuCtxGetDevice", 2000, 0), test_symbol("cuCtxGetDevice"));
    assert_ptr_equal(find("cuCtxGetDevice", 13000, 0), test_symbol("cuCtxGetDevice_v2"));
}

static void per_thread_flag_selects_the_twin(void **state)
{
    const cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, legacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    (void)state;
    assert_ptr_equal(find("cuMemFreeAsync", 11020, per_thread), test_symbol("cuMemFreeAsync_ptsz"));
    assert_ptr_equal(find("cuMemFreeAsync", 11020, legacy), test_symbol("cuMemFreeAsync"));
    assert_ptr_equal(find("cuMemFreeAsync", 11020, 0), test_symbol("cuMemFreeAsync"));
    assert_ptr_equal(find("cuMemcpyHtoD", 7000, per_thread), test_symbol("cuMemcpyHtoD_v2_ptds"));
    /* before the per-thread form appeared, and where there is none */
    assert_ptr_equal(find("cuMemcpyHtoD", 3020, per_thread), test_symbol("cuMemcpyHtoD_v2"));
    assert_ptr_equal(find("cuMemAlloc", 3020, per_thread), test_symbol("cuMemAlloc_v2"));
}

static void lookup_finds_itself(void **state)
{
    (void)state;
    assert_ptr_equal(find("cuGetProcAddress", 11030, 0), test_symbol("cuGetProcAddress"));
    assert_ptr_equal(find("cuGetProcAddress", 12000, 0), test_symbol("cuGetProcAddress_v2"));
    CUresult (*old)(const char *, void **, int, cuuint64_t);
    TEST_ASSIGN(old, find("cuGetProcAddress", 11030, 0));
    void *function = NULL;
    OK(old("cuMemAlloc", &function, 3020, 0));
    assert_ptr_equal(function, test_symbol("cuMemAlloc_v2"));
}

/* "The API will return CUDA_SUCCESS and set the returned pfn to NULL if ..." */
static void absent_functions_are_no_error(void **state)
{
    (void)state;
    assert_int_equal(status_of("cuMemAlloc", 3020), CU_GET_PROC_ADDRESS_SUCCESS);
    assert_int_equal(status_of("cuMemAlloc", 1000), CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    assert_int_equal(status_of("cuCtxRecordEvent", 12040), CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    assert_int_equal(status_of("cuMemAlloc_v2", 3020), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    assert_int_equal(status_of("cuNoSuchThing", 13000), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    assert_int_equal(status_of("", 0), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

static void bad_questions_are_refused(void **state)
{
    void *function;
    (void)state;
    GIVES(CUDA_ERROR_INVALID_VALUE, get_proc_address(NULL, &function, 12000, 0, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, get_proc_address("cuInit", NULL, 12000, 0, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, get_proc_address("cuInit", &function, 13000 + 10, 0, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, get_proc_address("cuInit", &function, 12000, 1u << 7, NULL));
}

static void features_switched_off_are_absent(void **state)
{
    (void)state;
    const struct {
        simcuda_feature feature;
        const char *name;
    } list[] = {{SIMCUDA_FEATURE_VMM, "cuMemMap"},
                {SIMCUDA_FEATURE_STREAM_ID, "cuStreamGetId"},
                {SIMCUDA_FEATURE_CONTEXT_EVENTS, "cuCtxRecordEvent"},
                {SIMCUDA_FEATURE_ASYNC_POOLS, "cuMemAllocAsync"},
                {SIMCUDA_FEATURE_NOTIFICATIONS, "cuDeviceRegisterAsyncNotification"}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        assert_int_equal(status_of(list[i].name, 13000), CU_GET_PROC_ADDRESS_SUCCESS);
        panel.set_feature(list[i].feature, 0);
        assert_int_equal(status_of(list[i].name, 13000), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        panel.set_feature(list[i].feature, 1);
        assert_int_equal(status_of(list[i].name, 13000), CU_GET_PROC_ADDRESS_SUCCESS);
    }
}

/* Every name of the list resolves to the symbol of the list at its own version. */
static void whole_list_resolves(void **state)
{
    (void)state;
    unsigned seen = 0;
#define SIM_CALL(name, symbol, since, stream, feature) SIM_STUB(name, symbol, since, stream)
#define ANY 0
#define LEGACY CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
#define SIM_STUB(name, symbol, since, stream)                           \
    assert_ptr_equal(find(#name, since, stream), test_symbol(#symbol)); \
    seen++;
#include "sim_symbols.def"
    assert_true(seen > 600);
}

static void unsupported_calls_say_so(void **state)
{
    (void)state;
    uint64_t before = panel.findings(SIMCUDA_UNSUPPORTED_CALL);
    CUresult (*launch)(void);
    TEST_ASSIGN(launch, find("cuLaunchKernel", 4000, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, launch());
    GIVES(CUDA_ERROR_NOT_SUPPORTED, launch());
    assert_int_equal(panel.findings(SIMCUDA_UNSUPPORTED_CALL), before + 2);
    assert_non_null(strstr(panel.finding_text(0), "cuLaunchKernel"));
    CUresult (*export_table)(const void **, const CUuuid *);
    const void *table = &export_table;
    CUuuid id = {{0}};
    TEST_ASSIGN(export_table, find("cuGetExportTable", 3000, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, export_table(&table, &id));
    assert_null(table);
}

static void errors_have_names(void **state)
{
    const char *text;
    (void)state;
    OK(cu.GetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(cu.GetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "out of memory");
    OK(cu.GetErrorName(CUDA_SUCCESS, &text));
    assert_string_equal(text, "CUDA_SUCCESS");
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.GetErrorName(12345, &text));
    assert_null(text);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.GetErrorString(12345, &text));
    assert_null(text);
    int version = 0;
    OK(cu.DriverGetVersion(&version));
    assert_int_equal(version, 13000);
}

static int setup(void **state)
{
    (void)state;
    start("sim:1GiB");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(version_selects_the_form, setup),  cmocka_unit_test_setup(per_thread_flag_selects_the_twin, setup),
        cmocka_unit_test_setup(lookup_finds_itself, setup),       cmocka_unit_test_setup(absent_functions_are_no_error, setup),
        cmocka_unit_test_setup(bad_questions_are_refused, setup), cmocka_unit_test_setup(features_switched_off_are_absent, setup),
        cmocka_unit_test_setup(whole_list_resolves, setup),       cmocka_unit_test_setup(unsupported_calls_say_so, setup),
        cmocka_unit_test_setup(errors_have_names, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
