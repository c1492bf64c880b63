/*
 * Owns the words for each case: what helps, what does not, with the figures at hand. Every sentence must hold for any program, so effects
 * are given as what they act on, not as a promise. No state; one thread. Called by `explain`.
 */
#include "explain.h"
#include <stdarg.h>
#include <stdio.h>

#define KNOWN(figure) ((figure) != CMI_FIGURE_UNKNOWN)
#define MIB ((uint64_t)1 << 20)

const char *explain_size(uint64_t bytes, char text[32])
{
    const double gib = 1024.0 * 1024 * 1024;
    if (!KNOWN(bytes))
        snprintf(text, 32, "not said");
    else if ((double)bytes >= gib)
        snprintf(text, 32, "%.2f GiB", (double)bytes / gib);
    else if (bytes >= MIB)
        snprintf(text, 32, "%.*f MiB", bytes >= 100 * MIB ? 0 : 1, (double)bytes / (1024.0 * 1024));
    else if (bytes >= 1024)
        snprintf(text, 32, "%.1f KiB", (double)bytes / 1024);
    else
        snprintf(text, 32, "%u bytes", (unsigned)bytes);
    return text;
}

static void __attribute__((format(printf, 2, 3))) add(explain_lines *lines, const char *format, ...)
{
    va_list list;
    if (lines->count == EXPLAIN_LINES)
        return;
    va_start(list, format);
    vsnprintf(lines->text[lines->count++], EXPLAIN_LINE_BYTES, format, list);
    va_end(list);
}

typedef struct sizes {
    char request[32], live[32], idle[32], free[32], short_by[32], total[32], outside[32], private_live[32], process[32], pending[32],
        private_idle[32], limit[32];
} sizes;

/* ---- the cases ---------------------------------------------------------------------------------------------------------------------- */

static void advise_packing(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    explain_lines *helps = &answer->helps, *useless = &answer->useless;
    if (KNOWN(m->figures.idle) && m->figures.idle >= m->figures.request)
        add(helps, "an allocator that moves pages: %s lie idle in pieces, which is enough for %s (cudamempool run -- PROGRAM)", size->idle,
            size->request);
    else
        add(helps, "an allocator that joins idle pieces (%s) with new memory of the device (%s): only together they are enough for %s",
            size->idle, size->free, size->request);
    if (m->format == CMI_OOM_PYTORCH && !m->expandable_segments)
        add(helps, "in PyTorch alone: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which cannot move idle pages out of one stream's "
                   "segment into another's");
    if (m->format == CMI_OOM_PYTORCH)
        add(helps, "fewer different sizes: pad or bucket the sequence lengths, so that freed blocks fit the next request");
    add(useless, "a smaller model or fewer parameters is not needed for this request: nothing is missing");
    if (m->expandable_segments)
        add(useless, "expandable_segments:True: it is on already");
    add(useless, "torch.cuda.empty_cache() before the failing line: pieces with a live block beside them cannot be given back");
}

static void advise_pending(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    explain_lines *helps = &answer->helps;
    add(helps,
        "wait for the streams that use the freed memory (torch.cuda.synchronize()) and try again: %s are freed but not given back yet",
        size->idle);
    add(helps, "an allocator that lets the new work wait on the device instead of refusing (cudamempool run -- PROGRAM)");
    if (m->format == CMI_OOM_PYTORCH)
        add(helps,
            "keep the host from running ahead: with FSDP limit_all_gathers=True; with collectives in a loop, wait for the last one now "
            "and then; fewer record_stream calls");
    if (m->format == CMI_OOM_STREAM_ORDERED)
        add(helps, "trim the driver's pool after a synchronisation (cudaMemPoolTrimTo), or use PyTorch's own back end (backend:native)");
    add(&answer->useless, "a smaller batch or sequence: it lowers what is live (%s), while what is missing is only waited for", size->live);
    if (m->format == CMI_OOM_PYTORCH)
        add(&answer->useless, "max_split_size_mb and expandable_segments: neither makes a stream finish earlier");
}

static void advise_private_pools(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    explain_lines *helps = &answer->helps;
    if (KNOWN(m->figures.private_live))
        add(helps, "look at the private pools: %s of %s that count as allocated are inside them, and what is free there serves nobody else",
            size->private_live, size->live);
    add(helps,
        "capture fewer CUDA graphs, or let them share one pool (graph_pool_handle); drop graphs and MemPools that are not used again");
    add(helps,
        "no split limit while such a pool is filled: max_split_size_mb keeps freed large blocks from being cut for smaller requests");
    add(helps, "an allocator whose private pools lend idle pages (cudamempool run -- PROGRAM)");
    add(&answer->useless, "torch.cuda.empty_cache(): it gives back what is free in private pools only once nothing uses the pool");
    if (answer->short_by != 0 && KNOWN(answer->short_by))
        add(&answer->useless, "page moving in the common pool: outside the private pools there are %s too little", size->short_by);
}

static void advise_cache_held(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    if (m->format == CMI_OOM_PYTORCH || m->format == CMI_OOM_STREAM_ORDERED)
        add(&answer->helps, "torch.cuda.empty_cache() before the request: %s are cached and not live", size->idle);
    else
        add(&answer->helps, "give the cache back before the request (%s), for CuPy mempool.free_all_blocks()", size->idle);
    add(&answer->helps, "an allocator that gives idle memory back before it refuses, at a limit too (cudamempool run -- PROGRAM)");
    add(&answer->useless, "a smaller batch: nothing is missing, the cache is only in the way");
}

static void advise_driver_refused(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    add(&answer->helps, "find the other limit: the driver refused %s with %s free, so it is not fragmentation of this allocator",
        size->request, size->free);
    add(&answer->helps, "on Windows and WSL: the budget the desktop gives a process (see the driver's shared-memory setting); close other "
                        "programs on this GPU");
    add(&answer->helps,
        "on shared machines: vGPU, MIG or container clamps, and limits on locked or mapped memory; another process may have "
        "held the memory at that moment, then a later try succeeds");
    add(&answer->useless, "max_split_size_mb, expandable_segments, empty_cache: the allocator holds only %s idle", size->idle);
    if (m->format == CMI_OOM_PYTORCH)
        add(&answer->useless, "a smaller batch, unless the hidden limit is below what the program has now (%s)", size->live);
}

static void advise_other_processes(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    add(&answer->helps,
        "see who holds the rest: about %s of %s belong to neither this allocator nor the free memory (nvidia-smi lists processes)",
        size->outside, size->total);
    add(&answer->helps,
        "place ranks one to a GPU (set CUDA_VISIBLE_DEVICES or the local rank's device before the first CUDA call); end processes "
        "that were left behind");
    if (KNOWN(m->this_process) && KNOWN(m->reserved) && m->this_process > m->reserved + 1024 * MIB) {
        char text[32];
        add(&answer->helps,
            "of that, %s are in this process beside its allocator: communication buffers, library workspaces, another engine "
            "in the same process",
            explain_size(m->this_process - m->reserved, text));
    }
    add(&answer->helps, "try again when they have gone: nothing is wrong inside this process");
    add(&answer->useless, "allocator settings: it has %s idle and the device %s free", size->idle, size->free);
}

/* Where memory goes in training, and what acts on which part; the parts are in bytes a parameter (mixed precision, Adam in 32 bits). */
static void advise_true_demand(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    explain_lines *helps = &answer->helps, *useless = &answer->useless;
    if (KNOWN(answer->short_by))
        add(helps, "%s must go, or the device must be larger by that: even with perfect packing so much is missing", size->short_by);
    else
        add(helps, "the request and what is live are more than the device has");
    if (m->phase == CMI_OOM_LOADING) {
        add(helps,
            "it failed while loading: read weights straight to where they stay (low_cpu_mem_usage, a device map), not all of them in each "
            "rank; load in 16, 8 or 4 bits");
    } else if (m->phase == CMI_OOM_GENERATING) {
        add(helps,
            "it failed while generating: the key-value cache grows with batch x length; fewer sequences at once, a shorter limit, or a "
            "quantised cache");
    } else {
        add(helps,
            "micro-batch and sequence length: activations grow in proportion to both (with plain attention, its scores with the square of "
            "the length); gradient accumulation keeps the effective batch");
        add(helps, "gradient checkpointing: keeps the inputs of layers instead of all activations, for about one more forward pass");
    }
    add(helps,
        "LoRA or another adapter: no gradients and no optimizer state for frozen weights (with Adam in 32 bits about 12 to 16 bytes a "
        "parameter); weights and activations stay. QLoRA also stores the weights in 4 bits");
    add(helps, "ZeRO or FSDP over n GPUs: optimizer state (stage 1), gradients (2) and weights (3) are divided by n; on one GPU they save "
               "nothing. "
               "Activations stay");
    add(helps, "offloading: optimizer state, then weights, in host memory instead; slower by the transfers. 8-bit Adam: state of 2 bytes a "
               "parameter instead of 8");
    if (KNOWN(m->figures.outside) && m->figures.outside >= 512 * MIB)
        add(helps, "about %s of the device are held by others, some of which may be had back", size->outside);
    if (KNOWN(m->figures.live) && KNOWN(m->figures.total) && m->figures.live > m->figures.total)
        add(useless, "settings of the allocator: more is live (%s) than the GPU has (%s), the driver keeps part of it in host memory",
            size->live, size->total);
    else if (KNOWN(m->figures.idle))
        add(useless, "max_split_size_mb, expandable_segments, empty_cache or another allocator: only %s are idle", size->idle);
    else
        add(useless, "settings of the allocator: the request is more than any of them can find");
}

static void advise_unclear(const cmi_oom_message *m, const sizes *size, explain_answer *answer)
{
    const cmi_shortage *figures = &m->figures;
    explain_lines *missing = &answer->missing;
    if (!KNOWN(figures->request))
        add(missing, "how much was asked for");
    if (!KNOWN(figures->live))
        add(missing, "how much the allocator had handed out (live)");
    if (!KNOWN(figures->idle))
        add(missing, "how much it held beside that (idle, or reserved in total)");
    if (!KNOWN(figures->driver_free) && !KNOWN(figures->limit))
        add(missing, "how much was free on the device");
    if (missing->count == 0) {
        char doubt[32];
        add(missing, "exact figures: idle and free memory together are enough by less than the message rounds (%s)",
            explain_size(figures->doubt, doubt));
        add(&answer->helps, "take it as a full device: idle %s, free %s, asked for %s; the next request would fail too", size->idle,
            size->free, size->request);
    } else {
        add(&answer->helps, "paste the whole message, or take a snapshot at the failure (torch.cuda.memory._dump_snapshot, or "
                            "CUDAMEMPOOL_CONF=snapshot_on_refusal:FILE) and give it with --snapshot");
    }
}

/* ---- the library's own refusals ------------------------------------------------------------------ */

/* It moves pages, so that this is memory that it must not move. */
static void advise_own_packing(const sizes *size, explain_answer *answer)
{
    add(&answer->helps,
        "memory that can be moved: with backend:malloc, on devices without virtual memory management and in exportable blocks "
        "it cannot, and %s idle lie in pieces",
        size->idle);
    add(&answer->useless, "a smaller model or batch is not needed for this request: nothing is missing");
}

static void advise_own_pending(const sizes *size, explain_answer *answer)
{
    add(&answer->helps,
        "let streams wait for each other's memory (cross_stream_wait:true, the default), or synchronise before: %s wait for a "
        "stream",
        size->pending);
    add(&answer->useless, "a smaller batch or sequence: it lowers what is live (%s), while what is missing is only waited for", size->live);
}

static void advise_own_private_pools(const sizes *size, explain_answer *answer)
{
    add(&answer->helps,
        "drop CUDA graphs that will not run again (cmpool_capture_release), or let graphs that never run at the same time share "
        "one capture set: %s are kept for graphs",
        size->private_idle);
    add(&answer->useless, "torch.cuda.empty_cache(): memory of graphs keeps its addresses as long as they may run");
}

static void advise_own_cache_held(const sizes *size, explain_answer *answer)
{
    add(&answer->helps, "lower the floor of the process' other pools: %s lie idle, part of it in pools that keep it", size->idle);
    add(&answer->useless, "a smaller batch: nothing is missing");
}

void explain_refusal(const cmi_oom_message *message, explain_answer *answer)
{
    static void (*const advise[])(const cmi_oom_message *, const sizes *, explain_answer *) = {
        [CMI_VERDICT_UNCLEAR] = advise_unclear,
        [CMI_VERDICT_PACKING] = advise_packing,
        [CMI_VERDICT_PENDING] = advise_pending,
        [CMI_VERDICT_PRIVATE_POOLS] = advise_private_pools,
        [CMI_VERDICT_CACHE_HELD] = advise_cache_held,
        [CMI_VERDICT_DRIVER_REFUSED] = advise_driver_refused,
        [CMI_VERDICT_OTHER_PROCESSES] = advise_other_processes,
        [CMI_VERDICT_TRUE_DEMAND] = advise_true_demand,
    };
    static void (*const advise_own[CMI_VERDICTS])(const sizes *, explain_answer *) = {
        [CMI_VERDICT_PACKING] = advise_own_packing,
        [CMI_VERDICT_PENDING] = advise_own_pending,
        [CMI_VERDICT_PRIVATE_POOLS] = advise_own_private_pools,
        [CMI_VERDICT_CACHE_HELD] = advise_own_cache_held,
    };
    const cmi_shortage *figures = &message->figures;
    sizes size;
    *answer = (explain_answer){.verdict = message->says_verdict ? message->verdict : cmi_verdict_of(figures),
                               .short_by = KNOWN(message->short_by) ? message->short_by : cmi_shortage_bytes(figures)};
    explain_size(figures->request, size.request);
    explain_size(figures->live, size.live);
    explain_size(figures->idle, size.idle);
    explain_size(figures->driver_free, size.free);
    explain_size(figures->total, size.total);
    explain_size(figures->outside, size.outside);
    explain_size(figures->private_live, size.private_live);
    explain_size(message->this_process, size.process);
    explain_size(answer->short_by, size.short_by);
    explain_size(figures->pending, size.pending);
    explain_size(figures->private_idle, size.private_idle);
    explain_size(figures->limit, size.limit);
    bool own = message->format == CMI_OOM_CUDAMEMPOOL;
    if (own && KNOWN(figures->limit))
        add(&answer->helps,
            "a higher limit, if the device's memory is meant for this pool: it may hold %s (option limit, cmpool_set_limit, "
            "set_per_process_memory_fraction)",
            size.limit);
    if (own && advise_own[answer->verdict] != NULL)
        advise_own[answer->verdict](&size, answer);
    else
        advise[answer->verdict](message, &size, answer);
}
