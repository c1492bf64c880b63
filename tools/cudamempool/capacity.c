/* Owns the search for the smallest device that serves a trace whole. One thread. Called by cmd_replay.c. */
#include "replay_tool.h"
#include <stdio.h>

typedef struct search {
    const char *file;
    const cmi_trace *trace;
    const replay_options *options;
    tool_progress *progress;
    unsigned tried;
} search;

/* Served whole on a device of that many pages? Exit status. */
static int probe(search *s, uint64_t pages, bool *served)
{
    char stage[48];
    replay_outcome outcome;
    snprintf(stage, sizeof stage, "smallest device: size %u", ++s->tried);
    s->progress->stage = stage;
    s->progress->drawn_percent = -1;
    tool_progress_draw(s->progress, 1, 1);
    int code = replay_run(s->file, s->trace, s->options, REPLAY_PROBE, pages * s->options->conf.page_bytes, s->progress, &outcome, 0);
    s->progress->stage = "";
    *served = code == EXIT_FINE && outcome.refusals == 0;
    return code;
}

int replay_find_capacity(const char *file, const cmi_trace *trace, const replay_options *options, tool_progress *progress,
                         uint64_t *capacity_bytes)
{
    search s = {file, trace, options, progress, 0};
    const uint64_t least = (trace->peak_live_bytes + options->conf.page_bytes - 1) / options->conf.page_bytes;
    uint64_t fails = least - 1, fits = least, step = 1;
    bool served;
    int code = probe(&s, fits, &served);
    while (code == EXIT_FINE && !served) {
        fails = fits;
        if (fails >= 4 * least)
            return EXIT_FINE;
        fits = least + step;
        step *= 2;
        code = probe(&s, fits, &served);
    }
    while (code == EXIT_FINE && fits - fails > 1) {
        uint64_t middle = fails + (fits - fails) / 2;
        code = probe(&s, middle, &served);
        if (served)
            fits = middle;
        else
            fails = middle;
    }
    if (code == EXIT_FINE)
        *capacity_bytes = fits * options->conf.page_bytes;
    return code;
}
