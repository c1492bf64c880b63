/*
 * Configuration: the words of a device, the environment, and the state that everything else hangs off. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_WORDS "sim:16GiB"
#define DEFAULT_PAGE (UINT64_C(2) << 20)
#define SMALLEST_PAGE (UINT64_C(64) << 10)
#define LARGEST_PAGE (UINT64_C(1) << 30)
#define DEFAULT_CEILING 500000 /* reported of real drivers: 516,096 to 523,404 per context */

sim_state sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .generation = 1};

typedef struct config {
    uint64_t capacity, page_bytes, seed;
    sim_order order;
    bool content, kernels;
    int devices;
} config;

static config now; /* what reset goes back to */

static int bad(char *error, size_t room, const char *what, const char *word, const char *allowed)
{
    if (error && room)
        snprintf(error, room, "simcuda: %s \"%s\": allowed is %s", what, word, allowed);
    return -1;
}

/* A size as 4096, 512MiB, 24GiB. */
static bool parse_size(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (errno)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].unit) == 0) {
            *bytes = number << units[i].shift;
            return number > 0 && *bytes >> units[i].shift == number;
        }
    return false;
}

static int parse_word(const char *word, config *to, char *error, size_t room)
{
    char *end;
    if (strcmp(word, "content") == 0) {
        to->content = true;
    } else if (strcmp(word, "kernels=accept") == 0 || strcmp(word, "kernels=refuse") == 0) {
        to->kernels = word[8] == 'a';
    } else if (strcmp(word, "order=eager") == 0) {
        to->order = SIM_EAGER;
    } else if (strcmp(word, "order=lazy") == 0) {
        to->order = SIM_LAZY;
    } else if (strncmp(word, "order=random:", 13) == 0) {
        to->order = SIM_RANDOM;
        errno = 0;
        to->seed = strtoull(word + 13, &end, 0);
        if (word[13] < '0' || word[13] > '9' || *end || errno)
            return bad(error, room, "bad seed", word, "order=random:NUMBER");
    } else if (strncmp(word, "order=", 6) == 0) {
        return bad(error, room, "bad order", word, "order=eager, order=lazy or order=random:SEED");
    } else if (strncmp(word, "page=", 5) == 0) {
        if (!parse_size(word + 5, &to->page_bytes) || to->page_bytes & (to->page_bytes - 1) || to->page_bytes < SMALLEST_PAGE ||
            to->page_bytes > LARGEST_PAGE)
            return bad(error, room, "bad page size", word, "a power of two from 64KiB to 1GiB");
    } else if (strncmp(word, "devices=", 8) == 0) {
        long count = strtol(word + 8, &end, 10);
        if (word[8] < '0' || word[8] > '9' || *end || count < 1 || count > SIM_MAX_DEVICES)
            return bad(error, room, "bad number of devices", word, "devices=1 to devices=64");
        to->devices = (int)count;
    } else {
        return bad(error, room, "unknown word", word, "order=, content, page=, devices=, kernels=accept");
    }
    return 0;
}

static int parse(const char *words, config *to, char *error, size_t room)
{
    *to = (config){.page_bytes = DEFAULT_PAGE, .order = SIM_EAGER, .devices = 1};
    char text[256];
    if (!words || strlen(words) >= sizeof text)
        return bad(error, room, "bad device", words ? "(too long)" : "(null)", "sim:SIZE[,...]");
    strcpy(text, words);
    if (strncmp(text, "sim:", 4) != 0)
        return bad(error, room, "bad device", words, "sim:SIZE[,order=...][,content][,page=SIZE][,devices=N][,kernels=accept]");
    char *rest = text + 4, *size = strsep(&rest, ",");
    if (!parse_size(size, &to->capacity) || to->capacity > UINT64_C(1) << 46)
        return bad(error, room, "bad size", size, "a number above 0 with KiB, MiB, GiB, TiB or nothing, at most 64TiB");
    char *word;
    while ((word = strsep(&rest, ",")))
        if (parse_word(word, to, error, room) != 0)
            return -1;
    return 0;
}

static void child_after_fork(void)
{
    pthread_cond_init(&sim.changed, NULL);
    if (sim.initialised) { /* CUDA cannot be used in a child of a process that initialised it */
        sim.initialised = false;
        sim.forked = true;
    }
    pthread_mutex_unlock(&sim.lock); /* taken by this very thread, before */
}

static void before_fork(void) { pthread_mutex_lock(&sim.lock); }

static void parent_after_fork(void) { pthread_mutex_unlock(&sim.lock); }

/* Everything as a fresh process would see it. */
static void start_over(void)
{
    static bool fork_hooks;
    if (!fork_hooks)
        fork_hooks = pthread_atfork(before_fork, parent_after_fork, child_after_fork) == 0;
    sim_notification_reset();
    sim_other_reset();
    sim_event_reset();
    sim_stream_reset();
    sim_lane_reset();
    sim_context_reset();
    sim_mapping_reset();
    sim_address_reset();
    sim_physical_reset();
    sim_registered_reset();
    sim_kernels_reset();
    sim_handle_reset();
    sim_finding_reset();
    sim_gate_reset();
    sim_clock_free(&sim.host);
    sim.generation++;
    sim.configured = true;
    sim.initialised = false;
    sim.device_count = now.devices;
    sim.page_bytes = now.page_bytes;
    sim.page_shift = (unsigned)__builtin_ctzll(now.page_bytes);
    sim.order = now.order;
    sim.seed = now.seed;
    sim.random = (now.seed + 1) * UINT64_C(0x9E3779B97F4A7C15) | 1;
    sim.content = now.content;
    sim.kernels = now.kernels;
    for (int i = 0; i < SIMCUDA_FEATURE_COUNT; i++)
        sim.features[i] = true;
    memset(sim.devices, 0, sizeof sim.devices);
    for (int i = 0; i < now.devices; i++)
        sim.devices[i].capacity = now.capacity;
    sim.host_version = 1;
    sim.host_ns = 0;
    sim.ceiling = DEFAULT_CEILING;
    sim.handles = sim.handle_bytes = sim.accessible = 0;
    sim_call_reset();
}

int simcuda_configure(const char *words, char *error, size_t error_bytes)
{
    config wanted;
    if (parse(words, &wanted, error, error_bytes) != 0)
        return -1;
    sim_front_leave();
    uint64_t start = sim_panel_enter();
    now = wanted;
    start_over();
    sim_panel_leave(start);
    return 0;
}

/* cuInit without a configuration: the environment's words, which are an error of the user's when they are wrong. */
void sim_config_default(void)
{
    char error[256], words[128];
    const char *given = getenv("SIMCUDA_DEVICE"), *size = getenv("SIMCUDA_CAPACITY");
    if (!given && size)
        snprintf(words, sizeof words, "sim:%s", size);
    else
        snprintf(words, sizeof words, "%s", given ? given : DEFAULT_WORDS);
    if (parse(words, &now, error, sizeof error) != 0) {
        fprintf(stderr, "%s\n", error);
        return; /* no devices */
    }
    start_over();
}

void simcuda_reset(void)
{
    sim_front_leave();
    uint64_t start = sim_panel_enter();
    if (sim.configured)
        start_over();
    sim_panel_leave(start);
}

void simcuda_set_feature(simcuda_feature feature, int on)
{
    uint64_t start = sim_panel_enter();
    if (!sim.configured)
        sim_config_default();
    if ((unsigned)feature < SIMCUDA_FEATURE_COUNT)
        sim.features[feature] = on != 0;
    sim_panel_leave(start);
}
