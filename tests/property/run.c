/*
 * Owns the run of a random program: its operations one after the other, a look at everything after each, and how the world is taken down.
 * One thread. Called by the property test and the fuzz target.
 */
#include "world.h"
#include "base/meta.h"

/* ---- the program ------------------------------------------------------------------------------------------------------------------------
 */

/* The pool that an operation tells to give memory up, by its root's slot. */
static unsigned shrinking(const world *w, const operation *step)
{
    bool shrinks = step->kind == DO_limit || step->kind == DO_trim || step->kind == DO_pause || step->kind == DO_pool_end;
    shrinks = shrinks || world_is_exportable(w, step); /* its own idle pages go back first */
    return shrinks && w->pools[step->pool].handle ? w->pools[step->pool].parent : POOL_SLOTS;
}

/* The program leaves alone, while it captures, what a capture forbids or what would have to wait for its end. */
static bool waits_for_capture(const operation *step)
{
    switch (step->kind) {
    case DO_wait:
    case DO_stream_make:
    case DO_stream_end:
    case DO_limit:
    case DO_trim:
    case DO_pause:
    case DO_region:
    case DO_device_trim:
    case DO_reserve:
    case DO_pool_make:
    case DO_pool_end:
        return true;
    default:
        return false;
    }
}

/* Operations that are done again when a driver call failed in them. */
static bool is_done_again(const operation *step)
{
    return step->kind == DO_alloc || step->kind == DO_limit || step->kind == DO_trim || step->kind == DO_pause ||
           step->kind == DO_device_trim || step->kind == DO_reserve || step->kind == DO_export || step->kind == DO_unordered;
}

/* Operations that the request of another thread may meet: none whose outcome hangs on how far that request is. */
static bool may_meet_request(const world *w, const operation *step)
{
    switch (step->kind) {
    case DO_alloc:
        return step->block != w->aside_step.block;
    case DO_free:
    case DO_free_some:
    case DO_use:
    case DO_stray:
    case DO_order:
    case DO_run:
    case DO_gate_close:
    case DO_gate_open:
    case DO_sibling_take:
    case DO_sibling_return:
    case DO_floor:
    case DO_trim:
    case DO_device_trim:
    case DO_reserve:
        return true;
    default:
        return false;
    }
}

static bool (*const actions[])(world *w, const operation *step) = {
#define OPERATION(name, weight, operands) do_##name,
#include "operations.def"
#undef OPERATION
};

/* One operation, in company or not, and a look at everything once the program is alone again. */
static bool do_step(world *w, const operation *step)
{
    bool passed_over = step->stream >= w->settings->streams || (w->capturing && waits_for_capture(step));
    bool met = w->aside.lives;
    if (met && (passed_over || !may_meet_request(w, step))) {
        met = false;
        if (!world_finish_aside(w) || !judge_state(w)) {
            return false;
        }
    }
    w->result->meetings += met;
    w->host_may_wait = step->kind != DO_alloc || w->capturing || w->failing || met;
    return passed_over || (actions[step->kind](w, step) && (!met || world_finish_aside(w)) && (w->aside.lives || judge_state(w)));
}

static bool begin_pools(world *w)
{
    bool good = true;
    for (unsigned i = 0; i < w->settings->pools && good; i++) {
        /* Other options for each pool and each order seed; see do_pool_make for what the bits mean. */
        const operation step = {.pool = i, .flags = w->settings->order_seed * 37 + i * 11};
        good = do_pool_make(w, &step);
    }
    return good;
}

static bool take_down(world *w)
{
    world_let_finish(w);
    world_take_failure(w);
    bool good = (!w->aside.lives || world_finish_aside(w)) && (!w->capturing || world_end_capture(w)) && world_drop_tags(w);
    for (unsigned pass = 0; pass < 2; pass++) { /* private pools first */
        for (unsigned i = 0; i < POOL_SLOTS && good; i++) {
            const operation step = {.pool = i, .flags = 1};
            bool is_private = w->pools[i].parent != i;
            good = is_private != (pass == 0) || (do_pool_end(w, &step) && judge_state(w));
        }
    }
    return good && world_end(w);
}

/* The library's tables that stay for the life of the process: made once. */
static void warm_up(void)
{
    cmpool_t pool;
    if (cmpool_create(&pool, NULL) == CMPOOL_OK) {
        cmpool_destroy(pool);
        cmpool_destroy(pool); /* refused: the thread's error detail is made too */
        world_warm_tags();
    }
}

void program_run(const program *p, outcome *result)
{
    static world w;
    *result = (outcome){0};
    bool good = world_start(&w, &p->world, result);
    if (good) {
        warm_up();
    }
    uint64_t before = cmi_meta_bytes();
    good = good && begin_pools(&w) && judge_state(&w);
    for (; good && result->at < p->count; result->at++) {
        const operation *step = &p->operations[result->at];
        w.shrinking = shrinking(&w, step);
        if (step->kind != DO_fail && !is_done_again(step)) {
            world_take_failure(&w);
        }
        good = do_step(&w, step);
        if (step->kind != DO_fail) {
            world_take_failure(&w);
        }
        if (!good) {
            break;
        }
    }
    good = good && take_down(&w);
    if (good && cmi_meta_bytes() != before) {
        world_fault(&w, "leak: %llu bytes of metadata before, %llu after", (unsigned long long)before,
                    (unsigned long long)cmi_meta_bytes());
    }
}
