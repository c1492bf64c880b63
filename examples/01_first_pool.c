/*
 * A first pool: make it, take memory, use it on a stream, give it back, read the figures, end it.
 * The point to take away: free returns at once, without waiting for the device, and the next request gets the same memory back.
 */
#include "example.h"

int main(void)
{
    start_cuda();
    cmpool_stream stream = new_stream();

    /* All defaults would be cmpool_create(&pool, NULL). Options are those of the README's table. */
    cmpool_t pool;
    cmpool_config config = {.struct_size = sizeof config, .device = 0, .options = "limit:512MiB"};
    check(cmpool_create(&pool, &config));

    /* The stream says who uses the block first. The address can go straight into a kernel launch. */
    void *weights, *activations;
    check(cmpool_malloc(pool, &weights, MIB(100), stream));
    check(cmpool_malloc(pool, &activations, MIB(60), stream));
    use(weights, MIB(100), stream);
    use(activations, MIB(60), stream);

    cmpool_stats stats = stats_of(pool);
    printf("Two blocks: %llu MiB live, %llu MiB taken from the driver in %llu pages.\n", (unsigned long long)stats.live_bytes >> 20,
           (unsigned long long)stats.reserved_bytes >> 20, (unsigned long long)stats.pages_created);
    expect(stats.live_bytes == MIB(160), "160 MiB are live");

    /* Freed while the fill may still be running: whoever gets the bytes next on this stream comes after it anyway. */
    check(cmpool_free(pool, activations, stream));
    void *again;
    unsigned long long turns = stats_of(pool).driver_turns;
    check(cmpool_malloc(pool, &again, MIB(60), stream));
    use(again, MIB(60), stream);
    printf("Freed and asked for again: %s memory, %llu driver calls for it.\n", again == activations ? "the same" : "other",
           (unsigned long long)(stats_of(pool).driver_turns - turns));
    expect(again == activations, "the same memory came back");
    expect(stats_of(pool).driver_turns == turns, "the driver was not asked");

    /* Small blocks share pages: a thousand of 1 KiB take one page of 2 MiB. */
    enum { SMALL = 1000 };
    void *small[SMALL];
    unsigned long long reserved = stats_of(pool).reserved_bytes;
    for (int i = 0; i < SMALL; i++)
        check(cmpool_malloc(pool, &small[i], 1024, stream));
    printf("%d blocks of 1 KiB took %llu MiB more.\n", SMALL, (unsigned long long)(stats_of(pool).reserved_bytes - reserved) >> 20);
    expect(stats_of(pool).reserved_bytes - reserved <= MIB(2), "they fit into one page");

    /* A wrong pointer is told, and changes nothing. */
    expect(cmpool_free(pool, (char *)again + 512, stream) == CMPOOL_ERR_INTERIOR_POINTER, "an interior pointer is refused");
    expect(cmpool_free(pool, &pool, stream) == CMPOOL_ERR_NOT_OURS, "a foreign pointer is refused");

    for (int i = 0; i < SMALL; i++)
        check(cmpool_free(pool, small[i], stream));
    check(cmpool_free(pool, again, stream));
    expect(cmpool_free(pool, again, stream) == CMPOOL_ERR_ALREADY_FREED, "a second free is refused");
    check(cmpool_free(pool, weights, stream));

    stats = stats_of(pool);
    printf("At the end: %llu requests served, %llu frees, %llu host waits.\n", (unsigned long long)stats.allocations,
           (unsigned long long)stats.frees, (unsigned long long)stats.host_waits);
    expect(stats.live_blocks == 0 && stats.allocations == stats.frees, "every block was given back");
    expect(stats.host_waits == 0, "the host never waited");

    end_stream(stream);
    check(cmpool_destroy(pool)); /* BUSY if a block were live; waits for the device, since its pages go back to the driver */
    return finish();
}
