/*
 * Bytes as a program over the public API on the simulated device: the same operations and the same judge as the property test, so that
 * coverage can lead where random programs do not get. Stops the process at the first fault and prints the program.
 */
#include "../property/program.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *data;
    size_t size, at;
} input;

enum { OPERATIONS_OF_AN_INPUT = 100 };

static program subject;

/* Behind the end of the input comes a fixed sequence, so that the last operation is whole. */
static uint32_t draw_from_input(void *source, uint32_t below)
{
    input *in = source;
    uint32_t value = 0;
    for (uint32_t most = below; most > 1; most = most > 256 ? most / 256 : 1) {
        value = value << 8 | (in->at < in->size ? in->data[in->at] : (uint8_t)((in->at + 1) * 2654435761u >> 24));
        in->at++;
    }
    return value % below;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {.data = data, .size = size};
    outcome result;
    program_draw_settings(&subject, draw_from_input, &in);
    while (in.at < in.size && subject.count < OPERATIONS_OF_AN_INPUT) {
        program_draw(&subject, draw_from_input, &in);
    }
    program_run(&subject, &result);
    if (result.failed) {
        fprintf(stderr, "operation %zu: %s\n", result.at, result.fault);
        program_print(&subject, stderr);
        abort();
    }
    return 0;
}
