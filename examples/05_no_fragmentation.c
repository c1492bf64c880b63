/*
 * A program that an allocator of fixed blocks cannot serve: half of the memory is free, but in holes, and the next request is larger than
 * any of them. The pool maps the idle pages from the holes next to each other at free addresses, and serves it.
 *
 *     before   |A|.|B|.|C|.|D|.|                      . free, 4 MiB each
 *     after    |A|:|B|:|C|:|D|X X X X|                : old addresses of the pages that X has now
 */
#include "example.h"

enum { BLOCKS = 64, BLOCK_MIB = 4 };

/* The longest stretch between live blocks, of which [low, high) is all there is: what a plain allocator could give out at most. */
static size_t largest_hole(char *const *blocks, char *low, char *high)
{
    size_t largest = 0;
    for (char *at = low; at < high;) {
        char *next = high;
        for (int i = 0; i < BLOCKS; i++)
            if (blocks[i] && blocks[i] >= at && blocks[i] < next)
                next = blocks[i];
        largest = (size_t)(next - at) > largest ? (size_t)(next - at) : largest;
        at = next < high ? next + MIB(BLOCK_MIB) : high;
    }
    return largest;
}

int main(void)
{
    start_cuda();
    cmpool_stream stream = new_stream();
    cmpool_t pool;
    cmpool_config config = {.struct_size = sizeof config, .options = "limit:256MiB"}; /* just what the blocks below take */
    check(cmpool_create(&pool, &config));

    char *blocks[BLOCKS], *low = NULL, *high = NULL;
    for (int i = 0; i < BLOCKS; i++) {
        void *block;
        check(cmpool_malloc(pool, &block, MIB(BLOCK_MIB), stream));
        use(block, MIB(BLOCK_MIB), stream);
        blocks[i] = block;
        low = !low || blocks[i] < low ? blocks[i] : low;
        high = blocks[i] + MIB(BLOCK_MIB) > high ? blocks[i] + MIB(BLOCK_MIB) : high;
    }
    expect((size_t)(high - low) == MIB(256), "the blocks lie side by side");

    /* Every second block goes: 128 MiB are free now. */
    for (int i = 1; i < BLOCKS; i += 2) {
        check(cmpool_free(pool, blocks[i], stream));
        blocks[i] = NULL;
    }
    cmpool_stats stats = stats_of(pool);
    size_t hole = largest_hole(blocks, low, high);
    printf("%llu MiB held, %llu MiB free, and the largest hole is %zu MiB.\n", (unsigned long long)stats.reserved_bytes >> 20,
           (unsigned long long)stats.idle_bytes >> 20, hole >> 20);
    expect(stats.idle_bytes == MIB(128) && hole == MIB(BLOCK_MIB), "half is free, in small holes");

    /* All of it in one piece. */
    void *large;
    check(cmpool_malloc(pool, &large, MIB(128), stream));
    use(large, MIB(128), stream);
    stats = stats_of(pool);
    printf("A request of 128 MiB was served: %llu pages of 2 MiB moved, %llu MiB held, %llu host waits.\n",
           (unsigned long long)stats.page_moves, (unsigned long long)stats.reserved_bytes >> 20, (unsigned long long)stats.host_waits);
    expect(stats.page_moves > 0, "pages were moved for it");
    expect(stats.reserved_bytes == MIB(256), "no memory was added");
    expect(stats.idle_bytes == 0, "every page carries live bytes now");
    expect(stats.host_waits == 0, "the host never waited");

    /* The other blocks are where they were, and there is no room for one more. */
    void *none;
    expect(cmpool_malloc(pool, &none, MIB(2), stream) == CMPOOL_ERR_LIMIT, "256 of 256 MiB are live");
    for (int i = 0; i < BLOCKS; i += 2) {
        use(blocks[i], MIB(BLOCK_MIB), stream);
        check(cmpool_free(pool, blocks[i], stream));
    }
    check(cmpool_free(pool, large, stream));
    end_stream(stream);
    check(cmpool_destroy(pool));
    return finish();
}
