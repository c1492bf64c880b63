/*
 * A program linked against the driver, and the same as a plugin that brings the driver with it: their calls go where the loader binds them.
 */
#include "client.h"

#include <stdio.h>

#define CLIENT_DECLARE(name, symbol, version, params) CUresult CUDAAPI symbol params;
CLIENT_FUNCTIONS(CLIENT_DECLARE)

int client_run(const char *behaviour) __attribute__((visibility("default")));
int client_run(const char *behaviour)
{
    static client_driver driver;
#define CLIENT_TAKE(name, symbol, version, params) driver.name = symbol;
    CLIENT_FUNCTIONS(CLIENT_TAKE)
    return client_behave(&driver, behaviour);
}

#ifndef CLIENT_PLUGIN
int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s BEHAVIOUR\n", argv[0]);
        return 2;
    }
    return client_run(argv[1]);
}
#endif
