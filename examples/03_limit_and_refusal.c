/*
 * What happens when memory runs out: the program is asked to give something up, and if that is not enough, the refusal says why.
 * A limit stands for the end of the device here; there everything is the same but the status, CMPOOL_ERR_OUT_OF_DEVICE_MEMORY.
 */
#include "example.h"

enum { CACHE_BLOCKS = 8 };

/* Something the program could do without: results that it can compute again. */
typedef struct cache {
    void *blocks[CACHE_BLOCKS];
    int count;
    cmpool_stream stream;
} cache;

/* Called by a request that cannot be served, with no lock held: may free blocks. Non-zero: try again. */
static int shrink_cache(void *user, cmpool_t pool, size_t bytes)
{
    cache *kept = user;
    printf("  low memory: %zu MiB are wanted, the cache has %d block%s", bytes >> 20, kept->count, kept->count == 1 ? "" : "s");
    int dropped = kept->count;
    while (kept->count > 0)
        check(cmpool_free(pool, kept->blocks[--kept->count], kept->stream));
    printf(dropped ? ", all dropped\n" : ", nothing to drop\n");
    return dropped > 0;
}

static const char *const rungs[CMPOOL_RUNG_COUNT] = {
    [CMPOOL_RUNG_BINS] = "free memory as it lay",
    [CMPOOL_RUNG_PROMOTE] = "memory that events showed done",
    [CMPOOL_RUNG_SLACK] = "new pages within the slack",
    [CMPOOL_RUNG_MOVE] = "idle pages mapped elsewhere",
    [CMPOOL_RUNG_GROW] = "new pages up to the limit",
    [CMPOOL_RUNG_PENDING] = "memory behind a device-side wait",
    [CMPOOL_RUNG_SIBLINGS] = "other pools, low-memory callback",
    [CMPOOL_RUNG_HOST_WAIT] = "memory the host waited for",
};

static void explain(const cmpool_error *error)
{
    printf("%s: %s (%s)\n", error->call, cmpool_status_name(error->status), cmpool_status_text(error->status));
    printf("  wanted %zu MiB, short of %zu MiB\n", error->bytes >> 20, error->short_bytes >> 20);
    printf("  the pool holds %zu MiB of its limit of %zu MiB: %zu MiB live, %zu MiB idle, longest free run %zu MiB\n",
           error->reserved_bytes >> 20, error->limit_bytes >> 20, error->live_bytes >> 20, error->idle_bytes >> 20,
           error->largest_free_bytes >> 20);
    for (int i = 0; i < CMPOOL_RUNG_COUNT; i++)
        if (error->rung_bytes[i])
            printf("  gained %zu MiB: %s\n", error->rung_bytes[i] >> 20, rungs[i]);
}

int main(void)
{
    start_cuda();
    cache kept = {.stream = new_stream()};

    cmpool_t pool;
    cmpool_config config = {.struct_size = sizeof config};
    check(cmpool_create(&pool, &config));
    check(cmpool_set_limit(pool, MIB(100))); /* the same as the option limit:100MiB, but can be changed while the pool lives */
    check(cmpool_set_low_memory_callback(pool, shrink_cache, &kept));

    void *model;
    check(cmpool_malloc(pool, &model, MIB(40), kept.stream));
    for (; kept.count < CACHE_BLOCKS; kept.count++)
        check(cmpool_malloc(pool, &kept.blocks[kept.count], MIB(6), kept.stream));
    printf("%llu of 100 MiB are live.\n", (unsigned long long)stats_of(pool).live_bytes >> 20);

    /* 88 MiB live, 12 left. The callback frees the 48 MiB of the cache, and the request is served from them. */
    void *batch;
    printf("A request of 50 MiB:\n");
    check(cmpool_malloc(pool, &batch, MIB(50), kept.stream));
    use(batch, MIB(50), kept.stream);
    expect(kept.count == 0, "the cache was given up for it");

    /* 90 MiB live; one block is in the cache again. Dropping it is not enough: refused. Nothing else is lost or changed by that. */
    check(cmpool_malloc(pool, &kept.blocks[kept.count++], MIB(6), kept.stream));
    void *too_much = &kept;
    printf("A request of 30 MiB:\n");
    cmpool_status status = cmpool_malloc(pool, &too_much, MIB(30), kept.stream);
    expect(status == CMPOOL_ERR_LIMIT && too_much == NULL, "the request is refused because of the limit");
    const cmpool_error error = *cmpool_last_error();
    explain(&error);
    expect(error.status == status && error.live_bytes == MIB(90) && error.limit_bytes == MIB(100), "the report has the pool's figures");
    expect(error.short_bytes == MIB(20), "10 MiB were to be had, so 20 were missing");
    expect(error.rung_bytes[CMPOOL_RUNG_SIBLINGS] == MIB(6), "and the callback's part in it");

    /* What the report says would help does help. */
    check(cmpool_set_limit(pool, MIB(100) + error.short_bytes));
    check(cmpool_malloc(pool, &too_much, MIB(30), kept.stream));
    use(too_much, MIB(30), kept.stream);
    printf("With a limit raised by what was missing it is served.\n");
    expect(stats_of(pool).refusals == 1, "one request was refused");

    check(cmpool_free(pool, too_much, kept.stream));
    check(cmpool_free(pool, batch, kept.stream));
    check(cmpool_free(pool, model, kept.stream));
    end_stream(kept.stream);
    check(cmpool_destroy(pool));
    return finish();
}
