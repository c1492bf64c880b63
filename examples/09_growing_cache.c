/*
 * A KV cache that grows with every token. The usual way makes a new tensor for each length, copies the old one into it and frees that
 * (cat): for a moment both are there, for every layer in turn, and old lengths lie about as gaps. In a region the memory grows behind what
 * is there: nothing is copied and nothing is there twice. Both ways here with the same lengths; the peaks are printed.
 */
#include "example.h"

enum { LAYERS = 8, TOKENS = 60, PROMPT = 4 };
static const size_t token_bytes = 192 * 1024; /* of one layer */

static int (*copy_on_device)(unsigned long long to, unsigned long long from, size_t bytes, cmpool_stream stream);

static cmpool_stats cat_and_copy(cmpool_stream stream)
{
    cmpool_t pool;
    void *layer[LAYERS];
    check(cmpool_create(&pool, NULL));
    for (int i = 0; i < LAYERS; i++) {
        check(cmpool_malloc(pool, &layer[i], PROMPT * token_bytes, stream));
        use(layer[i], PROMPT * token_bytes, stream);
    }
    for (size_t length = PROMPT + 1; length <= TOKENS; length++) {
        for (int i = 0; i < LAYERS; i++) {
            void *longer;
            size_t old_bytes = (length - 1) * token_bytes;
            check(cmpool_malloc(pool, &longer, length * token_bytes, stream));
            check_driver(copy_on_device((unsigned long long)(size_t)longer, (unsigned long long)(size_t)layer[i], old_bytes, stream),
                         "cuMemcpyDtoDAsync");
            use((char *)longer + old_bytes, token_bytes, stream);
            check(cmpool_free(pool, layer[i], stream));
            layer[i] = longer;
        }
    }
    cmpool_stats stats = stats_of(pool);
    for (int i = 0; i < LAYERS; i++)
        check(cmpool_free(pool, layer[i], stream));
    check(cmpool_destroy(pool));
    return stats;
}

static cmpool_stats grow(cmpool_stream stream)
{
    cmpool_t pool;
    void *layer[LAYERS];
    check(cmpool_create(&pool, NULL));
    for (int i = 0; i < LAYERS; i++) {
        check(cmpool_region_create(pool, &layer[i], 4096 * token_bytes)); /* addresses cost nothing: the longest there may be */
        check(cmpool_region_grow(pool, layer[i], PROMPT * token_bytes, stream));
        use(layer[i], PROMPT * token_bytes, stream);
    }
    for (size_t length = PROMPT + 1; length <= TOKENS; length++) {
        for (int i = 0; i < LAYERS; i++) {
            check(cmpool_region_grow(pool, layer[i], length * token_bytes, stream));
            use((char *)layer[i] + (length - 1) * token_bytes, token_bytes, stream);
        }
    }
    cmpool_stats stats = stats_of(pool);

    /* The next prompt begins short; what is left over serves whatever else the pool is asked for. (A pool may
     * take 32 MiB of new pages beyond its peak, see the option slack, before it moves those it has together.) */
    for (int i = 0; i < LAYERS; i++)
        check(cmpool_region_shrink(pool, layer[i], PROMPT * token_bytes, stream));
    void *activations;
    const size_t activation_bytes = stats.peak_live_bytes / 4 * 3;
    check(cmpool_malloc(pool, &activations, activation_bytes, stream));
    use(activations, activation_bytes, stream);
    expect(stats_of(pool).reserved_bytes <= stats.peak_reserved_bytes + MIB(32), "it is the pages that the caches gave up, but for 32 MiB");
    check(cmpool_free(pool, activations, stream));
    for (int i = 0; i < LAYERS; i++)
        check(cmpool_region_destroy(pool, layer[i], stream));
    check(cmpool_destroy(pool));
    return stats;
}

int main(void)
{
    start_cuda();
    void *address = dlsym(driver_library, "cuMemcpyDtoDAsync_v2");
    memcpy(&copy_on_device, &address, sizeof address);
    expect(copy_on_device != NULL, "the driver copies on the device");
    cmpool_stream stream = new_stream();
    const size_t needed = (size_t)LAYERS * TOKENS * token_bytes;
    cmpool_stats before = cat_and_copy(stream), after = grow(stream);
    printf("%d layers, %d tokens: %.1f MiB of cache\n", LAYERS, TOKENS, (double)needed / (double)MIB(1));
    printf("cat and copy: peak %.1f MiB live, %.1f MiB held\n", (double)before.peak_live_bytes / (double)MIB(1),
           (double)before.peak_reserved_bytes / (double)MIB(1));
    printf("regions:      peak %.1f MiB live, %.1f MiB held, nothing copied\n", (double)after.peak_live_bytes / (double)MIB(1),
           (double)after.peak_reserved_bytes / (double)MIB(1));
    expect(after.peak_reserved_bytes <= needed + LAYERS * MIB(2), "a region holds its length, rounded up to pages");
    expect(after.peak_reserved_bytes < before.peak_reserved_bytes, "growing takes less than copying");
    end_stream(stream);
    return finish();
}
