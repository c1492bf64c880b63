/* JSON into a file descriptor, for lib/inspect: no stdio, no heap; one buffer, a write when it is full. Belongs to one thread. */
#ifndef CMI_INSPECT_JSON_H
#define CMI_INSPECT_JSON_H

#include "base/base.h"

typedef struct cmi_json {
    int file;
    char *buffer;
    size_t used;
    int error;  /* errno of the first write that failed; nothing is written from there on */
    bool comma; /* before the next member or item */
} cmi_json;

bool cmi_json_open(cmi_json *json, int file); /* false: no host memory */
/* Writes out what is left; returns 0 or errno of the first failure. */
int cmi_json_close(cmi_json *json);

/* Members and items: the comma before them comes by itself. key NULL: an item of an array. */
void cmi_json_begin(cmi_json *json, const char *key, char bracket); /* '{' or '[' */
void cmi_json_end(cmi_json *json, char bracket);                    /* '}' or ']' */
void cmi_json_number(cmi_json *json, const char *key, uint64_t value);
void cmi_json_text(cmi_json *json, const char *key, const char *text);
void cmi_json_flag(cmi_json *json, const char *key, bool value);
void cmi_json_null(cmi_json *json, const char *key);
/* {"columns":[...],"rows":[ ; columns are the words of a list "a b c". Then rows, each begun and ended as an array, then the end. */
void cmi_json_table(cmi_json *json, const char *key, const char *columns);
void cmi_json_row(cmi_json *json);
void cmi_json_table_end(cmi_json *json);

#endif
