/*
 * Memory that other processes can be given, against the text of cuda.h (CUDA 13.0): cuMemExportToShareableHandle and
 * cuMemImportFromShareableHandle with POSIX file descriptors.
 */
#include "share_fixture.h"

#include <fcntl.h>

static CUmemGenericAllocationHandle shareable(size_t bytes)
{
    CUmemAllocationProp prop = sim_test_prop(0);
    CUmemGenericAllocationHandle handle;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static int exported(CUmemGenericAllocationHandle handle)
{
    int fd = -1;
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    assert_true(fd >= 0);
    return fd;
}

/* The bytes are the same in both, and what the reader writes is seen here. */
static void another_process_has_the_same_bytes(void **state)
{
    (void)state;
    pid_t reader;
    int socket = start_reader("sim:64MiB,content", 3 * PAGE, 0x5a, 0xa5, &reader);
    sim_test_start("sim:64MiB,content");
    CUmemGenericAllocationHandle handle = shareable(3 * PAGE);
    int fd = exported(handle);
    CUdeviceptr address = open_shared(fd, 3 * PAGE);
    unsigned char *memory = (unsigned char *)(uintptr_t)address;
    assert_non_null(memory);
    memset(memory, 0x5a, 3 * PAGE);
    assert_true(send_descriptor(socket, fd));
    reader_must_have_seen_it(reader);
    for (size_t i = 0; i < 3 * PAGE; i += 4096)
        assert_int_equal(memory[i], 0xa5);
    close(socket);
    close(fd);
}

/* "requestedHandleTypes": the types that the handle may be exported as, all of them and no other. flags "must be 0". */
static void export_must_be_asked_for(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    int fd = 77;
    CUmemGenericAllocationHandle plain = sim_test_page(), handle = shareable(PAGE);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_NONE, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(NULL, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, 12345, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    assert_int_equal(fd, 77);
    CUmemAllocationProp prop = sim_test_prop(0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&handle, PAGE, &prop, 0));
    panel.set_feature(SIMCUDA_FEATURE_VMM, 0);
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void what_is_no_descriptor_of_memory_is_refused(void **state)
{
    (void)state;
    sim_test_start("sim:1GiB");
    CUmemGenericAllocationHandle handle = 5;
    int fd = exported(shareable(PAGE)), nothing = open("/dev/null", O_RDONLY);
    const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemImportFromShareableHandle(&handle, as_shareable(nothing), type));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemImportFromShareableHandle(&handle, as_shareable(-1), type));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemImportFromShareableHandle(&handle, as_shareable(fd), CU_MEM_HANDLE_TYPE_FABRIC));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemImportFromShareableHandle(NULL, as_shareable(fd), type));
    assert_int_equal(handle, 5);
    close(nothing);
    close(fd);
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemImportFromShareableHandle(&handle, as_shareable(fd), type));
}

/* In the same process it is the same memory: counted once, kept by either handle, and a race through both is one. */
static void imported_memory_is_the_memory(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB");
    CUmemGenericAllocationHandle handle = shareable(4 * PAGE), again;
    simcuda_census census = sim_test_census();
    int fd = exported(handle);
    OK(cuMemImportFromShareableHandle(&again, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    assert_int_equal(sim_test_census().free_bytes, census.free_bytes);
    CUdeviceptr base = sim_test_reserve(8 * PAGE);
    OK(cuMemMap(base, 4 * PAGE, 0, handle, 0));
    OK(cuMemMap(base + 4 * PAGE, 4 * PAGE, 0, again, 0));
    OK(sim_test_grant(base, 8 * PAGE));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(again));
    CUstream a = sim_test_stream(), b = sim_test_stream();
    assert_int_equal(panel.touch(a, base, PAGE, 1), CUDA_SUCCESS);
    assert_int_equal(panel.touch(b, base + 4 * PAGE, PAGE, 1), CUDA_SUCCESS);
    assert_int_equal(panel.findings(SIMCUDA_RACE_TOUCH), 1);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(base, 8 * PAGE));
    assert_int_equal(sim_test_census().handles, 0);
    assert_int_equal(sim_test_census().free_bytes, 64 * PAGE / 2);
}

/* What was let go of can be opened again for as long as there is a descriptor, and has its bytes. */
static void a_descriptor_keeps_the_bytes(void **state)
{
    (void)state;
    sim_test_start("sim:64MiB,content");
    CUmemGenericAllocationHandle handle = shareable(PAGE);
    int fd = exported(handle);
    CUdeviceptr first = open_shared(fd, PAGE);
    memset((void *)(uintptr_t)first, 7, PAGE);
    OK(cuMemUnmap(first, PAGE));
    OK(cuMemRelease(handle));
    assert_int_equal(sim_test_census().handles, 0);
    const unsigned char *again = (const unsigned char *)(uintptr_t)open_shared(fd, PAGE);
    assert_non_null(again);
    assert_int_equal(again[0] + again[PAGE - 1], 14);
    assert_int_equal(sim_test_census().handle_bytes, PAGE);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_process_has_the_same_bytes), /* first, see start_reader */
        cmocka_unit_test(export_must_be_asked_for),           cmocka_unit_test(what_is_no_descriptor_of_memory_is_refused),
        cmocka_unit_test(imported_memory_is_the_memory),      cmocka_unit_test(a_descriptor_keeps_the_bytes),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
