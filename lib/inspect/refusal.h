/* A refusal in words and as JSON, and its verdict. Pure functions of the figures. */
#ifndef CMI_INSPECT_REFUSAL_H
#define CMI_INSPECT_REFUSAL_H

#include "inspect/json.h"
#include "inspect/verdict.h"

cmpool_verdict cmi_refusal_verdict(const cmpool_refusal *refusal);
/* The report; returns its whole length, of which at most bytes - 1 are written. */
size_t cmi_refusal_text(const cmpool_refusal *refusal, char *text, size_t bytes);
/* One sentence, empty where there is no advice with that number (from 0). */
void cmi_refusal_advice(const cmpool_refusal *refusal, unsigned number, char *text, size_t bytes);
/* As member `key`; null where number is 0. */
void cmi_refusal_write(cmi_json *json, const char *key, const cmpool_refusal *refusal);

#endif
