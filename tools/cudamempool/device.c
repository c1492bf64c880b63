/*
 * Owns the driver library of a run and the calls the program itself makes on it (streams, events, kernels), kept apart from those that
 * the pool makes: the program's are counted here, with their modelled cost, and taken off what the device reports. One thread, no
 * locks. Called by the subcommands inside the process of a run (worker.c).
 */
#include "device.h"
#include "base/options.h"
#include "tool.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The driver calls that the tool makes itself: DRIVER_CALL(field, symbol, parameters). */
#define DRIVER_CALLS(DRIVER_CALL)                                                            \
    DRIVER_CALL(init, cuInit, (unsigned flags))                                              \
    DRIVER_CALL(device_get, cuDeviceGet, (int *device, int ordinal))                         \
    DRIVER_CALL(context_retain, cuDevicePrimaryCtxRetain, (void **context, int device))      \
    DRIVER_CALL(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                 \
    DRIVER_CALL(context_set, cuCtxSetCurrent, (void *context))                               \
    DRIVER_CALL(synchronise, cuCtxSynchronize, (void))                                       \
    DRIVER_CALL(stream_create, cuStreamCreate, (void **stream, unsigned flags))              \
    DRIVER_CALL(stream_destroy, cuStreamDestroy_v2, (void *stream))                          \
    DRIVER_CALL(stream_wait, cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) \
    DRIVER_CALL(event_create, cuEventCreate, (void **event, unsigned flags))                 \
    DRIVER_CALL(event_record, cuEventRecord, (void *event, void *stream))                    \
    DRIVER_CALL(event_destroy, cuEventDestroy_v2, (void *event))                             \
    DRIVER_CALL(fill, cuMemsetD8Async, (uint64_t address, unsigned char value, size_t bytes, void *stream))

enum { STREAM_NON_BLOCKING = 1, EVENT_NO_TIMING = 2 };

/* The program's own calls that can fall between the library's. */
enum { OWN_RECORD, OWN_WAIT, OWN_SYNCHRONISE, OWN_KINDS };
static const struct {
    const char *name;
    simcuda_group group;
} own_call[OWN_KINDS] = {
    [OWN_RECORD] = {"cuEventRecord", SIMCUDA_ORDER},
    [OWN_WAIT] = {"cuStreamWaitEvent", SIMCUDA_ORDER},
    [OWN_SYNCHRONISE] = {"cuCtxSynchronize", SIMCUDA_HOST_SYNC},
};

const char *const device_cost_table[DEVICE_COST_TABLES] = {"per_page", "per_range"};

struct device {
    void *library;
    bool simulated;
    int handle; /* CUdevice */
    void *event;
    struct {
#define DRIVER_CALL(field, symbol, params) int(*field) params;
        DRIVER_CALLS(DRIVER_CALL)
#undef DRIVER_CALL
    } driver;
    device_panel panel;
    uint64_t own[OWN_KINDS];
    double own_us[DEVICE_COST_TABLES];
};

/* ---- finding and loading ---------------------------------------------------------------------------------------------------- */

/* Where simcuda lies in a build tree and in an installation, seen from the folder of the program. */
static const char *const simcuda_places[] = {"../simcuda/libcuda.so.1", "../" TOOL_LIBDIR "/cudamempool/simcuda/libcuda.so.1"};

static bool find_simcuda(char path[PATH_MAX])
{
    char program[PATH_MAX / 2];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return false;
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    for (size_t i = 0; i < sizeof simcuda_places / sizeof *simcuda_places; i++) {
        snprintf(path, PATH_MAX, "%s/%s", program, simcuda_places[i]);
        if (access(path, R_OK) == 0)
            return true;
    }
    return false;
}

static int load_panel(void *library, const char *path, device_panel *panel)
{
#define DEVICE_PANEL(result, name, params)                       \
    *(void **)(&panel->name) = dlsym(library, "simcuda_" #name); \
    if (panel->name == NULL)                                     \
        return tool_say(EXIT_DEVICE, "%s lacks simcuda_" #name, path);
#include "panel.def"
#undef DEVICE_PANEL
    return EXIT_FINE;
}

static int load_simcuda(void **library, device_panel *panel, char path[PATH_MAX])
{
    if (!find_simcuda(path))
        return tool_say(EXIT_DEVICE, "the simulated device (simcuda/libcuda.so.1) was not found beside this program");
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*library == NULL)
        return tool_say(EXIT_DEVICE, "%s", dlerror());
    return load_panel(*library, path, panel);
}

/* ---- words ------------------------------------------------------------------------------------------------------------------ */

static int configure(const device_panel *panel, const device_words *words, uint64_t capacity_bytes)
{
    char text[224], reason[256] = "";
    snprintf(text, sizeof text, "sim:%llu%s", (unsigned long long)capacity_bytes, words->rest);
    if (panel->configure(text, reason, sizeof reason) == 0)
        return EXIT_FINE;
    return tool_say(EXIT_BAD_INPUT, "--device %s: %s", text, reason);
}

static int parse_simulated(const char *text, device_words *words)
{
    const char *size = text + strlen("sim:"), *comma = strchrnul(size, ',');
    if (!cmi_parse_size(size, (size_t)(comma - size), &words->capacity_bytes) || words->capacity_bytes == 0)
        return tool_say(EXIT_BAD_INPUT, "--device %s: '%.*s' is not a size of at least one byte (4096, 512MiB, 24GiB)", text,
                        (int)(comma - size), size);
    if (strlen(comma) >= sizeof words->rest)
        return tool_say(EXIT_BAD_INPUT, "--device %s: too long", text);
    strcpy(words->rest, comma);
    words->simulated = true;
    words->page_bytes = 2u << 20;
    const char *page = strstr(words->rest, ",page=");
    if (page != NULL) {
        page += strlen(",page=");
        if (!cmi_parse_size(page, strcspn(page, ","), &words->page_bytes) || words->page_bytes == 0)
            return tool_say(EXIT_BAD_INPUT, "--device %s: '%.*s' is not a page size", text, (int)strcspn(page, ","), page);
    }
    void *library;
    device_panel panel;
    char path[PATH_MAX];
    int code = load_simcuda(&library, &panel, path);
    return code != EXIT_FINE ? code : configure(&panel, words, words->capacity_bytes);
}

int device_parse(const char *text, device_words *words)
{
    *words = (device_words){0};
    if (strncmp(text, "sim:", 4) == 0)
        return parse_simulated(text, words);
    if (strncmp(text, "cuda:", 5) == 0 && text[5] != '\0' && strspn(text + 5, "0123456789") == strlen(text + 5) && strlen(text + 5) < 5) {
        words->ordinal = atoi(text + 5);
        return EXIT_FINE;
    }
    return tool_say(EXIT_BAD_INPUT, "--device %s: not a device; use cuda:N or sim:SIZE[,order=eager|lazy|random:SEED][,page=SIZE]...",
                    text);
}

/* ---- up and down ------------------------------------------------------------------------------------------------------------ */

static int load_driver(device *d, const char *path)
{
#define DRIVER_CALL(field, symbol, params)                     \
    *(void **)(&d->driver.field) = dlsym(d->library, #symbol); \
    if (d->driver.field == NULL)                               \
        return tool_say(EXIT_DEVICE, "%s lacks " #symbol, path);
    DRIVER_CALLS(DRIVER_CALL)
#undef DRIVER_CALL
    return EXIT_FINE;
}

static int start_driver(device *d, int ordinal)
{
    void *context;
    int code = d->driver.init(0);
    if (code != 0)
        return tool_say(EXIT_DEVICE, "cuInit gave %d: no usable CUDA driver", code);
    code = d->driver.device_get(&d->handle, ordinal);
    if (code != 0)
        return tool_say(EXIT_DEVICE, "there is no device %d (cuDeviceGet gave %d)", ordinal, code);
    code = d->driver.context_retain(&context, d->handle);
    if (code == 0)
        code = d->driver.context_set(context);
    if (code == 0)
        code = d->driver.event_create(&d->event, EVENT_NO_TIMING);
    return code == 0 ? EXIT_FINE : tool_say(EXIT_DEVICE, "no context on device %d: the driver gave %d", ordinal, code);
}

int device_open(const device_words *words, uint64_t capacity_bytes, device **opened)
{
    char path[PATH_MAX];
    int code = EXIT_FINE;
    device *d = calloc(1, sizeof *d);
    if (d == NULL)
        return tool_say(EXIT_DEVICE, "no host memory for a device");
    d->simulated = words->simulated;
    if (words->simulated) {
        code = load_simcuda(&d->library, &d->panel, path);
        if (code == EXIT_FINE)
            code = configure(&d->panel, words, capacity_bytes);
        setenv("CUDAMEMPOOL_DRIVER", path, 1);
    } else {
        const char *named = getenv("CUDAMEMPOOL_DRIVER");
        snprintf(path, sizeof path, "%s", named != NULL && *named != '\0' ? named : "libcuda.so.1");
        d->library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (d->library == NULL)
            code = tool_say(EXIT_DEVICE, "no CUDA driver: %s", dlerror());
    }
    if (code == EXIT_FINE)
        code = load_driver(d, path);
    if (code == EXIT_FINE)
        code = start_driver(d, words->ordinal);
    if (code != EXIT_FINE) {
        free(d);
        return code;
    }
    *opened = d;
    return EXIT_FINE;
}

void device_close(device *d)
{
    d->driver.event_destroy(d->event);
    d->driver.context_set(NULL);
    d->driver.context_release(d->handle);
    free(d); /* the library stays loaded: the pool's library may still look at it on exit */
}

const device_panel *device_get_panel(const device *d) { return &d->panel; }

/* ---- the program's own calls ------------------------------------------------------------------------------------------------ */

int device_stream_create(device *d, cmpool_stream *stream) { return d->driver.stream_create((void **)stream, STREAM_NON_BLOCKING); }

int device_stream_destroy(device *d, cmpool_stream stream) { return d->driver.stream_destroy(stream); }

/* sign -1 before own calls, +1 after: their modelled cost is what came on top in between. */
static void own_cost(device *d, double sign)
{
    for (size_t i = 0; i < DEVICE_COST_TABLES && d->simulated; i++)
        d->own_us[i] += sign * d->panel.cost_us(device_cost_table[i]);
}

static int order(void *self, cmpool_stream before, cmpool_stream after)
{
    device *d = self;
    own_cost(d, -1);
    int code = d->driver.event_record(d->event, before);
    d->own[OWN_RECORD]++;
    if (code == 0) {
        code = d->driver.stream_wait(after, d->event, 0);
        d->own[OWN_WAIT]++;
    }
    own_cost(d, 1);
    return code;
}

static int synchronise(void *self)
{
    device *d = self;
    own_cost(d, -1);
    int code = d->driver.synchronise();
    d->own[OWN_SYNCHRONISE]++;
    own_cost(d, 1);
    return code;
}

static int touch_simulated(void *self, cmpool_stream stream, uint64_t address, size_t bytes)
{
    return ((device *)self)->panel.touch(stream, address, bytes, 1);
}

static int touch_real(void *self, cmpool_stream stream, uint64_t address, size_t bytes)
{
    return ((device *)self)->driver.fill(address, 0, bytes, stream);
}

/* ---- what the simulated device tells ---------------------------------------------------------------------------------------- */

static uint64_t group_calls(device *d, simcuda_group group)
{
    uint64_t calls = d->panel.calls(group);
    for (size_t i = 0; i < OWN_KINDS; i++)
        if (own_call[i].group == group)
            calls -= d->own[i];
    return calls;
}

static uint64_t costly_calls(void *self) { return group_calls(self, SIMCUDA_MEMORY) + group_calls(self, SIMCUDA_HOST_SYNC); }

static size_t mappings(void *self, cmi_replay_mapping *mapping, size_t room)
{
    _Static_assert(sizeof(cmi_replay_mapping) == sizeof(simcuda_mapping), "the same three words");
    return ((device *)self)->panel.mappings((simcuda_mapping *)mapping, room);
}

static void memory(void *self, cmi_replay_memory *memory)
{
    simcuda_census census;
    ((device *)self)->panel.count_objects(0, &census);
    *memory = (cmi_replay_memory){census.handle_bytes, census.free_bytes};
}

static uint64_t inside_ns(void *self) { return ((device *)self)->panel.inside_ns(); }

cmi_replay_device device_operations(device *d)
{
    cmi_replay_device operations = {.self = d, .order = order, .touch = touch_real, .synchronise = synchronise};
    if (d->simulated) {
        operations.touch = touch_simulated;
        operations.costly_calls = costly_calls;
        operations.mappings = mappings;
        operations.memory = memory;
        operations.inside_ns = inside_ns;
    }
    return operations;
}

void device_counts_start(device *d)
{
    memset(d->own, 0, sizeof d->own);
    memset(d->own_us, 0, sizeof d->own_us);
    if (!d->simulated)
        return;
    d->panel.counts_reset();
    own_cost(d, 1); /* should the reset leave costs standing, they are not the library's */
}

void device_counts_read(device *d, device_counts *counts)
{
    const char *name;
    uint64_t count;
    memset(counts, 0, sizeof *counts);
    for (size_t i = 0; i < SIMCUDA_GROUPS; i++) {
        counts->group[i] = group_calls(d, (simcuda_group)i);
        counts->total += counts->group[i];
    }
    for (size_t i = 0; i < DEVICE_COST_TABLES; i++)
        counts->cost_us[i] = d->panel.cost_us(device_cost_table[i]) - d->own_us[i];
    for (size_t i = 0; (name = d->panel.call_at(i, &count)) != NULL && counts->name_count < DEVICE_MOST_NAMES; i++) {
        for (size_t k = 0; k < OWN_KINDS; k++)
            if (strcmp(own_call[k].name, name) == 0)
                count -= d->own[k];
        if (count == 0)
            continue;
        snprintf(counts->name[counts->name_count].name, sizeof counts->name[0].name, "%s", name);
        counts->name[counts->name_count++].count = count;
    }
}
