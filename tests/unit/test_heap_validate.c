/*
 * The validator must be able to fail: each structure of a sound heap is spoiled at one place at a time, and each time it says so.
 */
#include "heap/internal.h"
#include "test_heap_fixture.h"

typedef struct scene {
    fixture *f;
    cmi_block *hole, *stale, *large, *small, *mixed, *live, *slab_block;
    cmi_slab *slab, *parked;
    cmi_space *space;
    cmi_binset *set;
    cmi_block_id large_id, slab_id;
} scene;

static cmi_block_id slab_with_slots(fixture *f, uint64_t unit, unsigned taken)
{
    cmi_block_id id = carve(f, unit, CMI_SLAB_UNIT / CMI_UNIT);
    uint64_t offset;
    assert_true(cmi_heap_make_slab(&f->heap, id, f->own.stream[1][0], 3));
    while (taken--) {
        assert_true(cmi_heap_slot_alloc(&f->heap, f->own.stream[1][0], 3, &offset));
    }
    return id;
}

/* Two ranges with every kind of block, a slab with room, one with a parked slot, and the record of one that is gone. */
static scene make_scene(void)
{
    fixture *f = fixture_new(8);
    scene s = {.f = f};
    assert_true(cmi_heap_add_space(&f->heap, f->base + 64 * (uint64_t)PAGE, PAGE));
    cmi_block_id gone = slab_with_slots(f, 4 * UNITS_OF_PAGE, 1);
    cmi_heap_make_stale(&f->heap, carve(f, 6 * UNITS_OF_PAGE, UNITS_OF_PAGE));
    live(f, 0, 1);
    cmi_heap_make_free(&f->heap, carve(f, 10, 20), f->own.stream[0][1], 5, CMI_HEAP_NO_STAMP);
    live(f, 1000, 1);
    cmi_heap_make_free(&f->heap, carve(f, 1001, 30), f->own.mixed[0], 5, stamps_make(&f->stamps, need_of_stream(1, 5)));
    live(f, 1031, 1);
    cmi_heap_make_free(&f->heap, carve(f, 1032, 40), f->own.done[1], 0, CMI_HEAP_NO_STAMP);
    live(f, 1072, 1);
    cmi_block_id parked = slab_with_slots(f, 2000, 8);
    cmi_heap_slot_free(&f->heap, parked, 2, 1, stamps_make(&f->stamps, need_of_stream(2, 5)));
    s.parked = f->heap.slabs[at(f, parked)->slab];
    s.slab_id = slab_with_slots(f, 3000, 0);
    cmi_heap_slot_free(&f->heap, gone, 0, 1, CMI_HEAP_NO_STAMP); /* goes at once, since another one has room */
    s.slab_block = at(f, s.slab_id);
    s.slab = f->heap.slabs[s.slab_block->slab];
    s.hole = block_at(f, 7 * UNITS_OF_PAGE);
    s.stale = block_at(f, 6 * UNITS_OF_PAGE);
    s.large_id = cmi_heap_find(&f->heap, f->base + CMI_UNIT);
    s.large = at(f, s.large_id);
    s.mixed = block_at(f, 1001);
    s.small = block_at(f, 1032);
    s.live = block_at(f, 1000);
    s.space = &f->heap.spaces[0];
    s.set = cmi_heap_binset(&f->heap, s.large->binset);
    assert_int_equal(s.hole->kind, CMI_BLOCK_HOLE);
    assert_int_equal(s.stale->kind, CMI_BLOCK_STALE);
    assert_int_equal(s.large->kind, CMI_BLOCK_FREE);
    assert_int_equal(s.small->kind, CMI_BLOCK_FREE);
    assert_int_equal(s.mixed->kind, CMI_BLOCK_FREE);
    assert_true(f->heap.unused_slabs.count > 0 && f->heap.empty_slabs.count > 0 && f->heap.parked_slabs.count > 0);
    assert_sound(f);
    return s;
}

/* One field of a sound heap set to a wrong value; what the validator says is checked and the field set right again. */
#define SPOILED(field, value)                                   \
    do {                                                        \
        __typeof__(field) right = (field);                      \
        (field) = (__typeof__(field))(value);                   \
        assert_true((field) != right);                          \
        if (cmi_heap_validate(&s.f->heap) == NULL) {            \
            fail_msg("%s = %s is not noticed", #field, #value); \
        }                                                       \
        (field) = right;                                        \
        assert_sound(s.f);                                      \
    } while (0)

static void spoiled_lists_are_noticed(void **state)
{
    (void)state;
    scene s = make_scene();
    SPOILED(s.live->offset, s.live->offset + CMI_UNIT);
    SPOILED(s.live->bytes, s.live->bytes + CMI_UNIT);
    SPOILED(s.live->bytes, 0);
    SPOILED(s.live->bytes, 100);
    SPOILED(s.live->bytes, UINT64_MAX - CMI_UNIT + 1);
    SPOILED(s.live->prev, 0);
    SPOILED(s.live->next, 0);
    SPOILED(s.live->next, s.live->prev);
    SPOILED(s.live->kind, CMI_BLOCK_UNUSED);
    SPOILED(s.live->kind, CMI_BLOCK_HOLE); /* less than a page */
    SPOILED(s.live->kind, CMI_BLOCK_SLAB + 1);
    SPOILED(s.live->kind, CMI_BLOCK_SLAB);
    SPOILED(s.live->slab, 1);
    SPOILED(s.stale->kind, CMI_BLOCK_HOLE); /* beside another */
    SPOILED(s.space->first, s.large_id);
    SPOILED(s.space->first, 0);
    SPOILED(s.space->base, s.space->base + CMI_UNIT);
    SPOILED(s.space->bytes, s.space->bytes + PAGE);
    SPOILED(s.f->heap.block_count, s.f->heap.block_count + 1);
    SPOILED(s.f->heap.unused_count, s.f->heap.unused_count + 1);
    SPOILED(s.f->heap.unused_block, at(s.f, s.f->heap.unused_block)->next);
    SPOILED(at(s.f, s.f->heap.unused_block)->kind, CMI_BLOCK_LIVE);
    SPOILED(s.f->heap.space_count, 1);
    fixture_free(s.f);
}

static void spoiled_index_is_noticed(void **state)
{
    (void)state;
    scene s = make_scene();
    SPOILED(s.space->start[0], s.large_id);
    SPOILED(s.space->start[0], 0);
    SPOILED(s.space->start_map[0], s.space->start_map[0] ^ 1);
    SPOILED(s.space->start_map[0], s.space->start_map[0] ^ 128);
    SPOILED(s.space->stale_map[0], s.space->stale_map[0] ^ 1 << 6);
    SPOILED(s.space->hole_map[0], s.space->hole_map[0] ^ 1 << 7);
    cmi_block_id page = carve(s.f, 5 * UNITS_OF_PAGE, UNITS_OF_PAGE); /* free as a whole, in two parts */
    page = cmi_heap_cut(&s.f->heap, page, at(s.f, page)->offset, PAGE / 2);
    cmi_block_id behind = at(s.f, page)->next;
    cmi_heap_make_free(&s.f->heap, page, s.f->own.done[0], 0, CMI_HEAP_NO_STAMP);
    cmi_heap_make_free(&s.f->heap, behind, s.f->own.mixed[0], 5, stamps_make(&s.f->stamps, need_of_stream(1, 5)));
    SPOILED(s.space->free_map[0], s.space->free_map[0] ^ 1 << 5);
    SPOILED(s.space->free_end, 5);
    SPOILED(s.space->seam_map[0], s.space->seam_map[0] ^ 1 << 5);
    fixture_free(s.f);
}

static void spoiled_bins_are_noticed(void **state)
{
    (void)state;
    scene s = make_scene();
    unsigned row = cmi_log2_floor(s.large->bytes / CMI_UNIT), column = cmi_lowest_bit(s.set->column_map[row]);
    SPOILED(s.large->binset, s.f->own.done[1]);
    SPOILED(s.large->binset, 0);
    SPOILED(s.large->binset, 1000);
    SPOILED(s.large->kind, CMI_BLOCK_LIVE);
    SPOILED(s.live->kind, CMI_BLOCK_FREE);
    SPOILED(s.large->stamp, 1);
    SPOILED(s.mixed->stamp, CMI_HEAP_NO_STAMP);
    SPOILED(s.large->left, s.slab_id);
    SPOILED(s.large->right, s.large_id);
    SPOILED(s.large->right, UINT32_MAX);
    SPOILED(s.set->root[row][column], 0);
    SPOILED(s.set->row_map, s.set->row_map ^ UINT64_C(1) << row);
    SPOILED(s.set->row_map, s.set->row_map | UINT64_C(1) << (row + 1));
    SPOILED(s.set->row_map, s.set->row_map | UINT64_C(1) << CMI_BIN_ROWS);
    SPOILED(s.set->column_map[row], s.set->column_map[row] ^ 1u << column);
    SPOILED(s.set->column_map[row], s.set->column_map[row] ^ 1u << (column + 1) % CMI_BIN_COLUMNS);
    SPOILED(s.set->free_bytes, s.set->free_bytes + CMI_UNIT);
    SPOILED(s.set->free_blocks, s.set->free_blocks + 1);
    SPOILED(s.set->kind, CMI_BINSET_MIXED);
    SPOILED(cmi_heap_binset(&s.f->heap, s.slab_block->binset)->slab_blocks, 7);
    SPOILED(cmi_heap_binset(&s.f->heap, s.slab_block->binset)->slab_root[3], 0);
    SPOILED(cmi_heap_binset(&s.f->heap, s.slab_block->binset)->slab_root[4], s.slab_id);
    fixture_free(s.f);
}

static void unjoined_space_is_noticed(void **state)
{
    (void)state;
    scene s = make_scene();
    fixture *f = s.f;
    cmi_block_id a = carve(f, UNITS_OF_PAGE, 10), b = carve(f, UNITS_OF_PAGE + 10, 10);
    live(f, UNITS_OF_PAGE + 20, 1);
    cmi_heap_make_free(&f->heap, a, f->own.stream[0][0], 1, CMI_HEAP_NO_STAMP);
    b = cmi_heap_make_free(&f->heap, b, f->own.stream[1][0], 1, CMI_HEAP_NO_STAMP);
    assert_sound(f);
    cmi_bin_remove(&f->heap, b); /* to the same bin set, without a look at its neighbours */
    at(f, b)->binset = f->own.stream[0][0];
    cmi_bin_insert(&f->heap, b);
    assert_non_null(cmi_heap_validate(&f->heap));
    cmi_bin_remove(&f->heap, b);
    at(f, b)->binset = f->own.stream[1][0];
    cmi_bin_insert(&f->heap, b);
    assert_sound(f);
    cmi_block_id page = carve(f, 2 * UNITS_OF_PAGE, UNITS_OF_PAGE);
    cmi_heap_make_free(&f->heap, page, f->other.done[0], 0, CMI_HEAP_NO_STAMP);
    cmi_binset *set = cmi_heap_binset(&f->heap, f->other.done[0]);
    SPOILED(set->small, 1); /* a whole page kept by small blocks */
    fixture_free(f);
}

static void spoiled_slabs_are_noticed(void **state)
{
    (void)state;
    scene s = make_scene();
    SPOILED(s.slab_block->slab, s.slab_block->slab - 1);
    SPOILED(s.slab_block->slab, 100);
    SPOILED(s.slab_block->slab, 0);
    SPOILED(s.slab_block->binset, 0);
    SPOILED(s.slab_block->binset, s.f->own.stream[1][1]);
    SPOILED(s.slab_block->kind, CMI_BLOCK_LIVE);
    SPOILED(s.slab->block, 0);
    SPOILED(s.slab->class_index, 4);
    SPOILED(s.slab->class_index, 20);
    SPOILED(s.slab->class_index, CMI_CLASS_COUNT);
    SPOILED(s.slab->slot_count, s.slab->slot_count - 1);
    SPOILED(s.slab->free_count, s.slab->free_count - 1);
    SPOILED(s.slab->parked_count, 1);
    SPOILED(*(uint8_t *)&s.slab->use[5], CMI_SLOT_LIVE);
    SPOILED(s.slab->free_bits[0], s.slab->free_bits[0] ^ 2);
    SPOILED(s.slab->free_bits[1], s.slab->free_bits[1] ^ UINT64_C(1) << 63); /* behind the last slot */
    SPOILED(s.slab->stamp, 3);
    SPOILED(s.slab->listed_empty, 0);
    SPOILED(s.parked->stamp, CMI_HEAP_NO_STAMP);
    SPOILED(s.parked->listed_parked, 0);
    SPOILED(*(uint8_t *)&s.parked->use[2], CMI_SLOT_LIVE);
    SPOILED(s.f->heap.empty_slabs.count, 0);
    SPOILED(s.f->heap.parked_slabs.count, 0);
    SPOILED(s.f->heap.unused_slabs.count, s.f->heap.unused_slabs.count - 1);
    uint32_t used = s.slab_block->slab;
    for (uint32_t i = 1; i <= s.f->heap.slab_count; i++) { /* a list that names the wrong one */
        cmi_slab *other = s.f->heap.slabs[i];
        if (!other->listed_parked) {
            SPOILED(s.f->heap.parked_slabs.ids[0], i);
        }
        if (!other->listed_empty) {
            SPOILED(s.f->heap.empty_slabs.ids[0], i);
        }
    }
    if (s.f->heap.unused_slabs.count) {
        SPOILED(s.f->heap.unused_slabs.ids[0], used);
    }
    fixture_free(s.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spoiled_lists_are_noticed), cmocka_unit_test(spoiled_index_is_noticed),
        cmocka_unit_test(spoiled_bins_are_noticed),  cmocka_unit_test(unjoined_space_is_noticed),
        cmocka_unit_test(spoiled_slabs_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
