/*
 * Two streams share one pool, and the host never waits for the device.
 * A block belongs to the stream it was asked for. Another stream may use it too, if the pool is told (cmpool_record_use). What one stream
 * frees another can have: at once where it is seen done, else behind a wait that the pool puts into the other stream.
 */
#include "example.h"

static void print_figures(const char *when, cmpool_t pool)
{
    cmpool_stats stats = stats_of(pool);
    printf("%-38s %3llu MiB held, %llu events recorded, %llu queried, %llu device waits, %llu host waits\n", when,
           (unsigned long long)stats.reserved_bytes >> 20, (unsigned long long)stats.events_recorded,
           (unsigned long long)stats.events_queried, (unsigned long long)stats.device_waits, (unsigned long long)stats.host_waits);
}

int main(void)
{
    start_cuda();
    cmpool_stream compute = new_stream(), copy = new_stream();

    /* The limit makes memory scarce. With room left the pool would take new pages rather than make one stream wait for another. */
    cmpool_t pool;
    cmpool_config config = {.struct_size = sizeof config, .options = "limit:64MiB"};
    check(cmpool_create(&pool, &config));

    /* 1. Hand-over. All of the memory is compute's; it is freed while compute may still be busy with it, and copy asks for it. */
    void *first, *second;
    check(cmpool_malloc(pool, &first, MIB(64), compute));
    use(first, MIB(64), compute);
    check(cmpool_free(pool, first, compute));
    print_figures("compute has freed 64 MiB:", pool);

    check(cmpool_malloc(pool, &second, MIB(64), copy)); /* returns at once; copy is ordered behind compute where it has to be */
    use(second, MIB(64), copy);
    print_figures("copy has the same 64 MiB:", pool);
    expect(first == second, "the memory changed hands");

    /* 2. A block that two streams use. Without record_use the pool could give it to compute's next request while copy still reads it. */
    void *shared, *next;
    check(cmpool_free(pool, second, copy));
    check(cmpool_malloc(pool, &shared, MIB(48), compute));
    use(shared, MIB(48), compute);
    order(compute, copy); /* the program's own business: copy works on what compute has made */
    check(cmpool_record_use(pool, shared, copy));
    use(shared, MIB(48), copy);
    check(cmpool_free(pool, shared, compute));

    check(cmpool_malloc(pool, &next, MIB(64), compute));
    use(next, MIB(64), compute);
    print_figures("compute has what copy used as well:", pool);
    check(cmpool_free(pool, next, compute));

    /* 3. A stream goes away. Telling the pool first lets it put an event behind what was freed there while the handle lives. */
    end_stream(copy);
    check(cmpool_malloc(pool, &next, MIB(64), compute));
    use(next, MIB(64), compute);
    check(cmpool_free(pool, next, compute));
    print_figures("copy is gone:", pool);

    cmpool_stats stats = stats_of(pool);
    expect(stats.reserved_bytes <= MIB(64), "everything happened in 64 MiB");
    expect(stats.host_waits == 0, "the host never waited");
    expect(stats.unretired_streams == 0, "no stream went away untold");

    end_stream(compute);
    check(cmpool_destroy(pool));
    return finish();
}
