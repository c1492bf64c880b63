/* Owns the progress bar on stderr; shown only on a terminal, redrawn once a percent. One thread. Called during runs. */
#include "tool.h"
#include <stdio.h>
#include <unistd.h>

enum { BAR_CELLS = 30 };

void tool_progress_begin(tool_progress *progress, const char *label)
{
    *progress = (tool_progress){.label = label, .stage = "", .shown = isatty(STDERR_FILENO), .drawn_percent = -1};
}

void tool_progress_draw(void *user, size_t done, size_t total)
{
    tool_progress *progress = user;
    int percent = total == 0 ? 100 : (int)((double)done * 100.0 / (double)total);
    if (!progress->shown || percent == progress->drawn_percent)
        return;
    progress->drawn_percent = percent;
    char bar[BAR_CELLS + 1];
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i * 100 < percent * BAR_CELLS ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %3d%% %s", progress->label, bar, percent, progress->stage);
    fflush(stderr);
}

void tool_progress_end(tool_progress *progress)
{
    if (!progress->shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}
