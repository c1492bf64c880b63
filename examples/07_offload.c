/*
 * Offloading, as ZeRO-offload does it: optimizer states live in pinned host memory, in buckets of 129.5 MiB, and are copied to the device
 * and back while it computes. The pool's pinned memory holds little more than what is asked for, where caches that round up to a power of
 * two hold up to twice as much; a bucket that is freed serves again only when its copy is done; and what is idle goes back to the driver.
 */
#include "example.h"

enum { BUCKETS = 4, STEPS = 3 };
static const size_t bucket_bytes = (size_t)(129.5 * 1048576);

static int (*copy_to_device)(unsigned long long to, const void *from, size_t bytes, cmpool_stream stream);
static int (*copy_to_host)(void *to, unsigned long long from, size_t bytes, cmpool_stream stream);

static cmpool_pinned_stats pinned_stats_of(cmpool_t pool)
{
    cmpool_pinned_stats stats = {.struct_size = sizeof stats};
    check(cmpool_pinned_stats_get(pool, &stats));
    return stats;
}

static void find_copies(void)
{
    void *address = dlsym(driver_library, "cuMemcpyHtoDAsync_v2");
    memcpy(&copy_to_device, &address, sizeof address);
    address = dlsym(driver_library, "cuMemcpyDtoHAsync_v2");
    memcpy(&copy_to_host, &address, sizeof address);
    expect(copy_to_device && copy_to_host, "the driver has asynchronous copies");
}

int main(void)
{
    start_cuda();
    find_copies();
    cmpool_stream stream = new_stream();
    cmpool_t pool;
    check(cmpool_create(&pool, &(cmpool_config){.struct_size = sizeof(cmpool_config), .options = "pinned_limit:700MiB"}));

    /* The states stay; the CPU writes them like any memory. */
    unsigned char *states[BUCKETS];
    void *on_device;
    for (int i = 0; i < BUCKETS; i++) {
        void *bucket;
        check(cmpool_pinned_malloc(pool, &bucket, bucket_bytes, stream));
        states[i] = bucket;
        states[i][0] = (unsigned char)i;
        states[i][bucket_bytes - 1] = (unsigned char)i;
    }
    cmpool_pinned_stats stats = pinned_stats_of(pool);
    unsigned long long asked = (unsigned long long)stats.requested_bytes, held = (unsigned long long)stats.held_bytes;
    printf("%d buckets of 129.5 MiB: %llu bytes asked for, %llu held (%.4f x); powers of two would be %.2f x\n", BUCKETS, asked, held,
           (double)held / (double)asked, (double)MIB(256) / (double)bucket_bytes);
    expect((double)held <= 1.05 * (double)asked, "the pool holds at most 1.05 x what is asked for");

    /* A step: each bucket goes to the device, is used there, and comes back; gradients come by a bucket that is taken and freed each time.
     */
    check(cmpool_malloc(pool, &on_device, bucket_bytes, stream));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < BUCKETS; i++) {
            check_driver(copy_to_device((unsigned long long)(size_t)on_device, states[i], bucket_bytes, stream), "cuMemcpyHtoDAsync");
            use(on_device, bucket_bytes, stream);
            check_driver(copy_to_host(states[i], (unsigned long long)(size_t)on_device, bucket_bytes, stream), "cuMemcpyDtoHAsync");
        }
        void *gradients;
        check(cmpool_pinned_malloc(pool, &gradients, bucket_bytes / 2, stream));
        check_driver(copy_to_host(gradients, (unsigned long long)(size_t)on_device, bucket_bytes / 2, stream), "cuMemcpyDtoHAsync");
        check(cmpool_pinned_free(pool, gradients, stream)); /* at once: it serves again behind the copy */
    }
    stats = pinned_stats_of(pool);
    printf("after %d steps: %llu MiB held at most, the host waited %llu times for memory\n", STEPS,
           (unsigned long long)stats.peak_held_bytes >> 20, (unsigned long long)stats.host_waits);
    expect(stats.peak_held_bytes <= MIB(700), "the limit held");

    /* Evaluation needs no states: their memory goes back to the driver, and so to other programs. */
    for (int i = 0; i < BUCKETS; i++)
        check(cmpool_pinned_free(pool, states[i], stream));
    size_t released;
    check(cmpool_pinned_trim(pool, 0, &released));
    printf("trim gave %zu MiB back, %llu bytes are held\n", released >> 20, (unsigned long long)pinned_stats_of(pool).held_bytes);
    expect(pinned_stats_of(pool).held_bytes == 0, "all of it went back");

    check(cmpool_free(pool, on_device, stream));
    end_stream(stream);
    check(cmpool_destroy(pool));
    return finish();
}
