/*
 * Names for tags. A thread pushes names; the innermost one's number goes with what the thread allocates. A number stands for the name and
 * for the names around it, so a tag has a parent. Names are kept for the life of the process.
 */
#ifndef CMI_TAGS_H
#define CMI_TAGS_H

#include <stdbool.h>
#include <stdint.h>

/* Numbers of names start here; smaller ones are the program's own (cmpool_request.tag). */
#define CMI_TAG_FIRST UINT32_C(0x80000000)
enum { CMI_TAG_LONGEST = 255 };

extern __thread uint32_t cmi_tag_of_thread __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The calling thread's tag, or 0. */
static inline uint32_t cmi_tag_current(void) { return cmi_tag_of_thread; }
/* false: no host memory (the tag stays as it was). Names are cut at CMI_TAG_LONGEST. */
bool cmi_tag_push(const char *name);
/* false: nothing was pushed. */
bool cmi_tag_pop(void);
/* Names so far; number i (from 0) is tag CMI_TAG_FIRST + i. Names and parents never change. */
uint32_t cmi_tag_count(void);
const char *cmi_tag_name(uint32_t tag, uint32_t *parent);

#endif
