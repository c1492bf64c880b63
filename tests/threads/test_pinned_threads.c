/*
 * Many threads and one pool's pinned memory: each pins, fills, copies to the device, frees and trims on its own stream, near a limit that
 * makes them wait for each other's memory. What a thread wrote is there until it frees; what it copied is there when the device is done.
 */
#include "../unit/pinned_fixture.h"

#include <pthread.h>

enum { THREADS = 6, ROUNDS = 250, KEPT = 8, STRETCH = 4096 };

static cmpool_t pool;
static unsigned char *on_device;
static CUcontext context;

typedef struct kept {
    unsigned char *address;
    size_t bytes;
    unsigned char value;
} kept;

static const char *check_and_free(kept *block, CUstream stream)
{
    if (!block->address)
        return NULL;
    if (block->address[0] != block->value || block->address[block->bytes - 1] != block->value ||
        block->address[block->bytes / 2] != block->value)
        return "another thread wrote into a live block";
    cmpool_status status = cmpool_pinned_free(pool, block->address, stream);
    block->address = NULL;
    return status == CMPOOL_OK ? NULL : cmpool_status_name(status);
}

static void *work(void *argument)
{
    uintptr_t self = (uintptr_t)argument;
    uint64_t seed = self * 2654435761u + 1;
    kept blocks[KEPT] = {0};
    unsigned char last = 0;
    CUstream stream;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return "no stream";
    unsigned char *mine = on_device + self * STRETCH;
    const char *fault = NULL;
    for (int round = 0; round < ROUNDS && !fault; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        kept *block = &blocks[(seed >> 33) % KEPT];
        fault = check_and_free(block, stream);
        block->bytes = STRETCH + (seed >> 40) % (round % 4 ? 60000 : 2500000);
        void *memory = NULL;
        cmpool_status status = fault ? CMPOOL_OK : cmpool_pinned_malloc(pool, &memory, block->bytes, stream);
        if (status == CMPOOL_ERR_LIMIT) { /* the others have all of it */
            for (int i = 0; i < KEPT && !fault; i++)
                fault = check_and_free(&blocks[i], stream);
            continue;
        }
        if (status != CMPOOL_OK)
            fault = cmpool_status_name(status);
        if (fault)
            break;
        block->address = memory;
        block->value = last = (unsigned char)(1 + (seed >> 50) % 255);
        memset(memory, block->value, block->bytes);
        if (cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)mine, memory, STRETCH, stream) != CUDA_SUCCESS)
            fault = "a copy was refused";
        if (!fault && round % 3 == 0)
            fault = check_and_free(block, stream);
        if (round % 50 == 49)
            (void)cmpool_pinned_trim(pool, 0, NULL);
    }
    for (int i = 0; i < KEPT && !fault; i++)
        fault = check_and_free(&blocks[i], stream);
    if (!fault && (cuStreamSynchronize(stream) != CUDA_SUCCESS || mine[0] != last || mine[STRETCH - 1] != last))
        fault = "the device got other bytes than were in the block";
    return (void *)(uintptr_t)fault;
}

static void threads_share_pinned_memory(void **state)
{
    (void)state;
    static const char *const devices[] = {"sim:64MiB,order=eager,content", "sim:64MiB,order=lazy,content",
                                          "sim:64MiB,order=random:9,content"};
    for (size_t d = 0; d < 3; d++) {
        device_start(devices[d]);
        OK(cuCtxGetCurrent(&context));
        pool = pool_with("pinned_limit:24MiB");
        CUstream stream = sim_test_stream();
        on_device = take(pool, THREADS * STRETCH, stream);
        OK(cuStreamSynchronize(stream));
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)i), 0);
        for (int i = 0; i < THREADS; i++) {
            void *fault;
            pthread_join(threads[i], &fault);
            if (fault)
                fail_msg("%s: %s", devices[d], (const char *)fault);
        }
        assert_int_equal(panel.races(), 0);
        OK(cuCtxSynchronize());
        give(pool, on_device, stream);
        pinned_must_end(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_pinned_memory)};
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
