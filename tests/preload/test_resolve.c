/*
 * Look-ups in a program that runs with the preload library: which of them give a replacement, and that all others are as without it.
 * Started by ctest with LD_PRELOAD set; the simulated driver is the driver.
 */
#include "driver/driver_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef CUresult(CUDAAPI *look_up_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult(CUDAAPI *look_up_v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *driver;
static look_up_v2 look_up;

/* The file that a function lies in is the preload library. */
static bool is_replaced(const void *function)
{
    Dl_info info;
    return function && dladdr(function, &info) && strstr(info.dli_fname, "libcudamempool_preload.so") != NULL;
}

static bool is_drivers(const void *function)
{
    Dl_info info;
    return function && dladdr(function, &info) && strstr(info.dli_fname, "libcuda.so") != NULL;
}

static int open_driver(void **state)
{
    (void)state;
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        return 1;
    }
    void *found = dlsym(driver, "cuGetProcAddress_v2");
    memcpy(&look_up, &found, sizeof found);
    return 0;
}

static const char *const hooked[] = {
#define PRELOAD_HOOK(name, params) #name,
#include "preload/hooks.def"
};

static void by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(hooked); i++) {
        if (!is_replaced(dlsym(driver, hooked[i]))) {
            fail_msg("%s is the driver's", hooked[i]);
        }
    }
    assert_true(is_drivers(dlsym(driver, "cuInit")));
    assert_true(is_drivers(dlsym(driver, "cuMemcpy")));
    assert_true(is_drivers(dlsym(driver, "simcuda_races")));
    assert_true(is_drivers(dlsym(driver, "cuMemAlloc"))); /* the 32-bit form */
    assert_null(dlsym(driver, "cuThereIsNoSuchFunction"));
}

static void *asked(const char *name, int version, cuuint64_t flags)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    assert_int_equal(look_up(name, &found, version, flags, &status), CUDA_SUCCESS);
    assert_int_equal(status == CU_GET_PROC_ADDRESS_SUCCESS, found != NULL);
    void *without_status = NULL;
    assert_int_equal(look_up(name, &without_status, version, flags, NULL), CUDA_SUCCESS);
    assert_ptr_equal(found, without_status);
    return found;
}

static void by_the_drivers_look_up(void **state)
{
    (void)state;
    static const struct {
        const char *name, *symbol;
        int version;
        cuuint64_t flags;
    } asks[] = {
        {"cuMemAlloc", "cuMemAlloc_v2", 3020, 0},
        {"cuMemAlloc", "cuMemAlloc_v2", 13000, 2},
        {"cuMemFree", "cuMemFree_v2", 3020, 0},
        {"cuMemFreeAsync", "cuMemFreeAsync", 11020, 0},
        {"cuMemFreeAsync", "cuMemFreeAsync", 11020, 1},
        {"cuMemFreeAsync", "cuMemFreeAsync_ptsz", 11020, 2},
        {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset", 7000, 0},
        {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000, 0},
        {"cuStreamBeginCapture", "cuStreamBeginCapture", 10000, 0},
        {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010, 0},
        {"cuStreamBeginCapture", "cuStreamBeginCapture_v2_ptsz", 13000, 2},
        {"cuStreamEndCapture", "cuStreamEndCapture_ptsz", 10000, 2},
        {"cuCtxCreate", "cuCtxCreate_v2", 3020, 0},
        {"cuCtxCreate", "cuCtxCreate_v4", 12050, 0},
        {"cuGetProcAddress", "cuGetProcAddress", 11030, 0},
        {"cuGetProcAddress", "cuGetProcAddress_v2", 12000, 0},
    };
    for (size_t i = 0; i < COUNT(asks); i++) {
        void *found = asked(asks[i].name, asks[i].version, asks[i].flags);
        assert_true(is_replaced(found));
        assert_ptr_equal(found, dlsym(driver, asks[i].symbol));
    }
    assert_true(is_drivers(asked("cuInit", 2000, 0)));
    assert_true(is_drivers(asked("cuMemAlloc", 2000, 0)));
    assert_null(asked("cuMemFreeAsync", 11010, 0));
    assert_null(asked("", 0, 0));
    assert_null(asked("cuThereIsNoSuchFunction", 13000, 0));
    void *untouched = &untouched;
    assert_int_equal(look_up("cuMemAlloc", &untouched, 3020, 4, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_ptr_equal(untouched, &untouched);
    assert_int_equal(look_up("cuMemAlloc", NULL, 3020, 0, NULL), CUDA_ERROR_INVALID_VALUE);

    void *found = asked("cuGetProcAddress", 11030, 0), *inner = NULL;
    look_up_v1 first_form;
    memcpy(&first_form, &found, sizeof found);
    assert_int_equal(first_form("cuMemAlloc", &inner, 3020, 0), CUDA_SUCCESS);
    assert_ptr_equal(inner, dlsym(driver, "cuMemAlloc_v2"));
}

/* The error of a failed look-up is the program's to read, and nothing of ours is in it. */
static void errors_are_undisturbed(void **state)
{
    (void)state;
    (void)dlerror();
    assert_non_null(dlsym(driver, "cuMemAlloc_v2"));
    assert_null(dlerror());
    assert_null(dlsym(driver, "cuNothing"));
    const char *error = dlerror();
    assert_non_null(error);
    assert_non_null(strstr(error, "cuNothing"));
    assert_null(dlerror());
}

static void other_symbols(void **state)
{
    (void)state;
    assert_ptr_equal(dlsym(RTLD_DEFAULT, "puts"), dlsym(RTLD_NEXT, "puts"));
    assert_null(dlsym(RTLD_DEFAULT, "no_such_function"));
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    assert_ptr_equal(dlsym(library, "puts"), dlsym(RTLD_DEFAULT, "puts"));
}

/* A wrapper in another preloaded library asks for what is behind itself; it must not find itself. */
static void behind_the_caller(void **state)
{
    (void)state;
    int (*wrapped)(void);
    void *found = dlsym(RTLD_DEFAULT, "wrapper_getpid_twice");
    assert_non_null(found);
    memcpy(&wrapped, &found, sizeof found);
    assert_int_not_equal(wrapped(), 0);
}

static void *look_often(void *unused)
{
    (void)unused;
    void *puts_address = dlsym(RTLD_NEXT, "puts"), *alloc = dlsym(driver, "cuMemAlloc_v2");
    intptr_t bad = 0;
    for (int i = 0; i < 10000; i++) {
        bad += dlsym(RTLD_NEXT, "puts") != puts_address || dlsym(driver, "cuMemAlloc_v2") != alloc;
    }
    return (void *)(bad + !is_replaced(alloc));
}

static void from_many_threads(void **state)
{
    (void)state;
    pthread_t threads[8];
    for (size_t i = 0; i < COUNT(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, look_often, NULL), 0);
    }
    for (size_t i = 0; i < COUNT(threads); i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_name),       cmocka_unit_test(by_the_drivers_look_up), cmocka_unit_test(errors_are_undisturbed),
        cmocka_unit_test(other_symbols), cmocka_unit_test(behind_the_caller),      cmocka_unit_test(from_many_threads),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
