/*
 * Device check: a block reaches another stream only after every use before its free, and nobody on the host waits for that. Kernels that
 * hold their stream until they are told (gates) make the device as late as it can be; contents that come out right are the proof. The
 * first case shows that a wrong order would be seen. Part "order" of tools/gpu-check.sh.
 */
#include "gpu_pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* At the tight limit there is room for one block. The simulated device moves bytes by hand. */
#define BLOCK (gpu_simulated ? 6 * MIB : 24 * MIB)
#define TIGHT (gpu_simulated ? "limit:8MiB" : "limit:32MiB")

static unsigned rounds(void) { return gpu_simulated ? 2 : 20; }

/* Two streams that nobody orders: the check must find wrong words, or it finds nothing elsewhere either. */
static void a_race_is_seen(void)
{
    CUdeviceptr address;
    CUstream one = gpu_stream(), other = gpu_stream();
    void (*forget)(void);
    void *found = dlsym(RTLD_DEFAULT, "simcuda_findings_reset");
    memcpy(&forget, &found, sizeof forget);
    MUST(cu.MemAlloc(&address, BLOCK));
    const void *block = (const void *)(uintptr_t)address;
    gpu_fill(one, block, BLOCK, 1);
    MUST(cu.StreamSynchronize(one));
    int gate = gpu_gate_close(one, GPU_PATIENCE_NS);
    gpu_fill(one, block, BLOCK, 2);
    gpu_check(other, block, BLOCK, 2); /* sees 1: the gate is closed */
    MUST(cu.StreamSynchronize(other));
    gpu_gate_open(gate);
    uint64_t wrong = gpu_wrong_words();
    EXPECT(!gpu_gate_gave_up(gate), "two streams do not run at the same time here: nothing below would prove anything");
    EXPECT(wrong == BLOCK / sizeof(uint32_t), "of %zu words that had to be wrong %llu were", BLOCK / sizeof(uint32_t),
           (unsigned long long)wrong);
    MUST(cu.MemFree(address));
    if (forget)
        forget();
}

/*
 * On `one` a block is filled, checked behind a closed gate, and freed; `other` asks for as much, at a limit that leaves no other memory.
 * Its fill must come after the check. The request must not wait for the gate.
 */
static void reuse_on_another_stream(void)
{
    void *block, *next;
    cmpool_t pool;
    CUstream one = gpu_stream(), other = gpu_stream();
    DONE(pool_make(&pool, TIGHT));
    for (uint32_t round = 0; round < rounds(); round++) {
        DONE(cmpool_malloc(pool, &block, BLOCK, one));
        gpu_fill(one, block, BLOCK, round);
        int gate = gpu_gate_close(one, GPU_PATIENCE_NS);
        gpu_check(one, block, BLOCK, round);
        DONE(cmpool_free(pool, block, one));
        DONE(cmpool_malloc(pool, &next, BLOCK, other));
        gpu_fill(other, next, BLOCK, ~round);
        gpu_check(other, next, BLOCK, ~round);
        gpu_gate_open(gate);
        DONE(cmpool_free(pool, next, other));
        contents_must_be_right();
        EXPECT(!gpu_gate_gave_up(gate), "the host waited for a stream");
    }
    EXPECT(pool_figures(pool).device_waits > 0, "no stream was made to wait");
    EXPECT(pool_figures(pool).host_waits == 0 || gpu_driver_version < 12050, "the host waited");
    pool_end(pool);
}

/* The same stream has its memory back at once, behind a closed gate too. */
static void reuse_on_the_same_stream(void)
{
    void *block, *next;
    cmpool_t pool;
    CUstream stream = gpu_stream();
    DONE(pool_make(&pool, TIGHT));
    DONE(cmpool_malloc(pool, &block, BLOCK, stream));
    int gate = gpu_gate_close(stream, GPU_PATIENCE_NS);
    gpu_fill(stream, block, BLOCK, 1);
    gpu_check(stream, block, BLOCK, 1);
    DONE(cmpool_free(pool, block, stream));
    DONE(cmpool_malloc(pool, &next, BLOCK, stream));
    EXPECT(next == block, "another block was taken");
    gpu_fill(stream, next, BLOCK, 2);
    gpu_check(stream, next, BLOCK, 2);
    DONE(cmpool_free(pool, next, stream));
    gpu_gate_open(gate);
    contents_must_be_right();
    EXPECT(!gpu_gate_gave_up(gate) && pool_figures(pool).host_waits == 0, "the host waited");
    pool_end(pool);
}

/* A block of `one` that `other` still reads behind a gate when it is freed: the next owner on `one` comes after that. */
static void recorded_use(void)
{
    void *block, *next;
    cmpool_t pool;
    CUstream one = gpu_stream(), other = gpu_stream();
    CUevent filled = gpu_event();
    DONE(pool_make(&pool, TIGHT));
    for (uint32_t round = 0; round < rounds(); round++) {
        DONE(cmpool_malloc(pool, &block, BLOCK, one));
        gpu_fill(one, block, BLOCK, round);
        MUST(cu.EventRecord(filled, one));
        MUST(cu.StreamWaitEvent(other, filled, 0));
        int gate = gpu_gate_close(other, GPU_PATIENCE_NS);
        gpu_check(other, block, BLOCK, round);
        DONE(cmpool_record_use(pool, block, other));
        DONE(cmpool_free(pool, block, one));
        DONE(cmpool_malloc(pool, &next, BLOCK, one));
        gpu_fill(one, next, BLOCK, ~round);
        gpu_gate_open(gate);
        DONE(cmpool_free(pool, next, one));
        contents_must_be_right();
        EXPECT(!gpu_gate_gave_up(gate), "the host waited for a stream");
    }
    pool_end(pool);
}

/* Memory without a stream: what was freed waits for everything that the context had been given, streams of which the pool knows nothing
 * too. */
static void unordered(void)
{
    void *block, *next;
    cmpool_t pool;
    CUstream one = gpu_stream(), other = gpu_stream();
    if (gpu_driver_version < 12050) {
        gpu_skip("this driver has no events of a context (CUDA 12.5): the host waits there");
        return;
    }
    DONE(pool_make(&pool, TIGHT));
    for (uint32_t round = 0; round < rounds(); round++) {
        DONE(cmpool_malloc_unordered(pool, &block, BLOCK));
        gpu_fill(one, block, BLOCK, round);
        int gate = gpu_gate_close(one, GPU_PATIENCE_NS);
        gpu_check(one, block, BLOCK, round);
        DONE(cmpool_free_unordered(pool, block));
        DONE(cmpool_malloc_unordered(pool, &next, BLOCK));
        gpu_fill(other, next, BLOCK, ~round);
        gpu_check(other, next, BLOCK, ~round);
        gpu_gate_open(gate);
        DONE(cmpool_free_unordered(pool, next));
        contents_must_be_right();
        EXPECT(!gpu_gate_gave_up(gate), "the host waited for a stream");
    }
    pool_end(pool);
}

/* Pages that move to an address of another stream while work through the old address stands behind a gate. */
static void moved_while_in_use(void)
{
    enum { COUNT = 8 };
    void *block[COUNT], *large;
    cmpool_t pool;
    CUstream one = gpu_stream(), other = gpu_stream();
    DONE(pool_make(&pool, "limit:64MiB"));
    for (uint32_t round = 0; round < rounds(); round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            DONE(cmpool_malloc(pool, &block[i], 8 * MIB, one));
            gpu_fill(one, block[i], 8 * MIB, round + i);
        }
        int gate = gpu_gate_close(one, GPU_PATIENCE_NS);
        for (unsigned i = 0; i < COUNT; i++)
            gpu_check(one, block[i], 8 * MIB, round + i);
        for (unsigned i = 0; i < COUNT; i += 2)
            DONE(cmpool_free(pool, block[i], one));
        DONE(cmpool_malloc(pool, &large, 32 * MIB, other));
        gpu_fill(other, large, 32 * MIB, ~round);
        gpu_check(other, large, 32 * MIB, ~round);
        gpu_gate_open(gate);
        for (unsigned i = 1; i < COUNT; i += 2)
            gpu_check(one, block[i], 8 * MIB, round + i);
        contents_must_be_right();
        EXPECT(!gpu_gate_gave_up(gate), "the host waited for a stream");
        DONE(cmpool_free(pool, large, other));
        for (unsigned i = 1; i < COUNT; i += 2)
            DONE(cmpool_free(pool, block[i], one));
    }
    EXPECT(pool_figures(pool).page_moves > 0, "no page was moved");
    pool_end(pool);
}

/* ---- random programs ------------------------------------------------------------------------------------------------------------------
 */

enum { STREAMS = 4, LIVE = 24 };

typedef struct player {
    pthread_t thread;
    cmpool_t pool;
    CUstream stream[STREAMS];
    uint64_t random;
    unsigned steps;
} player;

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Blocks of drawn sizes on drawn streams: filled, delayed, checked on their stream, freed there, until the steps are over. */
static void play(player *me)
{
    struct {
        void *at;
        size_t bytes;
        CUstream stream;
        uint32_t seed;
    } live[LIVE] = {0};
    for (unsigned step = 0; step < me->steps + LIVE; step++) {
        unsigned at = step < me->steps ? (unsigned)(draw(&me->random) % LIVE) : step - me->steps;
        if (live[at].at) {
            gpu_check(live[at].stream, live[at].at, live[at].bytes, live[at].seed);
            DONE(cmpool_free(me->pool, live[at].at, live[at].stream));
            live[at].at = NULL;
        }
        if (step >= me->steps)
            continue;
        live[at].bytes = (size_t)512 << draw(&me->random) % 13;
        live[at].stream = me->stream[draw(&me->random) % STREAMS];
        live[at].seed = (uint32_t)draw(&me->random);
        DONE(cmpool_malloc(me->pool, &live[at].at, live[at].bytes, live[at].stream));
        if (draw(&me->random) % 8 == 0)
            gpu_spin(live[at].stream, 50000);
        gpu_fill(live[at].stream, live[at].at, live[at].bytes, live[at].seed);
    }
}

static void random_streams(void)
{
    player me = {.random = 88172645463325252u, .steps = gpu_simulated ? 400 : 40000};
    for (unsigned i = 0; i < STREAMS; i++)
        me.stream[i] = gpu_stream();
    DONE(pool_make(&me.pool, "limit:64MiB"));
    play(&me);
    contents_must_be_right();
    pool_end(me.pool);
}

static void *player_main(void *argument)
{
    CUresult code = cu.CtxSetCurrent(gpu_context);
    if (code != CUDA_SUCCESS)
        gpu_fail("cuCtxSetCurrent gave %s", gpu_code(code));
    else
        play(argument);
    return NULL;
}

static void play_in_threads(bool per_thread_streams)
{
    enum { THREADS = 8 };
    static player players[THREADS];
    cmpool_t pool;
    DONE(pool_make(&pool, "limit:192MiB"));
    for (unsigned i = 0; i < THREADS; i++) {
        players[i] = (player){.pool = pool, .random = 1000003 + i, .steps = gpu_simulated ? 100 : 4000};
        for (unsigned j = 0; j < STREAMS; j++)
            players[i].stream[j] = per_thread_streams ? CU_STREAM_PER_THREAD : gpu_stream();
        EXPECT(pthread_create(&players[i].thread, NULL, player_main, &players[i]) == 0, "no thread");
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(players[i].thread, NULL);
    contents_must_be_right();
    pool_end(pool);
}

static void random_threads(void) { play_in_threads(false); }
static void per_thread_default_streams(void) { play_in_threads(true); }

static const gpu_case cases[] = {
    {"a_race_is_seen", a_race_is_seen, false},
    {"reuse_on_another_stream", reuse_on_another_stream, false},
    {"reuse_on_the_same_stream", reuse_on_the_same_stream, false},
    {"recorded_use", recorded_use, false},
    {"unordered", unordered, false},
    {"moved_while_in_use", moved_while_in_use, false},
    {"random_streams", random_streams, false},
    {"random_threads", random_threads, false},
    {"per_thread_default_streams", per_thread_default_streams, false},
};
GPU_MAIN(cases)
