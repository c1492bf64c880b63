/*
 * Owns the shapes of random programs: which operations are frequent, which sizes are asked for. Numbers come from a function, so that the
 * same shapes serve a seed and the bytes of a fuzzer. No state.
 */
#include "program.h"

void program_draw_settings(program *p, draw_function *draw, void *source)
{
    p->count = 0;
#define SETTING(name, least, choices) p->world.name = least + draw(source, choices);
#include "operations.def"
#undef SETTING
}

static uint64_t draw_kind(draw_function *draw, void *source)
{
    static const uint32_t weights[] = {
#define OPERATION(name, weight, operands) weight,
#include "operations.def"
#undef OPERATION
    };
    uint32_t sum = 0, kind = 0;
    for (uint32_t i = 0; i < OPERATION_KINDS; i++) {
        sum += weights[i];
    }
    for (uint32_t left = draw(source, sum); left >= weights[kind]; kind++) {
        left -= weights[kind];
    }
    return kind;
}

/* Every order of magnitude as often as any other, up to `most`. */
static uint64_t draw_bytes(draw_function *draw, void *source, uint64_t most)
{
    uint32_t doublings = 1;
    while (UINT64_C(2) << doublings <= most) {
        doublings++;
    }
    uint64_t low = UINT64_C(1) << draw(source, doublings + 1);
    uint64_t bytes = low + ((uint64_t)draw(source, 4096) * low >> 12);
    return bytes < most ? bytes : most;
}

/* A level of the device's memory: mostly whole pages, often none. */
static uint64_t draw_level(draw_function *draw, void *source, const program_settings *world)
{
    uint64_t page = program_page_bytes(world);
    uint32_t manner = draw(source, 8);
    uint64_t bytes = draw(source, (uint32_t)world->pages + 2) * page;
    return manner < 3 ? 0 : manner == 3 ? bytes + draw(source, (uint32_t)page) : bytes;
}

void program_draw(program *p, draw_function *draw, void *source)
{
    const program_settings *world = &p->world;
    if (p->count == OPERATIONS_MOST) {
        return;
    }
    operation *step = &p->operations[p->count++];
    *step = (operation){.kind = draw_kind(draw, source)};
    step->block = draw(source, BLOCK_SLOTS);
    step->pool = draw(source, POOL_SLOTS);
    step->stream = draw(source, (uint32_t)world->streams);
    step->other = step->kind == DO_order ? draw(source, (uint32_t)world->streams) : draw(source, POOL_SLOTS);
    step->flags = draw(source, 256);
    if (step->kind == DO_alloc || step->kind == DO_aside || step->kind == DO_unordered) {
        uint64_t large = program_device_bytes(world) / 3;
        step->bytes = draw(source, 64) ? draw_bytes(draw, source, draw(source, 3) ? large : program_page_bytes(world)) : 0;
        step->align = draw(source, 8) ? 0 : UINT64_C(512) << draw(source, 13);
    } else if (step->kind == DO_stray) {
        step->bytes = draw_bytes(draw, source, program_page_bytes(world));
    } else if (step->kind == DO_fail) {
        step->bytes = draw(source, 4);
    } else {
        step->bytes = draw_level(draw, source, world);
    }
}
