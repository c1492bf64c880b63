/*
 * Owns the rules that tell one kind of refusal from another. They were drawn from public reports of out-of-memory errors whose causes are
 * known. No state, no locks. Called for the library's own refusals and by the tools for snapshots and for messages of other allocators.
 */
#include "inspect/verdict.h"

#define MIB ((uint64_t)1 << 20)
#define KNOWN(figure) ((figure) != CMI_FIGURE_UNKNOWN)

/* A driver that has this much more than was asked of it, and refuses, has another reason than its free memory. */
static uint64_t driver_margin(uint64_t total) { return KNOWN(total) ? 16 * MIB + total / 1024 : 32 * MIB; }

/* Idle memory this many times the request is hardly all in pieces smaller than that; waiting for a stream is the likelier cause. */
#define IDLE_BEYOND_PIECES 32

/* Less than this part of the device is what any full device has left; finding it idle explains nothing. */
#define CRUMBS_OF_DEVICE 100

static uint64_t sum(uint64_t a, uint64_t b) { return a > CMI_FIGURE_UNKNOWN - 1 - b ? CMI_FIGURE_UNKNOWN - 1 : a + b; }
static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t or_none(uint64_t figure) { return KNOWN(figure) ? figure : 0; }

void cmi_shortage_init(cmi_shortage *shortage)
{
    const uint64_t unknown = CMI_FIGURE_UNKNOWN;
    *shortage = (cmi_shortage){.request = unknown,
                               .live = unknown,
                               .idle = unknown,
                               .driver_free = unknown,
                               .total = unknown,
                               .limit = unknown,
                               .pending = unknown,
                               .private_live = unknown,
                               .private_idle = unknown,
                               .largest_idle = unknown,
                               .outside = unknown};
}

uint64_t cmi_shortage_driver_room(const cmi_shortage *s)
{
    uint64_t room = s->driver_free;
    if (KNOWN(s->limit) && KNOWN(s->live) && KNOWN(s->idle)) {
        uint64_t below_limit = less(s->limit, sum(s->live, s->idle));
        if (!KNOWN(room) || below_limit < room)
            room = below_limit;
    }
    return room;
}

/* Live memory beyond the device: the driver moved some of it to the host (Windows does), so the other figures mean little. */
static bool is_paged_out(const cmi_shortage *s) { return KNOWN(s->live) && KNOWN(s->total) && s->live > s->total; }

uint64_t cmi_shortage_bytes(const cmi_shortage *s)
{
    if (!KNOWN(s->request))
        return CMI_FIGURE_UNKNOWN;
    uint64_t room = cmi_shortage_driver_room(s);
    if (is_paged_out(s))
        return sum(s->live, s->request) - s->total;
    if (KNOWN(s->idle) && KNOWN(room))
        return less(s->request, sum(s->idle, room));
    if (KNOWN(s->total) && s->request > s->total)
        return s->request - s->total;
    if ((KNOWN(s->idle) && s->idle >= s->request) || (KNOWN(room) && room >= s->request))
        return 0;
    if (KNOWN(s->live) && KNOWN(s->total) && sum(s->live, s->request) > s->total)
        return sum(s->live, s->request) - s->total;
    return CMI_FIGURE_UNKNOWN;
}

/* Others hold a good part of the device, and what the allocator and the driver have left is too little, or crumbs. */
static bool is_held_outside(const cmi_shortage *s, bool short_of_memory, uint64_t left)
{
    if (!KNOWN(s->outside) || !KNOWN(s->total) || s->outside < s->total / 4)
        return false;
    return (short_of_memory && s->outside >= cmi_shortage_bytes(s)) || left < s->total / CRUMBS_OF_DEVICE;
}

/* Private pools count what they hold as live. Where that is a good part of it, and more than is missing, it is looked at first. */
static bool is_in_private_pools(const cmi_shortage *s, bool short_of_memory, uint64_t left)
{
    if (KNOWN(s->private_idle) && !short_of_memory && less(left, s->private_idle) < s->request)
        return true;
    if (!KNOWN(s->private_live) || s->private_live < s->request || s->private_live < or_none(s->live) / 5)
        return false;
    return short_of_memory ? s->private_live >= cmi_shortage_bytes(s) : left < sum(s->request, or_none(s->total) / CRUMBS_OF_DEVICE);
}

static bool is_pending(const cmi_shortage *s, uint64_t left)
{
    if (KNOWN(s->pending))
        return s->pending > 0 && less(left, s->pending) < s->request;
    if (s->stream_ordered)
        return true;
    /* A cache gives all it can back before it refuses. What it still has then, with next to nothing live beside it, is waited for. */
    bool nothing_pins_it = KNOWN(s->live) && s->live < s->idle / 100;
    return s->idle >= s->request && (nothing_pins_it || s->idle / IDLE_BEYOND_PIECES >= s->request);
}

/* Nothing is live, so all pieces are whole, and with them the driver could serve it. */
static bool is_cache_held(const cmi_shortage *s) { return KNOWN(s->live) && s->live == 0 && s->idle < s->request; }

/* Where idle memory and the driver's are both known. */
static cmi_verdict judge_both(const cmi_shortage *s, uint64_t room)
{
    uint64_t left = sum(s->idle, room);
    bool short_of_memory = left < s->request;
    if (is_held_outside(s, short_of_memory, left))
        return CMI_VERDICT_OTHER_PROCESSES;
    if (is_in_private_pools(s, short_of_memory, left))
        return CMI_VERDICT_PRIVATE_POOLS;
    if (short_of_memory)
        return CMI_VERDICT_TRUE_DEMAND;
    if (left - s->request < s->doubt)
        return CMI_VERDICT_UNCLEAR; /* the figures were rounded by more than is to spare */
    if (is_pending(s, left))
        return CMI_VERDICT_PENDING;
    return is_cache_held(s) ? CMI_VERDICT_CACHE_HELD : CMI_VERDICT_PACKING;
}

cmi_verdict cmi_verdict_of(const cmi_shortage *s)
{
    if (!KNOWN(s->request))
        return CMI_VERDICT_UNCLEAR;
    if (is_paged_out(s) || (KNOWN(s->total) && s->request > s->total))
        return CMI_VERDICT_TRUE_DEMAND;
    uint64_t room = cmi_shortage_driver_room(s);
    if (KNOWN(room) && room >= sum(s->request, driver_margin(s->total)))
        return CMI_VERDICT_DRIVER_REFUSED;
    if (KNOWN(s->idle) && KNOWN(room))
        return judge_both(s, room);
    if (KNOWN(s->idle) && s->idle >= sum(s->request, s->doubt))
        return is_pending(s, s->idle) ? CMI_VERDICT_PENDING : CMI_VERDICT_PACKING;
    if (KNOWN(s->live) && KNOWN(s->total) && sum(s->live, s->request) > s->total)
        return is_held_outside(s, true, or_none(room)) ? CMI_VERDICT_OTHER_PROCESSES : CMI_VERDICT_TRUE_DEMAND;
    return CMI_VERDICT_UNCLEAR;
}

static const struct {
    const char *key, *sentence;
} words[] = {
#define CMPOOL_VERDICT(name, number, key, sentence) [number] = {key, sentence},
#include <cudamempool/verdicts.def>
#undef CMPOOL_VERDICT
};

const char *cmi_verdict_key(cmi_verdict verdict) { return words[verdict].key; }
const char *cmi_verdict_sentence(cmi_verdict verdict) { return words[verdict].sentence; }
