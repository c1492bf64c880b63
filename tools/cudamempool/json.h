/* JSON Lines writer: one object on one line, built in memory so that nothing half-made is ever printed. */
#ifndef TOOL_JSON_H
#define TOOL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json {
    char *text;
    size_t used, room;
    bool failed; /* no host memory: nothing will be printed */
    bool comma;  /* the next member needs one before it */
} json;

/* key NULL inside an array. */
void json_begin_object(json *out, const char *key);
void json_end_object(json *out);
void json_begin_array(json *out, const char *key);
void json_end_array(json *out);
void json_string(json *out, const char *key, const char *value); /* any bytes: what is not UTF-8 becomes U+FFFD */
void json_integer(json *out, const char *key, uint64_t value);
void json_real(json *out, const char *key, double value, int decimals); /* not a finite number: null */
void json_bool(json *out, const char *key, bool value);
void json_null(json *out, const char *key);
void json_figure(json *out, const char *key, uint64_t value);    /* UINT64_MAX is not known: null */
void json_address(json *out, const char *key, uint64_t address); /* "0x7f...": more than every reader of JSON keeps as a number */
/* A whole value that was built apart, and is forgotten there. */
void json_put(json *out, const char *key, json *value);
void json_forget(json *out);
/* Print the line and forget it. Returns 0, or -1 when it could not be built or written. */
int json_print(json *out, FILE *file);

#endif
