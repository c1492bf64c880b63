/* What `explain` says of one refusal: the case, the figures, what helps and what does not. */
#ifndef TOOL_EXPLAIN_H
#define TOOL_EXPLAIN_H

#include "json.h"
#include "trace/oom_message.h"
#include "trace/picture.h"
#include <stdbool.h>
#include <stddef.h>

#define EXPLAIN_LINES 10
#define EXPLAIN_LINE_BYTES 400

typedef struct explain_lines {
    char text[EXPLAIN_LINES][EXPLAIN_LINE_BYTES];
    size_t count;
} explain_lines;

typedef struct explain_answer {
    cmi_verdict verdict;
    uint64_t short_by;     /* bytes missing even with perfect packing; CMI_FIGURE_UNKNOWN */
    explain_lines helps;   /* in this case, the best first */
    explain_lines useless; /* what is often advised and would change nothing here, and why */
    explain_lines missing; /* figures that the answer would need, where it is unclear */
} explain_answer;

void explain_refusal(const cmi_oom_message *message, explain_answer *answer);

/* The refusals of a snapshot as messages, in one malloc'ed array. Returns their number, SIZE_MAX without host memory. */
size_t explain_picture(const cmi_picture *picture, cmi_oom_message **messages);
/* Figures that a message does not say, from a snapshot of the same refusal or of the same moment; else it stays as it is. */
void explain_with_picture(const cmi_picture *picture, cmi_oom_message *message);

/* An answer as text, and as members of a JSON object. */
void explain_print(const char *file, const cmi_oom_message *message, const explain_answer *answer);
void explain_put(json *out, const cmi_oom_message *message, const explain_answer *answer);

/* "10.84 GiB", "20 MiB", "512 bytes"; unknown figures are "not said". text has 32 bytes. */
const char *explain_size(uint64_t bytes, char text[32]);

#endif
