/*
 * Private pools keep a part of a program to itself; trimming gives what is idle back to the driver, for other programs on the device.
 * A private pool reuses its own blocks first but locks nothing away: its idle pages serve its parent, and the parent's serve it.
 */
#include "example.h"

static unsigned long long held_mib(cmpool_t pool) { return (unsigned long long)stats_of(pool).reserved_bytes >> 20; }

int main(void)
{
    start_cuda();
    cmpool_stream stream = new_stream();
    cmpool_t pool, graphs, caches;
    cmpool_config config = {.struct_size = sizeof config, .options = "limit:256MiB"};
    check(cmpool_create(&pool, &config));
    check(cmpool_private_create(&graphs, pool)); /* costs no memory and no addresses: an owner's name inside the parent */
    check(cmpool_private_create(&caches, pool));

    /* A private pool's own figures, and what any address belongs to. */
    void *block, *buffer;
    check(cmpool_malloc(graphs, &block, MIB(96), stream));
    check(cmpool_malloc(pool, &buffer, MIB(32), stream));
    use(block, MIB(96), stream);
    use(buffer, MIB(32), stream);
    cmpool_block_info info = {.struct_size = sizeof info};
    check(cmpool_lookup((char *)block + 12345, &info));
    printf("live: %llu MiB in all, %llu of them in the private pool; byte 12,345 of its block is found there: %s\n",
           (unsigned long long)stats_of(pool).live_bytes >> 20, (unsigned long long)stats_of(graphs).live_bytes >> 20,
           info.pool == graphs ? "yes" : "no");
    expect(info.pool == graphs && info.base == block && info.usable_bytes == MIB(96), "a lookup finds owner, start and length");
    expect(stats_of(caches).live_bytes == 0, "the other private pool has nothing");

    /* What one owner has freed another gets as whole pages: nothing new is taken from the driver. */
    check(cmpool_free(graphs, block, stream));
    unsigned long long before = held_mib(pool);
    check(cmpool_malloc(caches, &block, MIB(96), stream));
    use(block, MIB(96), stream);
    printf("96 MiB freed by one private pool went to the other: %llu MiB held before, %llu after\n", before, held_mib(pool));
    expect(held_mib(pool) <= before + 2, "hardly a page was added");

    /* A pool with live blocks is not destroyed, and a dead handle stays dead. */
    expect(cmpool_destroy(caches) == CMPOOL_ERR_BUSY, "a private pool with a live block is busy");
    expect(cmpool_destroy(pool) == CMPOOL_ERR_BUSY, "so is its parent");
    check(cmpool_destroy(graphs));
    void *none;
    expect(cmpool_malloc(graphs, &none, 1, stream) == CMPOOL_ERR_INVALID_POOL, "its handle names nothing any more");

    /* Free memory stays with the pool, for speed, until somebody asks for it. */
    check(cmpool_free(caches, block, stream));
    size_t released;
    check(cmpool_trim(pool, MIB(100), &released));
    printf("trim to 100 MiB gave %zu MiB back, %llu are held\n", released >> 20, held_mib(pool));
    expect(released > 0 && held_mib(pool) <= 100, "the pool holds at most 100 MiB");

    /* For everybody on the device, down to what this pool wants to keep. */
    check(cmpool_set_floor(pool, MIB(48)));
    check(cmpool_device_trim(0, MIB(1024), &released));
    printf("a trim of the whole device gave %zu MiB back, %llu are held: the floor\n", released >> 20, held_mib(pool));
    expect(held_mib(pool) == 48, "the floor stayed");

    /* Warm up again: after this, requests that fit make no driver call. */
    check(cmpool_reserve(pool, MIB(128)));
    unsigned long long turns = stats_of(pool).driver_turns;
    check(cmpool_malloc(caches, &block, MIB(64), stream));
    use(block, MIB(64), stream);
    turns = stats_of(pool).driver_turns - turns;
    printf("reserved 128 MiB ahead; 64 of them were handed out with %llu driver calls\n", turns);
    expect(turns == 0, "memory held ahead of need is handed out without the driver");

    check(cmpool_free(caches, block, stream));
    check(cmpool_free(pool, buffer, stream));
    end_stream(stream);
    check(cmpool_destroy(caches));
    check(cmpool_destroy(pool));
    return finish();
}
