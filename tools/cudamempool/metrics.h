/* Figures of running processes as Prometheus reads them. No state; one thread. */
#ifndef METRICS_H
#define METRICS_H

#include "live.h"

#include <stdio.h>

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* The text exposition format, version 0.0.4. */
void metrics_write(const live_view *view, FILE *out);

#endif
