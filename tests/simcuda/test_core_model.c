/*
 * The race checker against the definition: random programs run on the device and on a model that keeps, for every touch, the set of all
 * touches ordered before it. Both must find the first race at the same step, or none.
 */
#include "sim_test.h"

#define STREAMS 4 /* two non-blocking, one blocking, the legacy stream */
#define BLOCKING 2
#define LEGACY 3
#define EVENTS 3
#define SLOTS 3 /* addresses, for two pages */
#define CELLS 8 /* parts of a page, by which the model tells bytes apart */
#define CELL (PAGE / CELLS)
#define STEPS 60 /* as many touches fit a set */

typedef uint64_t touches; /* a set of steps */

typedef struct touch_record {
    int page, slot, first, end; /* cells */
    bool write, unmapped;       /* unmapped: the slot it went through has been unmapped since */
} touch_record;

static uint64_t random_state;

static unsigned chance(unsigned below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)((random_state >> 20) % below);
}

static struct {
    touches stream[STREAMS], event[EVENTS], host;
    bool recorded[EVENTS];
    int page_at[SLOTS]; /* -1: not mapped */
    touch_record record[STEPS];
} model;

static CUstream streams[STREAMS];
static CUevent events[EVENTS];
static CUdeviceptr base;
static CUmemGenericAllocationHandle pages[2];

/* What a new action on the stream comes after. */
static void model_act(unsigned stream)
{
    model.stream[stream] |= model.host;
    if (stream == LEGACY)
        model.stream[LEGACY] |= model.stream[BLOCKING];
    if (stream == BLOCKING)
        model.stream[BLOCKING] |= model.stream[LEGACY];
}

static bool model_touch(int step, unsigned stream, touch_record touch)
{
    bool race = false;
    model_act(stream);
    for (int i = 0; i < step; i++) {
        const touch_record *old = &model.record[i];
        if (old->end > old->first && old->page == touch.page && old->first < touch.end && touch.first < old->end &&
            (old->write || touch.write) && !(model.stream[stream] >> i & 1))
            race = true;
    }
    model.record[step] = touch;
    model.stream[stream] |= UINT64_C(1) << step;
    return race;
}

static bool model_unmap(int step, int slot)
{
    bool race = false;
    for (int i = 0; i < step; i++) {
        touch_record *old = &model.record[i];
        if (old->end > old->first && old->slot == slot && !old->unmapped) {
            race |= !(model.host >> i & 1);
            old->unmapped = true;
        }
    }
    model.page_at[slot] = -1;
    return race;
}

/* One step on both sides; true if the model says that it races. */
static bool step(int number)
{
    unsigned stream = chance(STREAMS), event = chance(EVENTS);
    int slot = (int)chance(SLOTS);
    CUdeviceptr address = base + (uint64_t)slot * PAGE;
    switch (chance(12)) {
    case 0:
    case 1:
        OK(cuEventRecord(events[event], streams[stream]));
        model_act(stream);
        model.event[event] = model.stream[stream];
        model.recorded[event] = true;
        return false;
    case 2:
    case 3:
        OK(cuStreamWaitEvent(streams[stream], events[event], 0));
        if (model.recorded[event]) /* else the call does nothing, and is no action on the stream */
            model_act(stream);
        model.stream[stream] |= model.event[event];
        return false;
    case 4:
        OK(cuEventSynchronize(events[event]));
        model.host |= model.event[event];
        return false;
    case 5:
        if (stream == LEGACY)
            model_act(LEGACY);
        OK(cuStreamSynchronize(streams[stream]));
        model.host |= model.stream[stream];
        return false;
    case 6:
        if (cuEventQuery(events[event]) == CUDA_SUCCESS)
            model.host |= model.event[event];
        return false;
    case 7: {
        bool race = false;
        if (model.page_at[slot] >= 0) {
            OK(cuMemUnmap(address, PAGE));
            race = model_unmap(number, slot);
        }
        int page = (int)chance(2);
        sim_test_map(address, pages[page]);
        model.page_at[slot] = page;
        return race;
    }
    default: {
        if (model.page_at[slot] < 0)
            return false;
        int first = (int)chance(CELLS), end = first + 1 + (int)chance(CELLS - (unsigned)first);
        if (chance(3) == 0)
            first = 0, end = CELLS;
        bool write = chance(2);
        OK(panel.touch(streams[stream], address + (uint64_t)first * CELL, (uint64_t)(end - first) * CELL, write));
        return model_touch(number, stream, (touch_record){model.page_at[slot], slot, first, end, write, false});
    }
    }
}

static void first_race_is_found(void **state)
{
    (void)state;
    unsigned raced = 0, clean = 0;
    for (unsigned program = 0; program < 3000; program++) {
        char words[64];
        snprintf(words, sizeof words, "sim:64MiB,order=%s", (const char *[]){"eager", "lazy", "random:9"}[program % 3]);
        sim_test_start(words);
        random_state = (program + 1) * UINT64_C(0x9E3779B97F4A7C15);
        memset(&model, 0, sizeof model);
        streams[0] = sim_test_stream();
        streams[1] = sim_test_stream();
        OK(cuStreamCreate(&streams[BLOCKING], CU_STREAM_DEFAULT));
        streams[LEGACY] = NULL;
        for (int i = 0; i < EVENTS; i++)
            events[i] = sim_test_event();
        base = sim_test_reserve(SLOTS * PAGE);
        pages[0] = sim_test_page();
        pages[1] = sim_test_page();
        for (int i = 0; i < SLOTS; i++)
            model.page_at[i] = -1;
        bool race = false;
        for (int number = 0; number < STEPS && !race; number++) {
            race = step(number);
            if ((panel.races() > 0) != race)
                fail_msg("program %u (%s), step %d: the model says %s, the device \"%s\"", program, words, number,
                         race ? "race" : "no race", panel.finding_text(0) ? panel.finding_text(0) : "nothing");
        }
        raced += race;
        clean += !race;
    }
    assert_true(raced > 100 && clean > 20); /* both happen */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_race_is_found),
    };
    return cmocka_run_group_tests(tests, sim_test_open, NULL);
}
