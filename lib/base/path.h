/* File names with a place for the process, the device and a number in them. */
#ifndef CMI_PATH_H
#define CMI_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* Which of them the pattern may have: %p is the process, %d the device, %n the number. */
typedef struct cmi_path_values {
    bool process;
    const int *device;      /* NULL: no %d */
    const unsigned *number; /* NULL: no %n */
} cmi_path_values;

/* Write the pattern with its places filled; "%%" is a percent sign. false: another '%', nothing at all, or no room. */
bool cmi_path_fill(char *path, size_t bytes, const char *pattern, const cmi_path_values *values);
/* Does the pattern have "%d" (or another letter)? */
bool cmi_path_has(const char *pattern, char letter);

#endif
