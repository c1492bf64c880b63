/* The device a run uses: simulated (simcuda beside the tool, loaded by path) or real; and the program's own calls on it. */
#ifndef TOOL_DEVICE_H
#define TOOL_DEVICE_H

#include "simcuda.h"
#include "trace/replay.h"

/* What --device says. */
typedef struct device_words {
    bool simulated;
    int ordinal;             /* cuda:N; 0 for a simulated one */
    uint64_t capacity_bytes; /* simulated */
    uint64_t page_bytes;     /* simulated: granularity */
    char rest[160];          /* simulated: ",order=lazy..." */
} device_words;

enum { DEVICE_MOST_NAMES = 96, DEVICE_COST_TABLES = 2 };

/* Driver calls that the library made: all calls less the program's own. */
typedef struct device_counts {
    uint64_t total, group[SIMCUDA_GROUPS];
    double cost_us[DEVICE_COST_TABLES]; /* by per_page, per_range */
    size_t name_count;
    struct {
        char name[48];
        uint64_t count;
    } name[DEVICE_MOST_NAMES];
} device_counts;

typedef struct device device;

/* Understand the words and, for a simulated device, have simcuda itself check them. Exit status; a message has been printed. */
int device_parse(const char *text, device_words *words);
/* Names of the built-in cost tables. */
extern const char *const device_cost_table[DEVICE_COST_TABLES];

/*
 * Bring the device up in this process: configured with capacity_bytes (simulated), driver initialised, primary context current. The
 * library will load the same driver. Counting of driver calls starts here. Exit status; a message has been printed.
 */
int device_open(const device_words *words, uint64_t capacity_bytes, device **opened);
void device_close(device *d);

/* The program's own calls. They are not counted as the library's. Streams are non-blocking. Return 0 or the driver's code. */
int device_stream_create(device *d, cmpool_stream *stream);
int device_stream_destroy(device *d, cmpool_stream stream);
/* Operations for the replayer; those that need the simulation are NULL on a real device. */
cmi_replay_device device_operations(device *d);
/* Forget the counts so far, e.g. those of setting up streams. */
void device_counts_start(device *d);
/* Simulated devices only. */
void device_counts_read(device *d, device_counts *counts);

/* The simulated device's control panel; members are NULL on a real device. */
typedef struct device_panel {
#define DEVICE_PANEL(result, name, params) result(*name) params;
#include "panel.def"
#undef DEVICE_PANEL
} device_panel;
const device_panel *device_get_panel(const device *d);

#endif
