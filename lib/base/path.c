/*
 * File names from patterns. No state, no lock; called by whoever is asked to write a file: snapshots and recorded traces.
 */
#include "base/path.h"

#include <stdio.h>
#include <unistd.h>

/* One place, in text; false: not allowed here. */
static bool place(char letter, const cmi_path_values *values, char *text, size_t bytes)
{
    switch (letter) {
    case '%':
        snprintf(text, bytes, "%%");
        return true;
    case 'p':
        snprintf(text, bytes, "%ld", (long)getpid());
        return values->process;
    case 'd':
        snprintf(text, bytes, "%d", values->device != NULL ? *values->device : 0);
        return values->device != NULL;
    case 'n':
        snprintf(text, bytes, "%u", values->number != NULL ? *values->number : 0);
        return values->number != NULL;
    default:
        return false;
    }
}

bool cmi_path_fill(char *path, size_t bytes, const char *pattern, const cmi_path_values *values)
{
    size_t used = 0;
    for (const char *at = pattern; *at != '\0'; at++) {
        char text[24] = {*at, '\0'};
        if (*at == '%' && !place(*++at, values, text, sizeof(text)))
            return false;
        for (const char *c = text; *c != '\0'; c++) {
            if (used + 1 >= bytes)
                return false;
            path[used++] = *c;
        }
    }
    path[used] = '\0';
    return used > 0;
}

bool cmi_path_has(const char *pattern, char letter)
{
    for (const char *at = pattern; *at != '\0'; at++)
        if (*at == '%' && *++at == letter)
            return true;
        else if (*at == '\0')
            return false;
    return false;
}
