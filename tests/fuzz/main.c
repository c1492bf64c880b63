/*
 * Drives a libFuzzer target where there is no libFuzzer: first every file named on the command line (or in a folder named there),
 * then random inputs from a printed seed, some of them mutations of those files.
 * FUZZ_SEED chooses the seed, FUZZ_RUNS the number of random inputs, FUZZ_FIRST where to begin, so that one failing input can be had
 * alone. Slow builds stop early, after FUZZ_SECONDS.
 */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_BYTES = 4096, SEEDS_KEPT = 256 };

static struct {
    uint8_t *data;
    size_t size;
} seeds[SEEDS_KEPT];
static size_t seed_count;
static uint64_t seed;
static volatile uint64_t current;

/* A number that depends on nothing but its arguments: an input can be made again without those before it. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t next(uint64_t *state) { return mix((*state)++); }

static void read_seed(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return;
    if (S_ISDIR(status.st_mode)) {
        DIR *folder = opendir(path);
        for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
            char inner[4096];
            if (entry->d_name[0] != '.' && snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name) < (int)sizeof(inner))
                read_seed(inner);
        }
        if (folder != NULL)
            closedir(folder);
        return;
    }
    FILE *file = seed_count < SEEDS_KEPT ? fopen(path, "rb") : NULL;
    if (file == NULL)
        return;
    size_t size = (size_t)status.st_size;
    uint8_t *data = malloc(size + 1);
    if (data != NULL && fread(data, 1, size, file) == size) {
        seeds[seed_count].data = data;
        seeds[seed_count++].size = size;
    } else {
        free(data);
    }
    fclose(file);
}

static size_t make_input(uint8_t *data, uint64_t number)
{
    static const char words[] = "0123456789 \n#:,afupskBGKM[]-.";
    uint64_t state = mix(seed ^ number * 0xd1342543de82ef95u);
    size_t size = next(&state) % ((size_t)1 << (1 + next(&state) % 12)); /* short ones as often as long ones */
    unsigned manner = (unsigned)(next(&state) % 4);
    if (manner == 0 && seed_count > 0) { /* a known input with a few bytes changed, perhaps cut */
        size_t i = next(&state) % seed_count;
        size = seeds[i].size < INPUT_BYTES ? seeds[i].size : INPUT_BYTES;
        memcpy(data, seeds[i].data, size);
        for (uint64_t changes = next(&state) % 8; size > 0 && changes > 0; changes--)
            data[next(&state) % size] = (uint8_t)next(&state);
        return next(&state) % 4 == 0 && size > 0 ? next(&state) % size : size;
    }
    for (size_t i = 0; i < size; i++) {
        uint64_t random = next(&state);
        data[i] = manner == 1 ? (uint8_t)words[random % (sizeof(words) - 1)] : (uint8_t)(manner == 2 ? random & random >> 8 : random);
    }
    return size;
}

static void say_where(int number)
{
    fprintf(stderr, "\nfailed; to see it again: FUZZ_SEED=%" PRIu64 " FUZZ_FIRST=%" PRIu64 " FUZZ_RUNS=1\n", seed, current);
    signal(number, SIG_DFL);
    raise(number);
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    seed = number_from("FUZZ_SEED", 1);
    uint64_t first = number_from("FUZZ_FIRST", 0), runs = number_from("FUZZ_RUNS", 5000);
    time_t end = time(NULL) + (time_t)number_from("FUZZ_SECONDS", 10);
    for (int i = 1; i < argc; i++)
        read_seed(argv[i]);
    for (size_t i = 0; i < seed_count; i++)
        LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].size);

    printf("seed %" PRIu64 ", %zu files\n", seed, seed_count);
    fflush(stdout);
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        signal(fatal[i], say_where);
    for (current = first; current < first + runs && time(NULL) < end; current++) {
        uint8_t *data = malloc(INPUT_BYTES); /* of its own each time, and of the exact size, so that reads past the end are seen */
        size_t size = data != NULL ? make_input(data, current) : 0;
        uint8_t *exact = malloc(size + (size == 0));
        if (exact != NULL && data != NULL)
            LLVMFuzzerTestOneInput(memcpy(exact, data, size), size);
        free(exact);
        free(data);
    }
    printf("%" PRIu64 " inputs\n", current - first);
    for (size_t i = 0; i < seed_count; i++)
        free(seeds[i].data);
    return 0;
}
