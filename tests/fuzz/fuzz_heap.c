/*
 * Bytes as a program on the heap: each operation is validated and compared with a naive model. The same programs as the property test of
 * the heap runs, so that coverage can lead where random ones do not get. Stops the process at the first difference.
 */
#include "../unit/test_heap_program.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *data;
    size_t size, at;
} input;

enum { STEPS_MOST = 120 }; /* longer programs find no more, and take longer than many short ones */

static model subject;

/* Behind the end of the input comes a fixed sequence, so that what was begun can be finished. */
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
    const char *fault = program_start(&subject, draw_from_input, &in);
    for (unsigned step = 0; !fault && in.at < in.size && step < STEPS_MOST; step++) {
        fault = program_step(&subject);
    }
    if (!fault) {
        fault = program_end(&subject);
    }
    if (fault) {
        fprintf(stderr, "heap at byte %zu: %s\n", in.at, fault);
        abort();
    }
    return 0;
}
