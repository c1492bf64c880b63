/*
 * The memory of CUDA graphs. A graph uses the addresses it was captured with at every launch, so what is allocated during a capture comes
 * from a capture set: nobody else gets that memory while graphs that use it live, and no page of it moves, whatever the pool does for
 * others between two launches.
 */
#include "example.h"

enum { STEPS = 10, LAYERS = 4, SIZES = 3 };

#define GRAPH_CALLS(CALL)                                                                   \
    CALL(cuStreamBeginCapture_v2, (cmpool_stream stream, int mode))                         \
    CALL(cuStreamEndCapture, (cmpool_stream stream, void **graph))                          \
    CALL(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
    CALL(cuGraphLaunch, (void *exec, cmpool_stream stream))                                 \
    CALL(cuGraphExecDestroy, (void *exec))                                                  \
    CALL(cuGraphDestroy, (void *graph))
#define DECLARE(name, params) static int(*name) params;
GRAPH_CALLS(DECLARE)
#undef DECLARE

static void find_graph_calls(void)
{
    void *address;
#define FIND(name, params)                            \
    address = dlsym(driver_library, #name);           \
    expect(address != NULL, "the driver has " #name); \
    memcpy(&name, &address, sizeof address);
    GRAPH_CALLS(FIND)
#undef FIND
}

/* One step of a model: each layer's output is the next one's input and is freed once it has been read. Returns the last output. */
static void *run_model(cmpool_t memory, size_t bytes, cmpool_stream stream)
{
    void *input = NULL;
    for (int layer = 0; layer < LAYERS; layer++) {
        void *output, *workspace;
        check(cmpool_malloc(memory, &output, bytes, stream));
        check(cmpool_malloc(memory, &workspace, MIB(2), stream));
        use(workspace, MIB(2), stream);
        use(output, bytes, stream);
        check(cmpool_free(memory, workspace, stream));
        check(cmpool_free(memory, input, stream)); /* none before the first layer: freeing NULL is fine */
        input = output;
    }
    return input;
}

/* Between begin and end no pool of the process makes a call that a capture forbids, on any thread. */
static void *capture_model(cmpool_t set, size_t bytes, cmpool_stream stream, void **output)
{
    enum { GLOBAL_MODE = 0 };
    void *graph, *exec;
    check(cmpool_capture_begin(set));
    check_driver(cuStreamBeginCapture_v2(stream, GLOBAL_MODE), "cuStreamBeginCapture");
    *output = run_model(set, bytes, stream);
    check_driver(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    check(cmpool_capture_end(set));
    check_driver(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    check_driver(cuGraphDestroy(graph), "cuGraphDestroy");
    return exec;
}

int main(void)
{
    start_cuda();
    find_graph_calls();
    cmpool_stream stream = new_stream();
    cmpool_t pool, set;
    cmpool_config config = {.struct_size = sizeof config, .options = "limit:128MiB"};
    check(cmpool_create(&pool, &config));
    check(cmpool_capture_create(&set, pool));

    /* A warm-up outside of any capture takes its memory from the pool, as everything does that is not captured. */
    void *output = run_model(pool, MIB(16), stream);
    check(cmpool_free(pool, output, stream));
    check_driver(cuStreamSynchronize(stream), "cuStreamSynchronize");

    /* Three graphs for three batch sizes, largest first, share one set: they never run at the same time, so one may use what another has
     * freed. Their outputs live on. */
    void *graphs[SIZES], *outputs[SIZES];
    size_t bytes[SIZES] = {MIB(16), MIB(8), MIB(4)};
    for (int i = 0; i < SIZES; i++) {
        graphs[i] = capture_model(set, bytes[i], stream, &outputs[i]);
        printf("after the capture of a model of %zu MiB a layer: %llu MiB of the set live, %llu MiB held by the pool\n", bytes[i] >> 20,
               (unsigned long long)stats_of(set).live_bytes >> 20, (unsigned long long)stats_of(pool).reserved_bytes >> 20);
    }

    /* Launches, and between them requests that take all the memory there is beside the set's: their sizes change, so pages move. */
    size_t room = MIB(128) - MIB(48);
    for (int step = 0; step < STEPS; step++) {
        int which = step % SIZES;
        check_driver(cuGraphLaunch(graphs[which], stream), "cuGraphLaunch");
        use(outputs[which], bytes[which], stream); /* the program reads the result in place */
        void *first, *second;
        check(cmpool_malloc(pool, &first, room / 2 - MIB((size_t)step), stream));
        check(cmpool_malloc(pool, &second, room / 2, stream));
        use(first, room / 2 - MIB((size_t)step), stream);
        use(second, room / 2, stream);
        check(cmpool_free(pool, first, stream));
        check(cmpool_free(pool, second, stream));
    }
    printf("%d launches between requests for the other %zu MiB: %llu refusals, %llu host waits\n", STEPS, room >> 20,
           (unsigned long long)stats_of(pool).refusals, (unsigned long long)stats_of(pool).host_waits);

    /* While the set lives its memory is its own, free or not; afterwards it is the pool's again, behind all that was launched. */
    void *all;
    expect(cmpool_malloc(pool, &all, MIB(128), stream) == CMPOOL_ERR_LIMIT, "the set's memory serves nobody else");
    for (int i = 0; i < SIZES; i++) {
        check(cmpool_free(set, outputs[i], stream));
        check_driver(cuGraphExecDestroy(graphs[i]), "cuGraphExecDestroy");
    }
    check(cmpool_capture_release(set));
    check(cmpool_malloc(pool, &all, MIB(128), stream));
    use(all, MIB(128), stream);
    printf("the set is released: a request for all 128 MiB is served\n");
    check(cmpool_free(pool, all, stream));

    end_stream(stream);
    check(cmpool_destroy(pool));
    return finish();
}
