/*
 * Findings: what a real device would silently corrupt, as text. Guarded by sim.lock; written by the checker and by handle.c, read
 * through the panel.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define KEPT 64
#define TEXT_ROOM 320

static uint64_t counts[SIMCUDA_FINDING_KINDS];
static char texts[KEPT][TEXT_ROOM];
static size_t kept;

void sim_find(simcuda_finding_kind kind, const char *format, ...)
{
    counts[kind]++;
    if (kept == KEPT)
        return;
    int length = snprintf(texts[kept], TEXT_ROOM, "%s: ", sim_where());
    va_list args;
    va_start(args, format);
    vsnprintf(texts[kept] + length, TEXT_ROOM - (size_t)length, format, args);
    va_end(args);
    kept++;
}

void sim_finding_reset(void)
{
    for (int kind = 0; kind < SIMCUDA_FINDING_KINDS; kind++)
        counts[kind] = 0;
    kept = 0;
}

uint64_t simcuda_findings(simcuda_finding_kind kind)
{
    uint64_t start = sim_panel_enter();
    uint64_t count = (unsigned)kind < SIMCUDA_FINDING_KINDS ? counts[kind] : 0;
    sim_panel_leave(start);
    return count;
}

uint64_t simcuda_races(void)
{
    uint64_t start = sim_panel_enter();
    uint64_t count = counts[SIMCUDA_RACE_TOUCH] + counts[SIMCUDA_RACE_UNMAP];
    sim_panel_leave(start);
    return count;
}

const char *simcuda_finding_text(size_t index)
{
    uint64_t start = sim_panel_enter();
    const char *text = index < kept ? texts[index] : NULL;
    sim_panel_leave(start);
    return text;
}

void simcuda_findings_reset(void)
{
    uint64_t start = sim_panel_enter();
    sim_finding_reset();
    sim_panel_leave(start);
}
