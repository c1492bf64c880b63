/*
 * For tests of the library over the simulated device: its control panel by function pointer (sim.fail(...)), found in the very library
 * that the code under test loads as its driver. Brings cmocka with it, less its macro fail().
 */
#ifndef WITH_SIMCUDA_H
#define WITH_SIMCUDA_H

#include "driver/driver.h"
#include "simcuda.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#undef fail

/* clang-format off */
#define SIM_PANEL(F) \
    F(configure) F(reset) F(set_feature) F(touch) F(fail) \
    F(fail_clear) F(failures_injected) F(park) F(wait_parked) F(release_parked) \
    F(calls) F(calls_of) F(counts_reset) F(sibling_take) F(sibling_return) \
    F(count_objects) F(mapping_at) F(findings) F(finding_text)
/* clang-format on */

static struct sim_panel {
#define F(name) __typeof__(simcuda_##name) *name;
    SIM_PANEL(F)
#undef F
} sim;

static void *sim_symbol(const char *name)
{
    static void *library;
    if (library == NULL)
        library = dlopen(getenv("CUDAMEMPOOL_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "no %s in CUDAMEMPOOL_DRIVER: %s\n", name, dlerror());
        exit(2);
    }
    return symbol;
}

/* Fresh devices, and the library's table of the driver forgotten. */
static inline void sim_start(const char *words)
{
    void *symbol;
#define F(name)                            \
    symbol = sim_symbol("simcuda_" #name); \
    memcpy(&sim.name, &symbol, sizeof(symbol));
    SIM_PANEL(F)
#undef F
    char error[200];
    if (sim.configure(words, error, sizeof(error)) != 0) {
        fprintf(stderr, "%s: %s\n", words, error);
        exit(2);
    }
    cmi_driver_forget();
}

static inline simcuda_census sim_census(int device)
{
    simcuda_census census;
    sim.count_objects(device, &census);
    return census;
}

#endif
