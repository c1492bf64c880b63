/* Numbers as people write them, besides cmi_parse_size (options.h). No state. */
#ifndef CMI_SIZE_H
#define CMI_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "0.01" or "1%", in parts per million, rounded down. false for anything else or beyond 2^64-1. */
bool cmi_parse_ratio(const char *text, size_t length, uint64_t *parts_per_million);
/* "30" or "30s", whole seconds. */
bool cmi_parse_seconds(const char *text, size_t length, uint64_t *seconds);

#endif
