/*
 * The screen of `cudamempool top`, drawn with ncurses: a list of pools with bars and the course of their live bytes, and a page for one of
 * them. Owns the terminal while it runs, and which row is chosen. One thread. Called by cmd_top.c.
 */
#include "tool.h"
#include "top.h"

#ifndef TOOL_NCURSES

int top_show(top_list *list, double interval)
{
    (void)list;
    (void)interval;
    return tool_say(EXIT_DEVICE, "built without ncurses: there is no screen, but top --once and top --json work");
}

#else

#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_ROW = 3, BAR = 20, SPARK = 24, KEY_ESCAPE = 27, KEY_DELETE = 127 };

typedef struct screen {
    top_list *list;
    uint64_t process, number; /* of the chosen pool */
    size_t chosen, first;     /* rows */
    bool drilled, failed;
} screen;

static const char *const levels[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
static const char plain_levels[] = " ._-:=+*#"; /* terminals without UTF-8 */
static bool utf8;

/* ---- pieces ------------------------------------------------------------------------------------------- */

/* live and reserved, as shares of the whole. */
static void draw_bar(int y, int x, int width, const live_pool *pool)
{
    double whole = (double)(pool->figures.limit_bytes ? pool->figures.limit_bytes : pool->figures.device_bytes);
    int live = whole > 0 ? (int)((double)TOP(pool, live_bytes) / whole * width + 0.5) : 0;
    int held = whole > 0 ? (int)((double)TOP(pool, reserved_bytes) / whole * width + 0.5) : 0;
    mvaddch(y, x, '[');
    for (int i = 0; i < width; i++)
        addch(i < live ? '|' | A_BOLD : i < held ? '.' : ' ');
    addch(']');
}

/* The last samples of live bytes between 0 and their largest. */
static void draw_course(int y, int x, int width, const top_row *row)
{
    unsigned count = row->samples < TOP_SAMPLES ? row->samples : TOP_SAMPLES;
    count = count < (unsigned)width ? count : (unsigned)width;
    uint64_t most = 1;
    for (unsigned i = 0; i < count; i++) {
        uint64_t at = row->live[(row->samples - count + i) % TOP_SAMPLES];
        most = at > most ? at : most;
    }
    move(y, x);
    for (unsigned i = 0; i < count; i++) {
        double share = (double)row->live[(row->samples - count + i) % TOP_SAMPLES] / (double)most;
        unsigned level = (unsigned)(share * 8 + 0.5);
        if (utf8)
            addstr(levels[level]);
        else
            addch((chtype)plain_levels[level]);
    }
}

static void draw_head(const screen *s)
{
    uint64_t live = 0, reserved = 0, idle = 0;
    char a[16], b[16], c[16];
    for (size_t i = 0; i < s->list->count; i++) {
        live += TOP(&s->list->rows[i].now, live_bytes);
        reserved += TOP(&s->list->rows[i].now, reserved_bytes);
        idle += TOP(&s->list->rows[i].now, idle_bytes);
    }
    attron(A_BOLD);
    mvprintw(0, 0, "cudamempool top");
    attroff(A_BOLD);
    printw("  %u processes, %zu pools: %s live, %s reserved, %s idle", s->list->view.processes, s->list->count,
           top_amount(live, a, sizeof a), top_amount(reserved, b, sizeof b), top_amount(idle, c, sizeof c));
    if (s->list->view.unreadable > 0)
        printw("; %u of another version of the library", s->list->view.unreadable);
}

/* ---- the list ----------------------------------------------------------------------------------------- */

static void draw_row(const screen *s, size_t number, int y)
{
    const top_row *row = &s->list->rows[number];
    const live_pool *pool = &row->now;
    char live[16], reserved[16], idle[16];
    if (number == s->chosen)
        attron(A_REVERSE);
    mvprintw(y, 0, "%8llu %-15.15s %3llu %4llu %8s %8s %8s %9.0f %7.0f %7llu %6.0fs", (unsigned long long)pool->process, pool->program,
             (unsigned long long)pool->figures.device, (unsigned long long)pool->figures.number,
             top_amount(TOP(pool, live_bytes), live, sizeof live), top_amount(TOP(pool, reserved_bytes), reserved, sizeof reserved),
             top_amount(TOP(pool, idle_bytes), idle, sizeof idle), top_rate(row, CMPOOL_LIVE_COUNTER_allocations),
             top_rate(row, CMPOOL_LIVE_COUNTER_page_moves), (unsigned long long)TOP(pool, refusals), top_age(s->list, row));
    attroff(A_REVERSE);
    int x = getcurx(stdscr) + 1;
    draw_bar(y, x, BAR, pool);
    draw_course(y, x + BAR + 3, SPARK, row);
}

static void draw_list(screen *s)
{
    int rows = LINES - FIRST_ROW - 1;
    size_t shown = rows > 0 ? (size_t)rows : 0;
    if (s->chosen < s->first)
        s->first = s->chosen;
    if (shown > 0 && s->chosen >= s->first + shown)
        s->first = s->chosen - shown + 1;
    attron(A_UNDERLINE);
    mvprintw(2, 0, "%8s %-15s %3s %4s %8s %8s %8s %9s %7s %7s %7s %-*s  %s", "PID", "PROGRAM", "GPU", "POOL", "LIVE", "RESERVED", "IDLE",
             "ALLOC/s", "MOVES/s", "REFUSED", "AGE", BAR + 2, "live | reserved .", "live bytes");
    attroff(A_UNDERLINE);
    for (size_t i = s->first; i < s->list->count && i < s->first + shown; i++)
        draw_row(s, i, FIRST_ROW + (int)(i - s->first));
    if (s->list->count == 0)
        mvprintw(FIRST_ROW, 0, "No process shows a pool in %s: start one with CUDAMEMPOOL_CONF=live:on, or cudamempool run --conf live:on.",
                 live_folder());
    mvprintw(LINES - 1, 0, "sorted by %s%s   l r i a f p: sort  R: turn  Enter: one pool  Space: now  q: end",
             top_order_names[s->list->order], s->list->reversed ? ", smallest first" : "");
}

/* ---- one pool ----------------------------------------------------------------------------------------- */

static bool is_bytes(const char *name) { return strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_bytes") == 0; }

static void draw_pool(const screen *s)
{
    const top_row *row = &s->list->rows[s->chosen];
    const live_pool *pool = &row->now;
    char amount[16];
    int y = 2;
    mvprintw(y++, 0, "%s, process %llu, GPU %llu, pool %llu: %s of memory%s, figures %.0f s old", pool->program,
             (unsigned long long)pool->process, (unsigned long long)pool->figures.device, (unsigned long long)pool->figures.number,
             top_amount(pool->figures.limit_bytes ? pool->figures.limit_bytes : pool->figures.device_bytes, amount, sizeof amount),
             pool->figures.limit_bytes ? " allowed" : "", top_age(s->list, row));
    draw_bar(y++, 0, COLS > 4 ? COLS - 4 : 1, pool);
    draw_course(y, 0, COLS - 1, row);
    y += 2;
    for (int i = 0; i < CMPOOL_LIVE_COUNTERS && y < LINES - 1; i++, y++) {
        uint64_t figure = top_figure(pool, i);
        if (is_bytes(live_counters[i].name))
            mvprintw(y, 0, "%-20s %14s %12s  %s", live_counters[i].name, top_amount(figure, amount, sizeof amount), "",
                     live_counters[i].help);
        else if (live_counters[i].kind == LIVE_COUNT)
            mvprintw(y, 0, "%-20s %14llu %10.1f/s  %s", live_counters[i].name, (unsigned long long)figure, top_rate(row, i),
                     live_counters[i].help);
        else
            mvprintw(y, 0, "%-20s %14llu %12s  %s", live_counters[i].name, (unsigned long long)figure, "", live_counters[i].help);
    }
    for (int i = 0; i < CMPOOL_LIVE_VERDICTS && y < LINES - 1; i++)
        if (pool->figures.refusals_by[i] > 0)
            mvprintw(y++, 0, "refused: %-15s %10llu", live_verdicts[i], (unsigned long long)pool->figures.refusals_by[i]);
    mvprintw(LINES - 1, 0, "Escape: the list again  Space: now  q: end");
}

/* ---- keys --------------------------------------------------------------------------------------------- */

/* The chosen pool stays chosen where the order changes; when it ends, another one takes its place in the list. */
static void find_chosen(screen *s)
{
    for (size_t i = 0; i < s->list->count; i++)
        if (s->list->rows[i].now.process == s->process && s->list->rows[i].now.figures.number == s->number) {
            s->chosen = i;
            return;
        }
    s->drilled = false;
    s->chosen = s->chosen < s->list->count ? s->chosen : s->list->count > 0 ? s->list->count - 1 : 0;
}

static void choose(screen *s, size_t row)
{
    if (row < s->list->count) {
        s->chosen = row;
        s->process = s->list->rows[row].now.process;
        s->number = s->list->rows[row].now.figures.number;
    }
}

static void sort_by(screen *s, top_order order)
{
    s->list->order = order;
    s->list->reversed = false;
}

/* false: the screen ends. */
static bool take_key(screen *s, int key)
{
    static const char order_keys[] = "lriafp"; /* in the order of top_order */
    const char *order = key > 0 && key < 128 ? strchr(order_keys, key) : NULL;
    if (key == 'q')
        return false;
    if (order != NULL)
        sort_by(s, (top_order)(order - order_keys));
    else if (key == 'R')
        s->list->reversed = !s->list->reversed;
    else if ((key == KEY_DOWN || key == 'j') && !s->drilled)
        choose(s, s->chosen + 1);
    else if ((key == KEY_UP || key == 'k') && !s->drilled && s->chosen > 0)
        choose(s, s->chosen - 1);
    else if (key == '\n' || key == '\r' || key == KEY_ENTER)
        s->drilled = s->list->count > 0;
    else if (key == KEY_ESCAPE || key == KEY_BACKSPACE || key == KEY_DELETE || key == KEY_LEFT)
        s->drilled = false;
    top_sort(s->list);
    return true;
}

/* After a key the screen is drawn again; the pages are read again when the time has come, or for a space. */
static void run(screen *s, double interval)
{
    choose(s, 0);
    for (;;) {
        find_chosen(s);
        if (s->process == 0)
            choose(s, 0);
        erase();
        draw_head(s);
        if (s->drilled)
            draw_pool(s);
        else
            draw_list(s);
        refresh();
        timeout((int)(interval * 1000));
        int key = getch();
        if (!take_key(s, key))
            return;
        if ((key == ERR || key == ' ') && !top_refresh(s->list)) {
            s->failed = true;
            return;
        }
    }
}

int top_show(top_list *list, double interval)
{
    screen s = {.list = list};
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return tool_say(EXIT_BAD_INPUT, "top needs a terminal; for scripts there are --once and --json");
    utf8 = setlocale(LC_CTYPE, "") != NULL && MB_CUR_MAX > 1;
    ESCDELAY = 25;
    if (newterm(NULL, stdout, stdin) == NULL)
        return tool_say(EXIT_DEVICE, "this kind of terminal is not known (TERM)");
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    run(&s, interval);
    endwin();
    return s.failed ? tool_say(EXIT_DEVICE, "%s: %s", live_folder(), strerror(errno)) : EXIT_FINE;
}

#endif
