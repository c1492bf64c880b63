/*
 * Programs as text: one line of settings, one line for each operation, "#" begins a remark. What is printed can be read again, so that a
 * failing program can be kept and replayed. No state.
 */
#include "program.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned operands;
} kinds[] = {
#define OPERATION(name, weight, operands) {#name, operands},
#include "operations.def"
#undef OPERATION
};

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
#define FIELD(name) {#name, offsetof(operation, name)},
#include "operations.def"
#undef FIELD
};

static const struct {
    const char *name;
    size_t offset;
    uint64_t least, choices;
} world_settings[] = {
#define SETTING(name, least, choices) {#name, offsetof(program_settings, name), least, choices},
#include "operations.def"
#undef SETTING
};

enum { SETTINGS = sizeof world_settings / sizeof world_settings[0] };

static uint64_t *number_in(const void *record, size_t offset) { return (uint64_t *)((char *)(uintptr_t)record + offset); }

void program_print(const program *p, FILE *out)
{
    fprintf(out, "world");
    for (size_t i = 0; i < SETTINGS; i++) {
        fprintf(out, " %s %" PRIu64, world_settings[i].name, *number_in(&p->world, world_settings[i].offset));
    }
    fputc('\n', out);
    for (size_t i = 0; i < p->count; i++) {
        const operation *step = &p->operations[i];
        fputs(kinds[step->kind].name, out);
        for (unsigned f = 0; f < FIELD_COUNT; f++) {
            if (kinds[step->kind].operands & 1u << f) {
                fprintf(out, " %s %" PRIu64, fields[f].name, *number_in(step, fields[f].offset));
            }
        }
        fputc('\n', out);
    }
}

/* "name number" pairs; false when a name is unknown or a number is missing. */
static bool read_settings(program_settings *world, char **rest)
{
    for (const char *name; (name = strtok_r(NULL, " \t\n", rest)) != NULL;) {
        const char *number = strtok_r(NULL, " \t\n", rest);
        size_t i = 0;
        while (i < SETTINGS && strcmp(name, world_settings[i].name) != 0) {
            i++;
        }
        uint64_t value = number ? strtoull(number, NULL, 0) : 0;
        if (i == SETTINGS || !number || value < world_settings[i].least || value - world_settings[i].least >= world_settings[i].choices) {
            return false;
        }
        *number_in(world, world_settings[i].offset) = value;
    }
    return true;
}

static bool read_operation(operation *step, const char *kind, char **rest)
{
    *step = (operation){0};
    while (step->kind < OPERATION_KINDS && strcmp(kind, kinds[step->kind].name) != 0) {
        step->kind++;
    }
    if (step->kind == OPERATION_KINDS) {
        return false;
    }
    for (const char *name; (name = strtok_r(NULL, " \t\n", rest)) != NULL;) {
        const char *number = strtok_r(NULL, " \t\n", rest);
        unsigned f = 0;
        while (f < FIELD_COUNT && strcmp(name, fields[f].name) != 0) {
            f++;
        }
        if (f == FIELD_COUNT || !number) {
            return false;
        }
        *number_in(step, fields[f].offset) = strtoull(number, NULL, 0);
    }
    return step->block < BLOCK_SLOTS && step->pool < POOL_SLOTS && step->stream < STREAM_SLOTS && step->other < STREAM_SLOTS;
}

bool program_read(program *p, FILE *in, char *error, size_t error_bytes)
{
    char line[1000];
    p->count = 0;
    for (size_t i = 0; i < SETTINGS; i++) {
        *number_in(&p->world, world_settings[i].offset) = world_settings[i].least;
    }
    for (unsigned number = 1; fgets(line, sizeof line, in); number++) {
        char *rest = NULL;
        line[strcspn(line, "#")] = 0;
        const char *first = strtok_r(line, " \t\n", &rest);
        bool good = !first || (strcmp(first, "world") == 0 && read_settings(&p->world, &rest)) ||
                    (p->count < OPERATIONS_MOST && read_operation(&p->operations[p->count], first, &rest));
        if (!good) {
            snprintf(error, error_bytes, "line %u is no operation", number);
            return false;
        }
        p->count += first && strcmp(first, "world") != 0;
    }
    return true;
}
