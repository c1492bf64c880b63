/*
 * Slabs: size classes, slots from the lowest address, parked slots, empty slabs kept and given back, slabs taken apart.
 */
#include "test_heap_fixture.h"

static void classes_are_tight(void **state)
{
    (void)state;
    uint64_t last = 0;
    for (unsigned class_index = 0; class_index < CMI_CLASS_COUNT; class_index++) {
        uint64_t bytes = cmi_class_bytes(class_index), slab = cmi_class_slab_bytes(class_index);
        assert_true(bytes > last && bytes % CMI_UNIT == 0);
        assert_int_equal(cmi_class_of(bytes), class_index);
        assert_int_equal(cmi_class_of(last + 1), class_index);        /* tight: the first that the class below cannot hold */
        assert_true(bytes - last <= cmi_max_u64(CMI_UNIT, last / 4)); /* four classes a doubling */
        assert_true(slab % CMI_SLAB_UNIT == 0 && slab / bytes >= 8 && slab / bytes <= CMI_SLAB_SLOTS);
        assert_true(slab - 8 * bytes < CMI_SLAB_UNIT || slab == CMI_SLAB_UNIT); /* no larger than that takes */
        last = bytes;
    }
    assert_int_equal(last, CMI_SMALL_LIMIT);
    assert_int_equal(cmi_class_of(1), 0);
}

static cmi_block_id slab_at(fixture *f, uint64_t unit, uint32_t set, unsigned class_index)
{
    cmi_block_id id = carve(f, unit, cmi_class_slab_bytes(class_index) / CMI_UNIT);
    assert_true(cmi_heap_make_slab(&f->heap, id, set, class_index));
    assert_sound(f);
    return id;
}

static uint64_t slot_of_class(fixture *f, uint32_t set, unsigned class_index)
{
    uint64_t offset = 0;
    assert_true(cmi_heap_slot_alloc(&f->heap, set, class_index, &offset));
    return offset;
}

static void give(fixture *f, uint64_t offset, uint64_t ticket, uint32_t stamp)
{
    cmi_block_id id = cmi_heap_find(&f->heap, offset);
    assert_int_equal(at(f, id)->kind, CMI_BLOCK_SLAB);
    unsigned slot;
    bool exact;
    cmi_slab *slab = cmi_heap_slot_of(&f->heap, id, offset, &slot, &exact);
    assert_true(exact);
    assert_int_equal(slab->use[slot], CMI_SLOT_LIVE);
    cmi_heap_slot_free(&f->heap, id, slot, ticket, stamp);
    assert_sound(f);
}

static void slots_of_every_class(void **state)
{
    (void)state;
    for (unsigned class_index = 0; class_index < CMI_CLASS_COUNT; class_index++) {
        fixture *f = fixture_new(6);
        uint32_t set = f->own.stream[1][0];
        uint64_t bytes = cmi_class_bytes(class_index), slab_bytes = cmi_class_slab_bytes(class_index), offset;
        assert_false(cmi_heap_slot_alloc(&f->heap, set, class_index, &offset));
        cmi_block_id high = slab_at(f, 3 * UNITS_OF_PAGE, set, class_index), low = slab_at(f, UNITS_OF_PAGE, set, class_index);
        unsigned slots = (unsigned)(slab_bytes / bytes);
        for (unsigned i = 0; i < 2 * slots; i++) { /* the lowest address first, whichever slab is older */
            offset = slot_of_class(f, set, class_index);
            assert_int_equal(offset, at(f, i < slots ? low : high)->offset + i % slots * bytes);
            unsigned slot;
            bool exact;
            cmi_heap_slot_of(&f->heap, i < slots ? low : high, offset + bytes - 1, &slot, &exact);
            assert_int_equal(slot, i % slots);
            assert_false(exact);
        }
        assert_false(cmi_heap_slot_alloc(&f->heap, set, class_index, &offset));
        if (slab_bytes % bytes) {
            unsigned slot;
            bool exact;
            cmi_heap_slot_of(&f->heap, low, at(f, low)->offset + slots * bytes, &slot, &exact);
            assert_int_equal(slot, slots); /* the tail is no slot */
            assert_false(exact);
        }
        give(f, at(f, high)->offset + 2 * bytes, 5, CMI_HEAP_NO_STAMP);
        give(f, at(f, low)->offset + 7 * bytes, 6, CMI_HEAP_NO_STAMP);
        assert_int_equal(slot_of_class(f, set, class_index), at(f, low)->offset + 7 * bytes);
        assert_int_equal(slot_of_class(f, set, class_index), at(f, high)->offset + 2 * bytes);
        assert_sound(f);
        fixture_free(f);
    }
}

/* All slots of a slab given back: the last one of its kind is kept until flushed, others go at once, with the youngest ticket. */
static void empty_slabs_are_kept_or_given_back(void **state)
{
    (void)state;
    fixture *f = fixture_new(2);
    uint32_t set = f->own.stream[1][1];
    unsigned class_index = cmi_class_of(CMI_SLAB_UNIT / 8);
    slab_at(f, 0, set, class_index);
    uint64_t first[8], second[8];
    for (unsigned i = 0; i < 8; i++) {
        first[i] = slot_of_class(f, set, class_index);
    }
    slab_at(f, CMI_SLAB_UNIT / CMI_UNIT, set, class_index);
    live(f, 2 * CMI_SLAB_UNIT / CMI_UNIT, 4);
    for (unsigned i = 0; i < 8; i++) {
        second[i] = slot_of_class(f, set, class_index);
    }
    assert_int_equal(cmi_heap_binset(&f->heap, set)->slab_blocks, 2);
    for (unsigned i = 0; i < 8; i++) {
        give(f, first[i], 10 + i, CMI_HEAP_NO_STAMP);
    }
    assert_int_equal(block_at(f, 0)->kind, CMI_BLOCK_SLAB); /* kept: no other slab has room */
    give(f, second[3], 30, CMI_HEAP_NO_STAMP);
    for (unsigned i = 0; i < 8; i++) {
        if (i != 3) {
            give(f, second[i], i, CMI_HEAP_NO_STAMP);
        }
    }
    /* The second went at once, with the youngest of its tickets. */
    assert_block(f, CMI_SLAB_UNIT / CMI_UNIT, CMI_SLAB_UNIT / CMI_UNIT, CMI_BLOCK_FREE, set);
    assert_int_equal(block_at(f, CMI_SLAB_UNIT / CMI_UNIT)->ticket, 30);
    assert_int_equal(cmi_heap_binset(&f->heap, set)->slab_blocks, 1);
    assert_int_equal(slot_of_class(f, set, class_index), first[0]); /* what is kept serves again */
    cmi_heap_flush_slabs(&f->heap);
    assert_int_equal(block_at(f, 0)->kind, CMI_BLOCK_SLAB);
    give(f, first[0], 40, CMI_HEAP_NO_STAMP);
    cmi_heap_flush_slabs(&f->heap);
    assert_sound(f);
    assert_block(f, 0, 2 * CMI_SLAB_UNIT / CMI_UNIT, CMI_BLOCK_FREE, set);
    assert_int_equal(block_at(f, 0)->ticket, 40);
    slab_at(f, 0, set, class_index); /* one that nobody ever asks for */
    cmi_heap_flush_slabs(&f->heap);
    assert_int_equal(block_at(f, 0)->kind, CMI_BLOCK_FREE);
    assert_int_equal(block_at(f, 0)->ticket, 40); /* and its memory is not done any sooner for it */
    assert_sound(f);
    fixture_free(f);
}

static void parked_slots_wait_behind_their_stamp(void **state)
{
    (void)state;
    fixture *f = fixture_new(1);
    stamps *all = &f->stamps;
    uint32_t set = f->own.stream[1][0];
    unsigned class_index = CMI_CLASS_COUNT / 2;
    cmi_block_id id = slab_at(f, 0, set, class_index);
    live(f, cmi_class_slab_bytes(class_index) / CMI_UNIT, 1);
    const cmi_slab *slab = f->heap.slabs[at(f, id)->slab];
    uint64_t slots[CMI_SLAB_SLOTS], offset;
    unsigned count = slab->slot_count;
    for (unsigned i = 0; i < count; i++) {
        slots[i] = slot_of_class(f, set, class_index);
    }
    give(f, slots[1], 4, stamps_make(all, need_of_stream(2, 4)));
    give(f, slots[0], 5, stamps_make(all, need_of_stream(3, 5)));
    assert_int_equal(all->held_count, 1);
    assert_int_equal(f->heap.parked_slabs.count, 1);
    assert_false(cmi_heap_slot_alloc(&f->heap, set, class_index, &offset)); /* not yet */
    cmi_heap_unpark(&f->heap, id);
    assert_int_equal(all->held_count, 0);
    slab = f->heap.slabs[at(f, id)->slab];
    assert_int_equal(slab->parked_count, 0);
    assert_sound(f);
    uint32_t drops = all->drops;
    cmi_heap_unpark(&f->heap, id); /* an old entry of the list */
    assert_int_equal(all->drops, drops);
    assert_int_equal(slot_of_class(f, set, class_index), slots[0]);
    assert_int_equal(slot_of_class(f, set, class_index), slots[1]);

    /* Given back with a parked slot: all of it waits for the stamp and for its own stream, and the stamp is the block's. */
    give(f, slots[2], 11, stamps_make(all, need_of_stream(2, 11)));
    for (unsigned i = 0; i < count; i++) {
        if (i != 2) {
            give(f, slots[i], 12, CMI_HEAP_NO_STAMP);
        }
    }
    assert_block(f, 0, cmi_class_slab_bytes(class_index) / CMI_UNIT, CMI_BLOCK_FREE, f->own.mixed[1]);
    need what = stamps_need(all, block_at(f, 0)->stamp);
    assert_int_equal(what.upto[1], 12);
    assert_int_equal(what.upto[2], 11);
    assert_int_equal(all->held_count, 1);
    assert_int_equal(f->heap.parked_slabs.count, 1); /* the old entry, whose slab is gone or another one's */
    uint32_t number = f->heap.parked_slabs.ids[0];
    assert_int_equal(f->heap.slabs[number]->block, CMI_NO_BLOCK);
    id = slab_at(f, 2000, set, class_index);
    assert_int_equal(at(f, id)->slab, number);
    assert_int_equal(f->heap.parked_slabs.count, 1);
    fixture_free(f);
}

static void memory_of_another_stream_is_not_dated(void **state)
{
    (void)state;
    fixture *f = fixture_new(2);
    cmi_heap_make_free(&f->heap, carve(f, 0, UNITS_OF_PAGE / 2), f->own.stream[1][0], 9, CMI_HEAP_NO_STAMP);
    live(f, UNITS_OF_PAGE / 2, 1);
    const cmi_block *own = at(f, slab_at(f, 0, f->own.stream[1][0], 0)), *foreign = at(f, slab_at(f, 128, f->own.stream[1][1], 0));
    assert_int_equal(f->heap.slabs[own->slab]->ticket, 9);
    assert_int_equal(f->heap.slabs[foreign->slab]->ticket, 0);
    fixture_free(f);
}

static void dissolving_keeps_what_is_live(void **state)
{
    (void)state;
    fixture *f = fixture_new(2);
    stamps *all = &f->stamps;
    uint32_t set = f->own.stream[1][2];
    unsigned class_index = 5; /* with a tail */
    uint64_t bytes = cmi_class_bytes(class_index), units = bytes / CMI_UNIT;
    cmi_block_id id = slab_at(f, 8, set, class_index);
    live(f, 0, 8);
    live(f, 8 + CMI_SLAB_UNIT / CMI_UNIT, 1);
    cmi_slab *slab = f->heap.slabs[at(f, id)->slab];
    unsigned count = slab->slot_count;
    assert_true(count * bytes < CMI_SLAB_UNIT);
    uint64_t slots[CMI_SLAB_SLOTS];
    for (unsigned i = 0; i < 8; i++) {
        slots[i] = slot_of_class(f, set, class_index);
    }
    slab->uses = cmi_meta_alloc(count * sizeof *slab->uses);
    for (unsigned i = 0; i < count; i++) {
        slab->uses[i] = CMI_HEAP_NO_STAMP;
    }
    uint32_t use = slab->uses[6] = stamps_make(all, need_of_stream(1, 77));
    give(f, slots[1], 3, stamps_make(all, need_of_stream(1, 3)));
    give(f, slots[2], 4, stamps_make(all, need_of_stream(2, 4)));
    give(f, slots[4], 21, CMI_HEAP_NO_STAMP);
    give(f, slots[5], 20, CMI_HEAP_NO_STAMP);
    slab->use[7] = CMI_SLOT_CACHED;

    uint32_t before = f->heap.block_count, unused = f->heap.unused_count;
    cmi_meta_fail(1, 0);
    f->heap.unused_count = 20; /* too few for all slots */
    assert_false(cmi_heap_dissolve_slab(&f->heap, id));
    f->heap.unused_count = unused;
    cmi_meta_fail(0, 0);
    assert_int_equal(f->heap.block_count, before);
    assert_int_equal(at(f, id)->kind, CMI_BLOCK_SLAB);
    assert_sound(f);

    assert_true(cmi_heap_dissolve_slab(&f->heap, id));
    assert_sound(f);
    assert_block(f, 8, units, CMI_BLOCK_LIVE, set);
    assert_block(f, 8 + units, 2 * units, CMI_BLOCK_FREE, f->own.mixed[1]);
    need what = stamps_need(all, block_at(f, 8 + units)->stamp);
    assert_true(what.upto[1] == 3 && what.upto[2] == 4);
    assert_block(f, 8 + 3 * units, units, CMI_BLOCK_LIVE, set);
    assert_block(f, 8 + 4 * units, 2 * units, CMI_BLOCK_FREE, set);
    assert_int_equal(block_at(f, 8 + 4 * units)->ticket, 21);
    assert_block(f, 8 + 6 * units, units, CMI_BLOCK_LIVE, set);
    assert_int_equal(block_at(f, 8 + 6 * units)->stamp, use);
    assert_block(f, 8 + 7 * units, units, CMI_BLOCK_LIVE, set);
    assert_block(f, 8 + 8 * units, CMI_SLAB_UNIT / CMI_UNIT - 8 * units, CMI_BLOCK_FREE, set); /* never used, and the tail */
    assert_int_equal(all->held_count, 2);
    assert_int_equal(cmi_heap_binset(&f->heap, set)->slab_blocks, 0);
    fixture_free(f);
}

static void failures_of_host_memory_leave_the_block_busy(void **state)
{
    (void)state;
    uint64_t at_first = cmi_meta_bytes();
    for (uint64_t nth = 1; nth < 30; nth++) {
        fixture *f = fixture_new(2);
        unsigned failures = 0, slabs = 0;
        cmi_meta_fail(nth, 1);
        for (unsigned i = 0; i < 30; i++) {
            cmi_block_id id = carve(f, i * (uint64_t)(CMI_SLAB_UNIT / CMI_UNIT), CMI_SLAB_UNIT / CMI_UNIT);
            if (cmi_heap_make_slab(&f->heap, id, f->own.stream[1][0], 0)) {
                slabs++;
            } else {
                failures++;
                assert_int_equal(at(f, id)->kind, CMI_BLOCK_BUSY);
                cmi_heap_make_free(&f->heap, id, f->own.done[1], 0, CMI_HEAP_NO_STAMP);
            }
            assert_sound(f);
            assert_int_equal(cmi_heap_binset(&f->heap, f->own.stream[1][0])->slab_blocks, slabs);
        }
        cmi_meta_fail(0, 0);
        assert_int_equal(failures, 1);
        fixture_free(f);
    }
    assert_int_equal(cmi_meta_bytes(), at_first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_tight),
        cmocka_unit_test(slots_of_every_class),
        cmocka_unit_test(empty_slabs_are_kept_or_given_back),
        cmocka_unit_test(parked_slots_wait_behind_their_stamp),
        cmocka_unit_test(memory_of_another_stream_is_not_dated),
        cmocka_unit_test(dissolving_keeps_what_is_live),
        cmocka_unit_test(failures_of_host_memory_leave_the_block_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
