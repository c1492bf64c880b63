/*
 * The paths that need no driver, timed: a block asked for and given back over and over, by size; random sizes with many live blocks;
 * threads on streams of their own, on one stream, and the same as processes. Uses the public header and, for streams, the driver that the
 * library uses (CUDAMEMPOOL_DRIVER). `hot --help` lists the cases; one JSON line each.
 */
#include <cudamempool/cudamempool.h>

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LARGEST ((size_t)64 << 20)

static cmpool_t pool;
static void *driver_library;

static void fail(const char *what, int code)
{
    fprintf(stderr, "hot: %s: %d\n", what, code);
    exit(3);
}

static void need(cmpool_status status, const char *what)
{
    if (status != CMPOOL_OK) {
        fprintf(stderr, "hot: %s: %s\n", what, cmpool_status_name(status));
        exit(3);
    }
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- the device --------------------------------------------------------------------------------- */

static void *symbol(const char *name)
{
    void *address = dlsym(driver_library, name);
    if (!address) {
        fail(name, 0);
    }
    return address;
}

static void open_device(void)
{
    const char *path = getenv("CUDAMEMPOOL_DRIVER");
    driver_library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver_library) {
        fail(dlerror(), 0);
    }
    int (*init)(unsigned) = (int (*)(unsigned))symbol("cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))symbol("cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = (int (*)(void *))symbol("cuCtxSetCurrent");
    void *context = NULL;
    int code = init(0);
    code = code ? code : retain(&context, 0);
    code = code ? code : set_current(context);
    if (code) {
        fail("no device", code);
    }
    need(cmpool_create(&pool, NULL), "cmpool_create");
}

static cmpool_stream make_stream(void)
{
    int (*create)(void **, unsigned) = (int (*)(void **, unsigned))symbol("cuStreamCreate");
    void *stream = NULL;
    int code = create(&stream, 1);
    if (code) {
        fail("cuStreamCreate", code);
    }
    return stream;
}

/* ---- work --------------------------------------------------------------------------------------- */

static void pairs(cmpool_stream stream, size_t bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        void *block;
        need(cmpool_malloc(pool, &block, bytes, stream), "cmpool_malloc");
        need(cmpool_free(pool, block, stream), "cmpool_free");
    }
}

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Log-uniform from 512 bytes to LARGEST; the sizes are drawn ahead so that their making is not measured. */
enum { SIZES = 1 << 16 };
static size_t sizes[SIZES];

static void draw_sizes(uint64_t *state)
{
    for (unsigned i = 0; i < SIZES; i++) {
        double unit = (double)(draw(state) >> 11) * 0x1p-53;
        sizes[i] = (size_t)(512.0 * pow((double)LARGEST / 512.0, unit));
    }
}

/* One step gives a block drawn at random back and asks for one of another size; returns nanoseconds a step. */
static double mix(cmpool_stream stream, uint64_t live, uint64_t steps)
{
    uint64_t state = 88172645463325252u;
    draw_sizes(&state);
    void **blocks = calloc(live, sizeof *blocks);
    if (!blocks) {
        fail("no memory", 0);
    }
    for (uint64_t i = 0; i < live; i++) {
        need(cmpool_malloc(pool, &blocks[i], sizes[i % SIZES], stream), "cmpool_malloc");
    }
    double start = 0;
    uint64_t warm = live * 4 > steps ? steps : live * 4;
    for (uint64_t i = 0; i < warm + steps; i++) {
        if (i == warm) {
            start = now_ns();
        }
        void **block = &blocks[(unsigned __int128)draw(&state) * live >> 64];
        need(cmpool_free(pool, *block, stream), "cmpool_free");
        need(cmpool_malloc(pool, block, sizes[draw(&state) % SIZES], stream), "cmpool_malloc");
    }
    double ns = (now_ns() - start) / (double)steps;
    for (uint64_t i = 0; i < live; i++) {
        need(cmpool_free(pool, blocks[i], stream), "cmpool_free");
    }
    free(blocks);
    return ns;
}

/* ---- threads ------------------------------------------------------------------------------------ */

typedef struct worker {
    pthread_t thread;
    cmpool_stream stream;
    size_t bytes;
    uint64_t count;
    double ns; /* a pair */
} worker;

static pthread_barrier_t gate;

static void *work(void *argument)
{
    worker *me = argument;
    pairs(me->stream, me->bytes, 1000);
    pthread_barrier_wait(&gate);
    double start = now_ns();
    pairs(me->stream, me->bytes, me->count);
    me->ns = (now_ns() - start) / (double)me->count;
    return NULL;
}

/* Million pairs a second of all threads together. */
static double threads_rate(unsigned count, bool one_stream, size_t bytes, uint64_t pairs_each)
{
    worker workers[64];
    cmpool_stream shared = make_stream();
    pthread_barrier_init(&gate, NULL, count);
    for (unsigned i = 0; i < count; i++) {
        workers[i] = (worker){.stream = one_stream ? shared : make_stream(), .bytes = bytes, .count = pairs_each};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i])) {
            fail("pthread_create", 0);
        }
    }
    double rate = 0;
    for (unsigned i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        rate += 1e3 / workers[i].ns;
    }
    pthread_barrier_destroy(&gate);
    return rate;
}

/* The same as processes, each with a device and a pool of its own; forked before the driver is touched. */
static double processes_rate(unsigned count, size_t bytes, uint64_t pairs_each)
{
    int results[2];
    if (pipe(results)) {
        fail("pipe", 0);
    }
    for (unsigned i = 0; i < count; i++) {
        if (fork() == 0) {
            open_device();
            double rate = threads_rate(1, true, bytes, pairs_each);
            bool written = write(results[1], &rate, sizeof rate) == sizeof rate;
            _exit(written ? 0 : 3);
        }
    }
    double sum = 0;
    for (unsigned i = 0; i < count; i++) {
        double rate;
        if (read(results[0], &rate, sizeof rate) != sizeof rate) {
            fail("a process", 0);
        }
        sum += rate;
    }
    while (wait(NULL) > 0) {}
    close(results[0]);
    close(results[1]);
    return sum;
}

/* ---- single calls ------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void latencies(cmpool_stream stream, size_t bytes, uint64_t count)
{
    float *ns = calloc(2 * count, sizeof *ns), timer = 1e9f;
    if (!ns) {
        fail("no memory", 0);
    }
    for (unsigned i = 0; i < 1000; i++) {
        double start = now_ns();
        float cost = (float)(now_ns() - start);
        timer = cost < timer ? cost : timer;
    }
    pairs(stream, bytes, 1000);
    for (uint64_t i = 0; i < count; i++) {
        void *block;
        double start = now_ns();
        cmpool_status one = cmpool_malloc(pool, &block, bytes, stream);
        double middle = now_ns();
        cmpool_status other = cmpool_free(pool, block, stream);
        double end = now_ns();
        need(one, "cmpool_malloc");
        need(other, "cmpool_free");
        ns[2 * i] = (float)(middle - start);
        ns[2 * i + 1] = (float)(end - middle);
    }
    qsort(ns, 2 * count, sizeof *ns, by_value);
    printf("{\"case\":\"latency\",\"bytes\":%zu,\"calls\":%llu,\"timer_ns\":%.0f,\"p50_ns\":%.0f,\"p99_ns\":%.0f,\"p99.9_ns\":%.0f,"
           "\"worst_ns\":%.0f}\n",
           bytes, (unsigned long long)(2 * count), (double)timer, (double)ns[count], (double)ns[(uint64_t)(1.98 * (double)count)],
           (double)ns[(uint64_t)(1.998 * (double)count)], (double)ns[2 * count - 1]);
    free(ns);
}

/* ---- cases -------------------------------------------------------------------------------------- */

static uint64_t metadata_bytes(void)
{
    cmpool_stats stats = {.struct_size = sizeof stats};
    need(cmpool_stats_get(pool, &stats), "cmpool_stats_get");
    return stats.metadata_bytes;
}

static double best_pair(cmpool_stream stream, size_t bytes, uint64_t count)
{
    double best = 1e30;
    pairs(stream, bytes, 1000);
    for (unsigned i = 0; i < 5; i++) {
        double start = now_ns();
        pairs(stream, bytes, count / 5);
        double ns = (now_ns() - start) / (double)(count / 5);
        best = ns < best ? ns : best;
    }
    return best;
}

static const char usage[] = "usage: hot pair BYTES COUNT | mix LIVE STEPS | threads N BYTES COUNT | one-stream N BYTES COUNT |\n"
                            "           processes N BYTES COUNT | latency BYTES COUNT | metadata LIVE | calls BYTES COUNT\n"
                            "pair: best of five, ns for one malloc and free. calls: the same, not timed (for counting instructions).\n";

int main(int argc, char **argv)
{
    if (argc < 3 || !strcmp(argv[1], "--help")) {
        fputs(usage, argc < 3 ? stderr : stdout);
        return argc < 3 ? 2 : 0;
    }
    const char *name = argv[1];
    uint64_t a = strtoull(argv[2], NULL, 10), b = argc > 3 ? strtoull(argv[3], NULL, 10) : 0,
             c = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    if (!strcmp(name, "processes")) {
        printf("{\"case\":\"processes\",\"count\":%llu,\"bytes\":%llu,\"mpairs_per_s\":%.2f}\n", (unsigned long long)a,
               (unsigned long long)b, processes_rate((unsigned)a, b, c));
        return 0;
    }
    open_device();
    cmpool_stream stream = make_stream();
    if (!strcmp(name, "pair")) {
        printf("{\"case\":\"pair\",\"bytes\":%llu,\"ns\":%.2f}\n", (unsigned long long)a, best_pair(stream, a, b));
    } else if (!strcmp(name, "mix")) {
        printf("{\"case\":\"mix\",\"live\":%llu,\"ns\":%.1f}\n", (unsigned long long)a, mix(stream, a, b));
    } else if (!strcmp(name, "threads") || !strcmp(name, "one-stream")) {
        printf("{\"case\":\"%s\",\"count\":%llu,\"bytes\":%llu,\"mpairs_per_s\":%.2f}\n", name, (unsigned long long)a,
               (unsigned long long)b, threads_rate((unsigned)a, name[0] == 'o', b, c));
    } else if (!strcmp(name, "latency")) {
        latencies(stream, a, b);
    } else if (!strcmp(name, "metadata")) {
        uint64_t before = metadata_bytes(), state = 88172645463325252u;
        draw_sizes(&state);
        for (uint64_t i = 0; i < a; i++) {
            void *block;
            need(cmpool_malloc(pool, &block, sizes[i % SIZES], stream), "cmpool_malloc");
        }
        printf("{\"case\":\"metadata\",\"live\":%llu,\"before\":%llu,\"after\":%llu}\n", (unsigned long long)a, (unsigned long long)before,
               (unsigned long long)metadata_bytes());
    } else if (!strcmp(name, "calls")) {
        pairs(stream, a, b);
    } else {
        fputs(usage, stderr);
        return 2;
    }
    return 0;
}
