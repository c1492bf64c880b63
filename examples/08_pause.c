/*
 * Two users of one device by turns: training sleeps while somebody else needs its memory, and goes on where it stopped. Its blocks keep
 * their addresses, so no pointer in the program changes; what the device held is saved on the host and comes back. An inference engine's
 * way is shown too: the weights stay on the device while the KV cache goes, whose contents are not worth saving.
 */
#include "example.h"

static unsigned long long reserved(cmpool_t pool) { return (unsigned long long)stats_of(pool).reserved_bytes; }

static void *take_tagged(cmpool_t pool, size_t bytes, const char *tag, cmpool_stream stream)
{
    void *block;
    check(cmpool_tag_push(tag));
    check(cmpool_malloc(pool, &block, bytes, stream));
    check(cmpool_tag_pop());
    return block;
}

int main(void)
{
    start_cuda();
    cmpool_stream stream = new_stream();
    cmpool_t training, inference;
    check(cmpool_create(&training, NULL));
    check(cmpool_create(&inference, NULL));

    /* Training fills most of the device, then makes room. */
    void *states = take_tagged(training, MIB(700), "states", stream);
    use(states, MIB(700), stream);
    check(cmpool_pause(training, CMPOOL_KEEP));
    printf("training sleeps: %llu MiB held\n", reserved(training) >> 20);
    expect(reserved(training) == 0, "a paused pool holds nothing of the device");
    void *refused;
    expect(cmpool_malloc(training, &refused, MIB(1), stream) == CMPOOL_ERR_PAUSED, "and hands out nothing");

    void *weights = take_tagged(inference, MIB(300), "weights", stream);
    void *cache = take_tagged(inference, MIB(500), "kv cache", stream);
    use(weights, MIB(300), stream);
    use(cache, MIB(500), stream);

    /* Now the other way round. There is no room for both, but for all that is worth keeping. */
    expect(cmpool_resume(training) == CMPOOL_ERR_OUT_OF_DEVICE_MEMORY, "there is no room for both");
    cmpool_pause_request part = {.struct_size = sizeof part, .contents = CMPOOL_DISCARD, .tag_name = "kv cache"};
    check(cmpool_pause_ex(inference, &part));
    printf("without its cache inference holds %llu MiB\n", reserved(inference) >> 20);
    check(cmpool_resume(training)); /* a second try */
    use(states, MIB(700), stream);
    use(weights, MIB(300), stream); /* these have been there all the time */
    printf("training is awake: %llu MiB held\n", reserved(training) >> 20);

    check(cmpool_free(training, states, stream));
    check(cmpool_resume(inference)); /* training's idle pages make room */
    use(cache, MIB(500), stream);

    check(cmpool_free(inference, cache, stream));
    check(cmpool_free(inference, weights, stream));
    end_stream(stream);
    check(cmpool_destroy(inference));
    check(cmpool_destroy(training));
    return finish();
}
