/* The list behind `cudamempool top`: what was read now, matched with what was read before. Owns the rows. One thread. Called by cmd_top.c
 * and top_screen.c. */
#include "top.h"

#include <stdio.h>
#include <stdlib.h>

const char *const top_order_names[TOP_ORDERS] = {"live", "reserved", "idle", "rate", "refusals", "process"};

static top_row *find(top_list *list, const live_pool *pool)
{
    for (size_t i = 0; i < list->count; i++) {
        const live_pool *row = &list->rows[i].now;
        if (row->process == pool->process && row->user == pool->user && row->figures.number == pool->figures.number)
            return &list->rows[i];
    }
    return NULL;
}

static void note(top_row *row, const live_pool *pool)
{
    if (row->samples > 0 && pool->figures.published_ns > row->now.figures.published_ns) {
        row->before = row->now;
        row->seconds = (double)(pool->figures.published_ns - row->before.figures.published_ns) / 1e9;
    } else {
        row->seconds = 0; /* nothing happened since */
    }
    row->now = *pool;
    row->live[row->samples++ % TOP_SAMPLES] = TOP(pool, live_bytes);
    row->seen = true;
}

bool top_refresh(top_list *list)
{
    if (!live_read(&list->view))
        return false;
    top_row *larger = realloc(list->rows, (list->count + list->view.count + 1) * sizeof *larger);
    if (larger == NULL)
        return false;
    list->rows = larger;
    for (size_t i = 0; i < list->count; i++)
        list->rows[i].seen = false;
    for (size_t i = 0; i < list->view.count; i++) {
        top_row *row = find(list, &list->view.pools[i]);
        if (row == NULL) {
            row = &list->rows[list->count++];
            *row = (top_row){0};
        }
        note(row, &list->view.pools[i]);
    }
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        if (list->rows[i].seen)
            list->rows[kept++] = list->rows[i];
    list->count = kept;
    top_sort(list);
    return true;
}

double top_rate(const top_row *row, int counter)
{
    uint64_t now = top_figure(&row->now, counter), before = top_figure(&row->before, counter);
    return row->seconds > 0 && now >= before ? (double)(now - before) / row->seconds : 0;
}

double top_age(const top_list *list, const top_row *row)
{
    uint64_t written = row->now.figures.published_ns;
    return list->view.time_ns > written ? (double)(list->view.time_ns - written) / 1e9 : 0;
}

/* What the list is sorted by, largest first. */
static double key_of(const top_row *row, top_order order)
{
    switch (order) {
    case TOP_BY_LIVE:
        return (double)TOP(&row->now, live_bytes);
    case TOP_BY_RESERVED:
        return (double)TOP(&row->now, reserved_bytes);
    case TOP_BY_IDLE:
        return (double)TOP(&row->now, idle_bytes);
    case TOP_BY_RATE:
        return top_rate(row, CMPOOL_LIVE_COUNTER_allocations);
    case TOP_BY_REFUSALS:
        return (double)TOP(&row->now, refusals);
    default:
        return -(double)row->now.process;
    }
}

static bool comes_before(const top_list *list, const top_row *a, const top_row *b)
{
    double x = key_of(a, list->order), y = key_of(b, list->order);
    if (x != y)
        return (x > y) != list->reversed;
    if (a->now.process != b->now.process)
        return a->now.process < b->now.process;
    return a->now.figures.number < b->now.figures.number;
}

void top_sort(top_list *list)
{
    for (size_t i = 1; i < list->count; i++) { /* nearly sorted already, and short */
        top_row row = list->rows[i];
        size_t at = i;
        for (; at > 0 && comes_before(list, &row, &list->rows[at - 1]); at--)
            list->rows[at] = list->rows[at - 1];
        list->rows[at] = row;
    }
}

void top_free(top_list *list)
{
    live_free(&list->view);
    free(list->rows);
    list->rows = NULL;
    list->count = 0;
}

const char *top_amount(uint64_t bytes, char *room, size_t length)
{
    static const char units[] = "BKMGTPE";
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1024 && units[unit + 1] != '\0'; unit++)
        value /= 1024;
    snprintf(room, length, unit == 0 ? "%.0f%c" : "%.1f%c", value, units[unit]);
    return room;
}
