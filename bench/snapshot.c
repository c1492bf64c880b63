/*
 * How long a snapshot holds a pool up: the pool is filled with live blocks of one size, and snapshots are taken, which say so themselves
 * (stopped_ns). `snapshot [BLOCKS [BYTES]]` (1000000 of 512); one JSON line. Uses the public header and the device that
 * CUDAMEMPOOL_DRIVER and SIMCUDA_DEVICE name.
 */
#include <cudamempool/cudamempool.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SNAPSHOTS = 9, MOST_OF_A_SNAPSHOT = 64 << 10 };

static void need(cmpool_status status, const char *what)
{
    if (status != CMPOOL_OK) {
        fprintf(stderr, "snapshot: %s: %s\n", what, cmpool_status_name(status));
        exit(3);
    }
}

/* The figure stands near the beginning of the file. */
static double stopped_ms(const char *path)
{
    static char text[MOST_OF_A_SNAPSHOT + 1];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, MOST_OF_A_SNAPSHOT, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = '\0';
    const char *figure = strstr(text, "\"stopped_ns\":");
    if (!figure) {
        fprintf(stderr, "snapshot: %s has no stopped_ns\n", path);
        exit(3);
    }
    return strtod(figure + strlen("\"stopped_ns\":"), NULL) / 1e6;
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv)
{
    size_t blocks = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000000, bytes = argc > 2 ? strtoull(argv[2], NULL, 0) : 512;
    cmpool_config config = {.struct_size = sizeof config};
    cmpool_t pool;
    char path[] = "snapshot-XXXXXX"; /* in the current folder */
    double ms[SNAPSHOTS];
    int descriptor = mkstemp(path);
    if (descriptor < 0)
        return 3;
    need(cmpool_create(&pool, &config), "create");
    for (size_t i = 0; i < blocks; i++) {
        void *block;
        need(cmpool_malloc(pool, &block, bytes, NULL), "malloc");
    }
    for (int i = 0; i < SNAPSHOTS; i++) {
        need(cmpool_snapshot_write(path), "snapshot");
        ms[i] = stopped_ms(path);
    }
    remove(path);
    qsort(ms, SNAPSHOTS, sizeof *ms, by_size);
    printf("{\"blocks\":%zu,\"bytes\":%zu,\"snapshots\":%d,\"stopped_ms\":{\"least\":%.3f,\"median\":%.3f,\"worst\":%.3f}}\n", blocks,
           bytes, SNAPSHOTS, ms[0], ms[SNAPSHOTS / 2], ms[SNAPSHOTS - 1]);
    return 0;
}
