/* What the parts of `cudamempool top` share: the pools of all processes with what was seen of them before. One thread. */
#ifndef TOP_H
#define TOP_H

#include "live.h"

enum { TOP_SAMPLES = 120 };

/* A pool on the list. Rates are since the sample before, 0 at first sight. */
typedef struct top_row {
    live_pool now, before;
    double seconds; /* between the two; 0: seen once */
    uint64_t live[TOP_SAMPLES];
    unsigned samples; /* in all; number n is in place n % TOP_SAMPLES */
    bool seen;
} top_row;

typedef enum top_order { TOP_BY_LIVE, TOP_BY_RESERVED, TOP_BY_IDLE, TOP_BY_RATE, TOP_BY_REFUSALS, TOP_BY_PROCESS, TOP_ORDERS } top_order;
extern const char *const top_order_names[TOP_ORDERS];

typedef struct top_list {
    live_view view;
    top_row *rows;
    size_t count;
    top_order order;
    bool reversed;
} top_list;

/* Read the pages again. false: see live_read. */
bool top_refresh(top_list *list);
void top_sort(top_list *list);
void top_free(top_list *list);
static inline uint64_t top_figure(const live_pool *pool, int counter) { return pool->figures.counters[counter]; }
#define TOP(pool, name) top_figure(pool, CMPOOL_LIVE_COUNTER_##name)
double top_rate(const top_row *row, int counter);         /* a second */
double top_age(const top_list *list, const top_row *row); /* seconds since its figures were written */

/* "3.4G" in room; at most 7 characters. */
const char *top_amount(uint64_t bytes, char *room, size_t length);

/* A table, or one line of JSON, on standard output. Exit status. */
int top_print(const top_list *list);
int top_print_json(const top_list *list);
/* The screen, until a key ends it. Exit status. */
int top_show(top_list *list, double interval);

#endif
