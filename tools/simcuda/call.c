/*
 * What happens around every driver call: the lock, counts in four groups, modelled costs under two tables, failure plans and parking.
 * Guarded by sim.lock. Entered through SIM_ENTER / SIM_RETURN by every entry point; read by the panel.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct sim_cost {
    const char *name;
    simcuda_group group;
    uint64_t call_ns, page_ns;
    bool once;
};

static const sim_cost costs[] = {
#define SIM_COST(name, group, call_ns, page_ns, once) {name, group, call_ns, page_ns, once},
#include "sim_costs.def"
#undef SIM_COST
};
static const sim_cost cost_of_others = {"", SIMCUDA_OTHER, 200, 0, false};

/* The linker collects one pointer per entry point. */
extern sim_call *const sim_calls_first[] __asm__("__start_sim_calls");
extern sim_call *const sim_calls_end[] __asm__("__stop_sim_calls");

#define MAX_RULES 32
typedef struct fail_rule {
    const char *function; /* name of a sim_call or "*" */
    uint64_t seen, nth, count;
    int code;
    simcuda_when when;
} fail_rule;

static struct {
    fail_rule rules[MAX_RULES];
    char names[MAX_RULES][64];
    int rule_count;
    uint64_t injected;
    char park_name[64];
    uint64_t park_in; /* calls until one parks; 0: no plan */
    unsigned parked;
    uint64_t park_epoch; /* moves at each release */
    uint64_t groups[SIMCUDA_GROUPS];
    double per_page_ns, per_range_ns;
} plan;

static _Atomic uint64_t inside_ns;
static const char *where = "simcuda";

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Length of a name without _v2, _ptsz, _ptds. */
static size_t base_length(const char *name)
{
    size_t length = strlen(name);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0))
        length -= 5;
    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' && name[length - 1] >= '2' && name[length - 1] <= '9')
        length -= 3;
    return length;
}

/* Does the function go by this name? The exported name, the one cuGetProcAddress takes, or "*". */
static bool named(const sim_call *call, const char *name)
{
    if (strcmp(name, "*") == 0)
        return true;
    size_t base = base_length(call->name);
    return strcmp(call->name, name) == 0 || (strlen(name) == base && strncmp(call->name, name, base) == 0);
}

static bool known(const char *name)
{
    for (sim_call *const *call = sim_calls_first; call < sim_calls_end; call++)
        if (named(*call, name))
            return true;
    return false;
}

static const sim_cost *find_cost(const char *name)
{
    size_t base = base_length(name);
    for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++)
        if (strlen(costs[i].name) == base && strncmp(costs[i].name, name, base) == 0)
            return &costs[i];
    return &cost_of_others;
}

const char *sim_where(void) { return where; }

void sim_say_where(const char *name) { where = name; }

/* The rule that strikes this call, or NULL. */
static const fail_rule *strike(const sim_call *call)
{
    const fail_rule *found = NULL;
    for (int i = 0; i < plan.rule_count; i++) {
        fail_rule *rule = &plan.rules[i];
        if (!named(call, rule->function))
            continue;
        rule->seen++;
        if (rule->seen >= rule->nth && (rule->count == 0 || rule->seen - rule->nth < rule->count) && !found)
            found = rule;
    }
    return found;
}

static void park_if_planned(const sim_call *call)
{
    if (plan.park_in == 0 || !named(call, plan.park_name) || --plan.park_in > 0)
        return;
    uint64_t epoch = plan.park_epoch;
    plan.parked++;
    pthread_cond_broadcast(&sim.changed);
    while (plan.park_epoch == epoch)
        pthread_cond_wait(&sim.changed, &sim.lock);
    plan.parked--;
}

static void charge(const sim_frame *frame)
{
    const sim_cost *cost = frame->call->cost;
    uint64_t per_range = cost->once && frame->pages ? 1 : frame->pages;
    uint64_t ns = cost->call_ns + cost->page_ns * frame->pages;
    frame->call->count++;
    plan.groups[frame->host_waited ? SIMCUDA_HOST_SYNC : cost->group]++;
    plan.per_page_ns += (double)ns;
    plan.per_range_ns += (double)(cost->call_ns + cost->page_ns * per_range);
    sim.host_ns += ns;
}

static CUresult finish(sim_frame *frame, CUresult code)
{
    charge(frame);
    where = "simcuda";
    pthread_mutex_unlock(&sim.lock);
    atomic_fetch_add_explicit(&inside_ns, now_ns() - frame->start_ns, memory_order_relaxed);
    return code;
}

CUresult sim_call_enter(sim_frame *frame, sim_call *call)
{
    *frame = (sim_frame){.call = call, .start_ns = now_ns(), .code_after = CUDA_SUCCESS};
    if (sim_self()->in_callback)
        return CUDA_ERROR_NOT_PERMITTED; /* cuda.h, cuLaunchHostFunc: no CUDA calls in a host function */
    pthread_mutex_lock(&sim.lock);
    sim_thread_refresh();
    sim.call_number++;
    if (!call->cost)
        call->cost = find_cost(call->name);
    park_if_planned(call);
    where = call->name;
    if (plan.rule_count) {
        const fail_rule *rule = strike(call);
        if (rule) {
            plan.injected++;
            if (rule->when == SIMCUDA_BEFORE)
                return finish(frame, (CUresult)rule->code);
            frame->code_after = (CUresult)rule->code;
        }
    }
    if (call->needs_init && !sim.initialised)
        return finish(frame, CUDA_ERROR_NOT_INITIALIZED);
    return CUDA_SUCCESS;
}

CUresult sim_call_leave(sim_frame *frame, CUresult code)
{
    sim_device_after_call();
    if (code == CUDA_SUCCESS && frame->code_after != CUDA_SUCCESS)
        code = frame->code_after;
    return finish(frame, code);
}

uint64_t sim_panel_enter(void)
{
    uint64_t start_ns = now_ns();
    pthread_mutex_lock(&sim.lock);
    sim_thread_refresh();
    return start_ns;
}

void sim_panel_leave(uint64_t start_ns)
{
    pthread_mutex_unlock(&sim.lock);
    atomic_fetch_add_explicit(&inside_ns, now_ns() - start_ns, memory_order_relaxed);
}

static void reset_counts(void)
{
    for (sim_call *const *call = sim_calls_first; call < sim_calls_end; call++)
        (*call)->count = 0;
    memset(plan.groups, 0, sizeof plan.groups);
    plan.per_page_ns = plan.per_range_ns = 0;
}

void sim_call_reset(void)
{
    plan.rule_count = 0;
    plan.injected = 0;
    plan.park_in = 0;
    plan.park_epoch++;
    pthread_cond_broadcast(&sim.changed);
    reset_counts();
}

/* ---- panel ------------------------------------------------------------------------------------------------------------------ */

static bool keep_name(char to[64], const char *name)
{
    if (!name || strlen(name) > 63 || !known(name))
        return false;
    strcpy(to, name);
    return true;
}

int simcuda_fail(const char *function, uint64_t nth, uint64_t count, int code, simcuda_when when)
{
    uint64_t start = sim_panel_enter();
    int number = -1;
    if (!sim.configured)
        sim_config_default(); /* now, or cuInit would forget the plan */
    if (plan.rule_count < MAX_RULES && nth > 0 && keep_name(plan.names[plan.rule_count], function)) {
        number = plan.rule_count++;
        plan.rules[number] = (fail_rule){plan.names[number], 0, nth, count, code, when};
    }
    sim_panel_leave(start);
    return number;
}

void simcuda_fail_clear(void)
{
    uint64_t start = sim_panel_enter();
    plan.rule_count = 0;
    sim_panel_leave(start);
}

uint64_t simcuda_failures_injected(void)
{
    uint64_t start = sim_panel_enter();
    uint64_t injected = plan.injected;
    sim_panel_leave(start);
    return injected;
}

int simcuda_park(const char *function, uint64_t nth)
{
    uint64_t start = sim_panel_enter();
    int result = -1;
    if (!sim.configured)
        sim_config_default();
    if (nth > 0 && keep_name(plan.park_name, function)) {
        plan.park_in = nth;
        result = 0;
    }
    sim_panel_leave(start);
    return result;
}

int simcuda_wait_parked(int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&sim.lock);
    int waited = 0;
    while (plan.parked == 0 && waited == 0)
        waited = pthread_cond_timedwait(&sim.changed, &sim.lock, &until);
    int parked = plan.parked > 0;
    pthread_mutex_unlock(&sim.lock);
    return parked;
}

void simcuda_release_parked(void)
{
    pthread_mutex_lock(&sim.lock);
    plan.park_in = 0;
    plan.park_epoch++;
    pthread_cond_broadcast(&sim.changed);
    pthread_mutex_unlock(&sim.lock);
}

uint64_t simcuda_calls(simcuda_group group)
{
    uint64_t start = sim_panel_enter();
    uint64_t calls = (unsigned)group < SIMCUDA_GROUPS ? plan.groups[group] : 0;
    sim_panel_leave(start);
    return calls;
}

uint64_t simcuda_calls_of(const char *function)
{
    uint64_t start = sim_panel_enter(), calls = 0;
    for (sim_call *const *call = sim_calls_first; call < sim_calls_end; call++)
        if (named(*call, function))
            calls += (*call)->count;
    sim_panel_leave(start);
    return calls;
}

static int most_called_first(const void *a, const void *b)
{
    const sim_call *x = *(sim_call *const *)a, *y = *(sim_call *const *)b;
    return x->count != y->count ? (x->count < y->count ? 1 : -1) : strcmp(x->name, y->name);
}

const char *simcuda_call_at(size_t index, uint64_t *count)
{
    uint64_t start = sim_panel_enter();
    size_t all = (size_t)(sim_calls_end - sim_calls_first), used = 0;
    sim_call **sorted = malloc(all * sizeof *sorted);
    const char *name = NULL;
    for (size_t i = 0; sorted && i < all; i++)
        if (sim_calls_first[i]->count)
            sorted[used++] = sim_calls_first[i];
    if (index < used) {
        qsort(sorted, used, sizeof *sorted, most_called_first);
        name = sorted[index]->name;
        if (count)
            *count = sorted[index]->count;
    }
    free(sorted);
    sim_panel_leave(start);
    return name;
}

void simcuda_counts_reset(void)
{
    uint64_t start = sim_panel_enter();
    reset_counts();
    sim_panel_leave(start);
}

double simcuda_cost_us(const char *table)
{
    uint64_t start = sim_panel_enter();
    double us = -1;
    if (strcmp(table, "per_page") == 0)
        us = plan.per_page_ns / 1000;
    else if (strcmp(table, "per_range") == 0)
        us = plan.per_range_ns / 1000;
    sim_panel_leave(start);
    return us;
}

uint64_t simcuda_inside_ns(void) { return atomic_load_explicit(&inside_ns, memory_order_relaxed); }

uint64_t simcuda_clock_ns(void)
{
    uint64_t start = sim_panel_enter();
    uint64_t ns = sim.host_ns;
    sim_panel_leave(start);
    return ns;
}
