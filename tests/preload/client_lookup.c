/*
 * Programs that look the driver up. By name, one dlsym for each function. Or as runtimes do that are linked into a program: one dlsym, the
 * driver's own look-up asked for itself, everything else through what that returned. Or a host that opens a plugin for itself alone.
 */
#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef CUresult(CUDAAPI *look_up_function)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static int by_name(const char *behaviour)
{
    static client_driver driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found;
#define CLIENT_FIND(name, symbol, version, params) \
    found = dlsym(library, #symbol);               \
    memcpy(&driver.name, &found, sizeof found);
    CLIENT_FUNCTIONS(CLIENT_FIND)
    return client_behave(&driver, behaviour);
}

static int as_runtimes(const char *behaviour)
{
    static client_driver driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = dlsym(library, "cuGetProcAddress_v2"), *answer = NULL;
    look_up_function first, look_up;
    memcpy(&first, &found, sizeof found);
    first("", &answer, 0, 0, NULL);
    if (first("cuGetProcAddress", &answer, 12000, 0, NULL) != CUDA_SUCCESS) {
        return 2;
    }
    memcpy(&look_up, &answer, sizeof answer);
#define CLIENT_ASK(name, symbol, version, params)                               \
    if (look_up(#name, &answer, version, 0, NULL) != CUDA_SUCCESS || !answer) { \
        fprintf(stderr, "%s was not found\n", #name);                           \
        return 2;                                                               \
    }                                                                           \
    memcpy(&driver.name, &answer, sizeof answer);
    CLIENT_FUNCTIONS(CLIENT_ASK)
    return client_behave(&driver, behaviour);
}

static int with_plugin(const char *path, const char *behaviour)
{
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    void *found = dlsym(plugin, "client_run");
    int (*run)(const char *);
    memcpy(&run, &found, sizeof found);
    return run(behaviour);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "dlsym") == 0) {
        return by_name(argv[2]);
    }
    if (argc == 3 && strcmp(argv[1], "runtime") == 0) {
        return as_runtimes(argv[2]);
    }
    if (argc == 3) {
        return with_plugin(argv[1], argv[2]);
    }
    fprintf(stderr, "usage: %s dlsym|runtime|PLUGIN BEHAVIOUR\n", argv[0]);
    return 2;
}
