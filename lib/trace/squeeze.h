/*
 * A log without its blanks: how messages are found however a terminal, a mail or a logger has wrapped them. "Tried to allo\ncate 2 GiB"
 * and "[rank0]: Tried to allocate 2 GiB" are both "triedtoallocate2gib". Private to the reader of out-of-memory messages.
 */
#ifndef CMI_TRACE_SQUEEZE_H
#define CMI_TRACE_SQUEEZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cmi_squeezed {
    char *text; /* lower case, no blanks, no escape sequences, no line prefixes; ends in 0 */
    size_t length;
    size_t *line_starts; /* where in text each line of the original begins */
    size_t line_count;
} cmi_squeezed;

/* false without host memory. */
bool cmi_squeeze(const char *text, size_t bytes, cmi_squeezed *squeezed);
void cmi_squeezed_free(cmi_squeezed *squeezed);
/* Line of the original, from 1, that holds a place. */
size_t cmi_squeezed_line(const cmi_squeezed *squeezed, size_t at);

/* First place of a squeezed phrase in [from, to), SIZE_MAX if there is none. */
size_t cmi_squeezed_find(const cmi_squeezed *squeezed, const char *phrase, size_t from, size_t to);

/*
 * The size that begins at a place, or ends before it: digits with separators, then B, bytes, KB, KiB, ... TiB. bytes: its value, UINT64_MAX
 * where it is beyond 2^63 or no number; doubt: half of its last decimal. Returns whether there was a number with a unit.
 */
bool cmi_squeezed_size_at(const cmi_squeezed *squeezed, size_t at, uint64_t *bytes, uint64_t *doubt);
bool cmi_squeezed_size_before(const cmi_squeezed *squeezed, size_t end, uint64_t *bytes, uint64_t *doubt);

#endif
