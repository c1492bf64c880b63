/* The option table (options.def) and its parser. No state but what the caller holds. */
#ifndef CMI_OPTIONS_H
#define CMI_OPTIONS_H

#include <cudamempool/cudamempool.h>
#include <stdbool.h>

/* One field per option, in the unit of its kind: bytes, parts per million, seconds, 0/1, position of the word, every how many, number of
 * the text. */
typedef struct cmi_options {
#define CMPOOL_OPTION(key, kind, value, low, high, help) uint64_t key;
#include <cudamempool/options.def>
#undef CMPOOL_OPTION
} cmi_options;

enum { CMI_TEXT_BYTES = 4096 }; /* a text with its end */
enum { CMI_LIST_BYTES = 512 };  /* the longest list of names */
enum { CMI_PENDING_GROW, CMI_PENDING_WAIT };
enum { CMI_STREAM_CHECK_SLOW, CMI_STREAM_CHECK_ALWAYS, CMI_STREAM_CHECK_OFF };
enum { CMI_BACKEND_VMM, CMI_BACKEND_MALLOC };

void cmi_options_default(cmi_options *options);
/*
 * Apply "key:value,key:value" (text NULL is nothing; `source` names it in messages). Every unknown key or bad value is one line
 * on stderr naming key, value and what is allowed, and is skipped. PyTorch's own keys are named as not needed. Returns the number of
 * faults; the first one's line (without newline) is copied to fault if fault_bytes > 0.
 */
int cmi_options_parse(cmi_options *options, const char *text, const char *source, char *fault, size_t fault_bytes);
/* What the number of a TEXT option stands for; "" for 0. Never NULL. */
const char *cmi_options_text(uint64_t number);
/* "4096", "512MiB", "24GiB", "1.5GiB", "64K"/"M"/"G" (powers of 1024). false for anything else or beyond 2^64-1. */
bool cmi_parse_size(const char *text, size_t length, uint64_t *bytes);

#endif
