/*
 * libcudamempool: a caching GPU memory allocator whose free memory cannot be lost to fragmentation.
 *
 * A pool hands out blocks of device memory in stream order, as cudaMallocAsync does: a block is given to a stream only when
 * every use ordered before its free is finished, or is ordered ahead of what that stream does next. Physical memory comes in
 * pages of 2 MiB that the pool can map at another address, so a request fails only when there are not enough idle pages.
 *
 * Threads: every call may be made from any thread at any time, except where a function says otherwise.
 * Context: no call needs a current CUDA context or changes the caller's; the device comes from the pool.
 * Errors: every call returns a status; cmpool_last_error() has the numbers behind the last failure of the calling thread.
 *   Where DRIVER is listed, a driver that is gone may be told as SHUTTING_DOWN or DEVICE_LOST.
 * The library never prints to stdout, never exits and never touches device memory from the CPU.
 * When it is closed (dlclose) no call of it may be in progress: pools are ended as by cmpool_destroy; the memory of blocks that are still
 * live stays as it is until the process ends, and everything else of theirs goes back.
 */
#ifndef CUDAMEMPOOL_H
#define CUDAMEMPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CMPOOL_VERSION_MAJOR 0
#define CMPOOL_VERSION_MINOR 1
#define CMPOOL_VERSION_PATCH 0

#if defined(__GNUC__)
#define CMPOOL_API __attribute__((visibility("default")))
#else
#define CMPOOL_API
#endif

/* What a call came to; the list is status.def. */
typedef enum cmpool_status {
#define CMPOOL_STATUS(name, number, text) CMPOOL_##name = number,
#include <cudamempool/status.def>
#undef CMPOOL_STATUS
} cmpool_status;

/* A pool. Checked by generation: a handle that outlives its pool gives CMPOOL_ERR_INVALID_POOL, never another pool. 0 is none. */
typedef uint64_t cmpool_t;

/* A CUDA stream: the same handle as CUstream and cudaStream_t. NULL and (void *)1 are the legacy default stream, (void *)2 the
 * calling thread's per-thread default stream. Trusted only during the call it is passed to. */
typedef struct CUstream_st *cmpool_stream;

/* ---- pools -------------------------------------------------------------------------------------- */

/* How a pool is made. Zero the struct, then set struct_size = sizeof(cmpool_config) and what you need. */
typedef struct cmpool_config {
    size_t struct_size;
    int device;          /* CUDA device ordinal, 0 and up */
    const char *options; /* "key:value,key:value" (options.def), applied over CUDAMEMPOOL_CONF; NULL is none */
    const int *peers;    /* ordinals of devices that may read and write the pool's memory, or NULL */
    size_t peer_count;   /* entries in peers, 0 to 63 */
} cmpool_config;

/*
 * Make a pool on a device. It reserves addresses (two times the device's memory) but no device memory. With backend:malloc, and on devices
 * without virtual memory management, it reserves nothing and takes cuMemAlloc segments, whose memory cannot be moved: peers reach them as
 * they reach cuMemAlloc memory (cuCtxEnablePeerAccess), and a request may be refused although there are idle bytes enough for it.
 * config NULL means device 0 and the options of CUDAMEMPOOL_CONF.
 * Returns OK, INVALID_ARGUMENT (pool NULL, bad struct_size, device or peers), BAD_OPTION (only with strict:true),
 * DRIVER_MISSING, UNSUPPORTED (a page_size other than that of the device's first pool),
 * OUT_OF_DEVICE_MEMORY (no room for the device's own context), OUT_OF_HOST_MEMORY, OUT_OF_ADDRESSES, DRIVER, SHUTTING_DOWN, FORKED,
 * DEVICE_LOST (the device was reset under pools that are still there: destroy them first).
 */
CMPOOL_API cmpool_status cmpool_create(cmpool_t *pool, const cmpool_config *config);

/*
 * Make a private pool inside parent (a pool made by cmpool_create): its blocks reuse each other first, its idle whole pages
 * serve everybody, it reserves nothing of its own. Use its handle wherever a pool is asked for.
 * Returns OK, INVALID_ARGUMENT, INVALID_POOL, UNSUPPORTED (parent is itself private), OUT_OF_HOST_MEMORY.
 */
CMPOOL_API cmpool_status cmpool_private_create(cmpool_t *pool, cmpool_t parent);

/*
 * Give everything back and forget the pool. Waits on the host for work that still uses freed memory.
 * Returns OK, INVALID_POOL, BUSY (live blocks, pinned ones too, private pools, capture sets or calls inside: nothing is changed), CAPTURE
 * (a capture is live: nothing is changed), UNSUPPORTED (a capture set: see cmpool_capture_release), DRIVER (destroyed, but the driver
 * refused to take something back).
 */
CMPOOL_API cmpool_status cmpool_destroy(cmpool_t pool);

/* ---- blocks ------------------------------------------------------------------------------------- */

/*
 * CMPOOL_EXPORTABLE: the block has a driver allocation of its own, whole pages long, that other processes can be given (cmpool_export_fd).
 * Its memory is never moved, taken or unmapped while it is live, and goes back to the driver once it is freed and its work is seen done:
 * at the free itself, in a later call of the pool that is short of memory, or in a trim. It counts against limit and headroom like pages.
 */
enum { CMPOOL_EXPORTABLE = 1 };

/* The general request. Zero the struct, then set struct_size and what you need. */
typedef struct cmpool_request {
    size_t struct_size;
    size_t bytes;         /* 1 to 2^47; rounded up to 512 */
    size_t alignment;     /* 0 (means 512) or a power of two, at most the pool's page size */
    cmpool_stream stream; /* the stream that uses the block first */
    uint32_t flags;       /* 0 or CMPOOL_EXPORTABLE */
    uint32_t tag;         /* any number below 2^31; shown in snapshots; 0: that of cmpool_tag_push, if any */
} cmpool_request;

/*
 * Take a block of at least `bytes` bytes, aligned to 512, for use on `stream` from now on.
 * bytes 0 gives OK and *ptr = NULL. On failure *ptr is NULL and no block is lost or changed.
 * Returns OK, INVALID_ARGUMENT (ptr NULL, bytes above 2^47), INVALID_POOL, OUT_OF_DEVICE_MEMORY, LIMIT, OUT_OF_HOST_MEMORY,
 * OUT_OF_ADDRESSES, MAPPING_CEILING, DRIVER, SHUTTING_DOWN, CAPTURE, FORKED, DEVICE_LOST (the device's
 * primary context was reset or destroyed: nothing is handed out from then on; blocks can be freed, the pools destroyed and new ones made).
 */
CMPOOL_API cmpool_status cmpool_malloc(cmpool_t pool, void **ptr, size_t bytes, cmpool_stream stream);

/*
 * The same with alignment, tag and flags. Also INVALID_ARGUMENT for a bad struct_size, alignment or flag; with CMPOOL_EXPORTABLE
 * UNSUPPORTED (backend:malloc, a capture set, or a device without handles for other processes) and CAPTURE (the stream is captured).
 */
CMPOOL_API cmpool_status cmpool_malloc_ex(cmpool_t pool, void **ptr, const cmpool_request *request);

/*
 * A file descriptor that stands for the memory of a live exportable block: to be passed on to another process (SCM_RIGHTS), which opens it
 * with cuMemImportFromShareableHandle. Each call gives a new one, the caller's to close; memory that was given away stays until all have
 * let go of it, also when the block is freed. On failure *fd is -1.
 * Returns OK, INVALID_ARGUMENT (fd NULL), INVALID_POOL, NOT_OURS, ALREADY_FREED, INTERIOR_POINTER, UNSUPPORTED (the block is not
 * exportable), DRIVER, FORKED.
 */
CMPOOL_API cmpool_status cmpool_export_fd(cmpool_t pool, const void *ptr, int *fd);

/*
 * Give a block back. It may be handed out again for `stream` at once, and to other streams when everything `stream` and the
 * streams named by cmpool_record_use have been given until now is finished, or is made to come first. ptr NULL is OK.
 * Returns OK, INVALID_POOL, NOT_OURS, ALREADY_FREED, INTERIOR_POINTER, FORKED; on a stream that the pool has not seen before, which is
 * asked of the driver, DRIVER; OUT_OF_HOST_MEMORY. In each case but OK the block stays live and the pool is unchanged.
 */
CMPOOL_API cmpool_status cmpool_free(cmpool_t pool, void *ptr, cmpool_stream stream);

/*
 * Say that a live block is also used on `stream`, so that its next owner comes after that use too.
 * Returns OK, INVALID_POOL, NOT_OURS, ALREADY_FREED, INTERIOR_POINTER, OUT_OF_HOST_MEMORY, DRIVER, FORKED.
 */
CMPOOL_API cmpool_status cmpool_record_use(cmpool_t pool, void *ptr, cmpool_stream stream);

/*
 * Say, before a stream is destroyed, that its handle is about to die: frees made on it are covered by an event now.
 * device is the ordinal the stream belongs to. Unknown streams are OK.
 * Returns OK, INVALID_ARGUMENT, DRIVER, OUT_OF_HOST_MEMORY, FORKED.
 */
CMPOOL_API cmpool_status cmpool_stream_retire(int device, cmpool_stream stream);

/* The bytes a live block really has: at least what was asked for. Returns as cmpool_record_use, and INVALID_ARGUMENT (bytes NULL). */
CMPOOL_API cmpool_status cmpool_usable_size(cmpool_t pool, const void *ptr, size_t *bytes);

/* What is known of an address. struct_size must be set before the call. */
typedef struct cmpool_block_info {
    size_t struct_size;
    cmpool_t pool;          /* the pool (or private pool) it belongs to */
    int device;             /* its device ordinal */
    uint32_t tag;           /* as given at allocation */
    void *base;             /* start of the block */
    size_t usable_bytes;    /* its whole length */
    size_t requested_bytes; /* as asked for; for slab blocks the slot's length */
} cmpool_block_info;

/* Find the live block that contains ptr (any byte of it), in any pool. Returns OK, INVALID_ARGUMENT, NOT_OURS, ALREADY_FREED. */
CMPOOL_API cmpool_status cmpool_lookup(const void *ptr, cmpool_block_info *info);

/*
 * Names for what the calling thread allocates from here on, until the matching pop: they are shown beside its blocks in snapshots and
 * reports. Names may be nested; a block whose request has a tag of its own keeps that. name is copied, at most 255 bytes of it. A push that
 * fails needs no pop. push returns OK, INVALID_ARGUMENT (NULL or empty), OUT_OF_HOST_MEMORY (also beyond 65,536 names in the process),
 * FORKED; pop OK, INVALID_ARGUMENT (nothing was pushed), FORKED.
 */
CMPOOL_API cmpool_status cmpool_tag_push(const char *name);
CMPOOL_API cmpool_status cmpool_tag_pop(void);

/* A step of the program (of training, say) begins: a mark in traces that are being recorded. Cheap where none is. Returns OK, FORKED. */
CMPOOL_API cmpool_status cmpool_step(void);

/* ---- memory without a stream: cudaMalloc and cudaFree as they are ------------------------------- */

/*
 * The same for programs that name no stream. A block from cmpool_malloc_unordered may be used on any stream of any context at once; after
 * cmpool_free_unordered its bytes wait for everything that every known context of the device has been given until then. The host is not
 * made to wait where the driver has context events (CUDA 12.5): they are recorded when such memory is wanted again, and where it is wanted
 * earlier the contexts wait on the device. Blocks of either kind may be freed either way. Returns as cmpool_malloc and cmpool_free.
 */
CMPOOL_API cmpool_status cmpool_malloc_unordered(cmpool_t pool, void **ptr, size_t bytes);
CMPOOL_API cmpool_status cmpool_free_unordered(cmpool_t pool, void *ptr);

/*
 * Say that a context (a CUcontext) other than the primary one uses memory of the device, before it does; or that it is about to be
 * destroyed. Contexts of streams that were named in a call are known already. Only while a pool exists on the device. Returns OK,
 * INVALID_ARGUMENT (no such device, context NULL), INVALID_POOL (no pool on the device), OUT_OF_HOST_MEMORY, FORKED.
 */
CMPOOL_API cmpool_status cmpool_context_add(int device, void *context);
CMPOOL_API cmpool_status cmpool_context_remove(int device, void *context);

/* ---- how much memory a pool holds --------------------------------------------------------------- */

/*
 * Give idle pages back to the driver until the pool holds at most keep_bytes or nothing idle is left. Pages whose work is not
 * finished are waited for on the host. released (may be NULL) is the bytes given back.
 * Returns OK, INVALID_POOL, DRIVER, CAPTURE (a capture is live: nothing was given back), FORKED.
 */
CMPOOL_API cmpool_status cmpool_trim(cmpool_t pool, size_t keep_bytes, size_t *released);

/*
 * Give back at least `bytes` of idle pages from all pools on a device, down to their floors, because somebody else needs them.
 * Waits on the host only if finished pages are not enough. Returns as cmpool_trim; INVALID_ARGUMENT for a bad device.
 */
CMPOOL_API cmpool_status cmpool_device_trim(int device, size_t bytes, size_t *released);

/* Hold at least `bytes` of pages ahead of need, so that what follows makes no driver calls. Returns as cmpool_malloc. */
CMPOOL_API cmpool_status cmpool_reserve(cmpool_t pool, size_t bytes);

/* The most bytes the pool may hold (0: no limit); a limit below what is held trims. Returns OK, INVALID_POOL, UNSUPPORTED (private). */
CMPOOL_API cmpool_status cmpool_set_limit(cmpool_t pool, size_t bytes);
/* The bytes that trims on behalf of others leave with the pool. Returns as cmpool_set_limit. */
CMPOOL_API cmpool_status cmpool_set_floor(cmpool_t pool, size_t bytes);
/* The device bytes the pool leaves free for others when it grows. Returns as cmpool_set_limit. */
CMPOOL_API cmpool_status cmpool_set_headroom(cmpool_t pool, size_t bytes);

/*
 * Called when a request cannot be served, before it is refused, with no lock held: may free blocks of any pool. Return non-zero
 * to have the search tried again. At most one callback a pool; fn NULL removes it. It must not destroy the pool.
 */
typedef int (*cmpool_low_memory_fn)(void *user, cmpool_t pool, size_t bytes);
CMPOOL_API cmpool_status cmpool_set_low_memory_callback(cmpool_t pool, cmpool_low_memory_fn fn, void *user);

/* ---- CUDA graphs -------------------------------------------------------------------------------- */

/*
 * Make a capture set inside parent (a pool made by cmpool_create): the memory of CUDA graphs. Use its handle as the pool for everything
 * that is allocated on a stream while that stream is captured. A set takes new pages, or pages seen idle before the capture began; what
 * it took keeps its address and serves nobody else until cmpool_capture_release, also while its blocks are free. Several captures may
 * share a set if their graphs never run at the same time: what one has freed the next may have. Frees of the set's blocks are told apart
 * by whether their stream is captured: behind others, such as a free of a graph's output, the set waits for the stream. Returns as
 * cmpool_private_create.
 */
CMPOOL_API cmpool_status cmpool_capture_create(cmpool_t *set, cmpool_t parent);

/*
 * Call before cuStreamBeginCapture and after cuStreamEndCapture, for every capture in the process: with the set it allocates from, or with
 * 0 if it allocates from none. In between no pool of the process makes a call that would invalidate a capture: nothing is queried, waited
 * for, recorded on a context or unmapped; requests are served from what is known to be finished and from new pages, or refused. begin
 * waits for calls of other threads that do any of this.
 * Of a capture that was not announced only its own requests are aware: those that leave the free lists ask whether their stream is
 * captured. Requests of other streams may then record an event on its context or wait for it, which invalidates it.
 * Returns OK, INVALID_POOL, UNSUPPORTED (not a capture set), INVALID_ARGUMENT (end without begin), FORKED.
 */
CMPOOL_API cmpool_status cmpool_capture_begin(cmpool_t set);
CMPOOL_API cmpool_status cmpool_capture_end(cmpool_t set);

/*
 * Say that no graph captured with the set will be launched again, and forget the set. Its free memory rejoins the parent behind all work
 * the device has been given; live blocks belong to the parent from now on and are freed through it. Returns OK, INVALID_POOL, UNSUPPORTED
 * (not a capture set), CAPTURE (one of its captures is live), BUSY (calls inside), OUT_OF_HOST_MEMORY (call again), FORKED.
 */
CMPOOL_API cmpool_status cmpool_capture_release(cmpool_t set);

/* ---- growing regions ---------------------------------------------------------------------------- */

/*
 * A region is a stretch of addresses of which a first part has memory, for caches and lists that grow: what is there already is never
 * copied. It is named by its first address. Create keeps addresses for max_bytes (1 to 2^47, rounded up to pages) and takes no memory.
 * Returns OK, INVALID_ARGUMENT, INVALID_POOL, UNSUPPORTED (a private pool or capture set, or backend:malloc), OUT_OF_HOST_MEMORY,
 * OUT_OF_ADDRESSES, DRIVER, SHUTTING_DOWN, DEVICE_LOST, FORKED.
 */
CMPOOL_API cmpool_status cmpool_region_create(cmpool_t pool, void **base, size_t max_bytes);

/*
 * Let the first `bytes` (at most max_bytes; rounded up to pages) have memory, for use on `stream` from now on; what the region had stays.
 * Pages come from wherever the pool has them, as for cmpool_malloc. Nothing happens if the region is that long already, but that the stream
 * counts as one that uses it. On failure it is as long as before.
 * Returns as cmpool_malloc; NOT_OURS, INTERIOR_POINTER (base names no region of the pool), INVALID_ARGUMENT (bytes above max_bytes), BUSY
 * (another thread is growing it), CAPTURE (the stream is captured), PAUSED.
 */
CMPOOL_API cmpool_status cmpool_region_grow(cmpool_t pool, void *base, size_t bytes, cmpool_stream stream);

/*
 * Give up the memory behind the first `bytes` (rounded up to pages). Like a free on `stream`: its pages serve others behind what the
 * streams have been given until now that grew the region or were named by cmpool_record_use. Nothing happens if the region is no longer.
 * Returns OK, NOT_OURS, INTERIOR_POINTER, INVALID_ARGUMENT, INVALID_POOL, BUSY, CAPTURE, PAUSED, OUT_OF_HOST_MEMORY, DRIVER,
 * SHUTTING_DOWN, DEVICE_LOST, FORKED.
 */
CMPOOL_API cmpool_status cmpool_region_shrink(cmpool_t pool, void *base, size_t bytes, cmpool_stream stream);

/* The same for all of it, and the addresses too. cmpool_free on a region answers UNSUPPORTED; a pool with regions is BUSY. Returns as
 * cmpool_region_shrink. */
CMPOOL_API cmpool_status cmpool_region_destroy(cmpool_t pool, void *base, cmpool_stream stream);

/* ---- pause and resume --------------------------------------------------------------------------- */

typedef enum cmpool_contents {
    CMPOOL_DISCARD = 0, /* blocks come back with undefined contents */
    CMPOOL_KEEP = 1     /* contents are copied to the host and come back */
} cmpool_contents;

enum { CMPOOL_PAUSE_VERIFY = 1 }; /* flags: with KEEP, checksums of what was saved and of what came back are compared */

/* The general request. Zero the struct, then set struct_size and what you need. */
typedef struct cmpool_pause_request {
    size_t struct_size;
    uint32_t contents;    /* cmpool_contents */
    uint32_t flags;       /* CMPOOL_PAUSE_* */
    uint32_t tag;         /* only blocks with this tag; with 0 and no name the whole pool */
    const char *tag_name; /* only blocks taken under a tag of this name (cmpool_tag_push), or under one within it; NULL: none */
    const char *file;     /* KEEP: a file for the contents, in a place with room; it must not exist, and has no name afterwards.
                           * NULL: pinned host memory of the pool */
    void **fixed;         /* out: the first fixed_room addresses of memory that cannot be paused; may be NULL */
    size_t fixed_room;
    size_t fixed_count; /* out: how many there are */
} cmpool_pause_request;

/*
 * Give the memory of a pool back to the device while its blocks keep their addresses, for as long as somebody else needs the device. Waits
 * for the device once. Until cmpool_resume nothing may use the blocks; they can be freed, and then do not come back. The whole pool hands
 * out nothing meanwhile (PAUSED). With a tag, only pages on which every block has it go: blocks up to 256 KiB and pages shared with other
 * blocks stay, and the rest of the pool goes on. Not while another thread uses the blocks on the device.
 * Returns OK, INVALID_ARGUMENT, INVALID_POOL, UNSUPPORTED (a private pool or capture set, or backend:malloc: give the pool itself), PAUSED
 * (it is paused already), BUSY (exported memory or that of graphs is in the set: fixed and fixed_count tell; or another thread pauses the
 * pool), CAPTURE, LIMIT or OUT_OF_HOST_MEMORY (no room for the contents), FILE, DRIVER, SHUTTING_DOWN, DEVICE_LOST, FORKED. After any
 * failure nothing is lost: the pool is as before, or, where the driver would not map its pages again, paused.
 */
CMPOOL_API cmpool_status cmpool_pause(cmpool_t pool, cmpool_contents contents);
CMPOOL_API cmpool_status cmpool_pause_ex(cmpool_t pool, cmpool_pause_request *request);

/*
 * Put pages back under every block at its address, and kept contents into them. Where the device has not enough, idle pages of the
 * process' pools are given up for it. After a failure the pool is still paused, nothing is lost, and it can be tried again.
 * Returns OK (also if the pool was not paused), INVALID_POOL, UNSUPPORTED (a private pool or capture set), BUSY (another thread pauses or
 * resumes it), OUT_OF_DEVICE_MEMORY, LIMIT, OUT_OF_HOST_MEMORY, CONTENTS (verified, and not what was saved), FILE, CAPTURE (contents cannot
 * be copied while a capture is live), MAPPING_CEILING, DRIVER, SHUTTING_DOWN, DEVICE_LOST, FORKED.
 */
CMPOOL_API cmpool_status cmpool_resume(cmpool_t pool);

/* ---- pinned host memory ------------------------------------------------------------------------- */

/*
 * Beside its device memory a pool hands out pinned host memory, which the device copies from and to without a detour. It is taken from the
 * driver (cuMemHostAlloc, portable and mapped) in extents of 2 MiB and more, cut and joined, and given back by cmpool_pinned_trim and with
 * the pool. Blocks above 1 MiB are rounded up to 4 KiB, not to a power of two. All handles work: those of private pools and capture sets
 * mean the pool they are in. The device uses a block at its host address, in every context.
 *
 * A block that is freed serves again only when the host has seen all work finished that the device had been given on the streams that were
 * named for it until then, since the CPU may write to it first. Nothing waits for that: other memory is taken meanwhile, up to the limit.
 * A block that a CUDA graph uses must not be freed before the graph's last launch is over.
 */
enum {
    CMPOOL_PINNED_PORTABLE = 1, /* flags of cuMemHostAlloc: every block is portable and mapped, asked for or not */
    CMPOOL_PINNED_MAPPED = 2,
    CMPOOL_PINNED_WRITE_COMBINED = 4, /* fast for the CPU to write, slow to read */
    CMPOOL_PINNED_UNORDERED = 256     /* stream is not looked at: the free waits for everything the device has been given */
};

/* The general request. Zero the struct, then set struct_size and what you need. */
typedef struct cmpool_pinned_request {
    size_t struct_size;
    size_t bytes;         /* 1 to 2^47 */
    size_t alignment;     /* 0 (means 512) or a power of two, at most 4096 */
    cmpool_stream stream; /* the stream that uses the block first */
    uint32_t flags;       /* CMPOOL_PINNED_* */
    uint32_t tag;         /* any number; shown in snapshots */
} cmpool_pinned_request;

/*
 * Take a block of pinned host memory, aligned to 512, whose first use on the device is on `stream`. bytes 0 gives OK and *ptr = NULL. On
 * failure *ptr is NULL. Waits on the host only where memory is short (the limit, or what the driver can pin).
 * Returns OK, INVALID_ARGUMENT (ptr NULL, bytes above 2^47), INVALID_POOL, LIMIT (the option pinned_limit), OUT_OF_HOST_MEMORY, DRIVER,
 * OUT_OF_DEVICE_MEMORY (no room for an event), SHUTTING_DOWN, CAPTURE, FORKED, DEVICE_LOST.
 */
CMPOOL_API cmpool_status cmpool_pinned_malloc(cmpool_t pool, void **ptr, size_t bytes, cmpool_stream stream);

/* The same with alignment, flags and tag. Also INVALID_ARGUMENT for a bad struct_size, alignment or flag. */
CMPOOL_API cmpool_status cmpool_pinned_malloc_ex(cmpool_t pool, void **ptr, const cmpool_pinned_request *request);

/*
 * Give a block back, behind everything that `stream`, the stream it was taken for and those named by cmpool_pinned_record_use have been
 * given until now. The CPU must not touch it any more. ptr NULL is OK. unordered: behind everything that every known context of the device
 * has been given until now. Returns as cmpool_free.
 */
CMPOOL_API cmpool_status cmpool_pinned_free(cmpool_t pool, void *ptr, cmpool_stream stream);
CMPOOL_API cmpool_status cmpool_pinned_free_unordered(cmpool_t pool, void *ptr);

/* Say that a live block is used on `stream` too. Returns as cmpool_record_use. */
CMPOOL_API cmpool_status cmpool_pinned_record_use(cmpool_t pool, void *ptr, cmpool_stream stream);

/* Find the live block of pinned memory that contains ptr (any byte of it), in any pool. Returns as cmpool_lookup. */
CMPOOL_API cmpool_status cmpool_pinned_lookup(const void *ptr, cmpool_block_info *info);

/* The most bytes of pinned memory the pool may hold (0: no limit); a limit below what is held trims. Returns OK, INVALID_POOL,
 * OUT_OF_HOST_MEMORY, FORKED. */
CMPOOL_API cmpool_status cmpool_pinned_set_limit(cmpool_t pool, size_t bytes);

/*
 * Give pinned memory back to the driver until at most keep_bytes are held or no extent is free as a whole. The host waits for work that is
 * not finished where that is needed. released (may be NULL) is the bytes given back.
 * Returns OK, INVALID_POOL, OUT_OF_HOST_MEMORY, DRIVER, CAPTURE (a capture is live: nothing was given back), FORKED.
 */
CMPOOL_API cmpool_status cmpool_pinned_trim(cmpool_t pool, size_t keep_bytes, size_t *released);

/* All figures of a pool's pinned memory (pinned.def). Set struct_size before the call. */
typedef struct cmpool_pinned_stats {
    size_t struct_size;
#define CMPOOL_PINNED_COUNTER(name, kind, help) uint64_t name;
#include <cudamempool/pinned.def>
#undef CMPOOL_PINNED_COUNTER
} cmpool_pinned_stats;

/* Read them. A shorter struct of an older header is filled as far as it goes. Returns OK, INVALID_ARGUMENT, INVALID_POOL, FORKED. */
CMPOOL_API cmpool_status cmpool_pinned_stats_get(cmpool_t pool, cmpool_pinned_stats *stats);

/* ---- figures and errors ------------------------------------------------------------------------- */

/* All counters of a pool (counters.def). Set struct_size before the call; a shorter struct of an older header is filled as far as it goes.
 */
typedef struct cmpool_stats {
    size_t struct_size;
#define CMPOOL_COUNTER(name, kind, help) uint64_t name;
#include <cudamempool/counters.def>
#undef CMPOOL_COUNTER
} cmpool_stats;

/* Read a pool's counters. Cheap enough to poll. For a private pool only its own live and allocation figures differ from the parent's.
 * Returns OK, INVALID_ARGUMENT, INVALID_POOL, FORKED. */
CMPOOL_API cmpool_status cmpool_stats_get(cmpool_t pool, cmpool_stats *stats);
/* The name of counter number `index` of cmpool_stats, in its order, for languages that do not read this header; NULL behind the last. */
CMPOOL_API const char *cmpool_counter_name(unsigned index);
/* Set the PEAK counters to the present level. Returns OK, INVALID_POOL. */
CMPOOL_API cmpool_status cmpool_stats_reset_peaks(cmpool_t pool);

/* Rungs of the ladder a request climbs before it is refused; what each had to give explains a refusal. */
enum {
    CMPOOL_RUNG_BINS,      /* own and finished free memory that lies together: the longest run */
    CMPOOL_RUNG_PROMOTE,   /* memory that events showed done */
    CMPOOL_RUNG_SLACK,     /* new pages within the slack */
    CMPOOL_RUNG_MOVE,      /* idle pages mapped elsewhere */
    CMPOOL_RUNG_GROW,      /* new pages up to limit and device */
    CMPOOL_RUNG_PENDING,   /* other streams' memory behind a device-side wait */
    CMPOOL_RUNG_SIBLINGS,  /* thread caches, other pools, low-memory callback */
    CMPOOL_RUNG_HOST_WAIT, /* memory the host had to wait for */
    CMPOOL_RUNG_COUNT
};

/* The numbers behind the last failed call of this thread. Strings are static. */
typedef struct cmpool_error {
    cmpool_status status;
    const char *call;        /* the public call */
    const char *driver_call; /* the driver function that failed, or "" */
    int driver_code;         /* its CUresult, or 0 */
    size_t bytes;            /* the request, rounded */
    size_t live_bytes;       /* of the pool when it refused */
    size_t reserved_bytes;
    size_t idle_bytes;                    /* whole idle pages, finished or not */
    size_t largest_free_bytes;            /* longest run of free bytes */
    size_t device_free_bytes;             /* what the driver said it had left; SIZE_MAX: not asked */
    size_t limit_bytes;                   /* 0: no limit */
    size_t short_bytes;                   /* what was missing */
    size_t rung_bytes[CMPOOL_RUNG_COUNT]; /* what each rung had to give */
    cmpool_t pool;                        /* that refused; 0: the failure was no refusal */
    size_t fixed_bytes; /* of reserved_bytes: in segments that cannot be moved, so that idle bytes in them need not make room */
} cmpool_error;

/* Never NULL; status OK when nothing has failed yet. Valid until the thread's next failing call. */
CMPOOL_API const cmpool_error *cmpool_last_error(void);
/* "CMPOOL_ERR_LIMIT"; never NULL. */
CMPOOL_API const char *cmpool_status_name(cmpool_status status);
/* The status in one sentence; never NULL. */
CMPOOL_API const char *cmpool_status_text(cmpool_status status);
/* "0.1.0" */
CMPOOL_API const char *cmpool_version(void);

/* Why a request found no room. */
typedef enum cmpool_verdict {
#define CMPOOL_VERDICT(name, number, key, sentence) CMPOOL_VERDICT_##name = number,
#include <cudamempool/verdicts.def>
#undef CMPOOL_VERDICT
} cmpool_verdict;

/* Who holds live memory: blocks that have a tag, a call stack (snapshots list them by number) or a size in common. */
enum { CMPOOL_BY_TAG, CMPOOL_BY_STACK, CMPOOL_BY_SIZE, CMPOOL_BY_COUNT };
typedef struct cmpool_holder {
    uint64_t by, key, bytes, blocks;
} cmpool_holder;
enum { CMPOOL_HOLDERS = 15 };

/* A refusal as it was at its moment, all sizes in bytes. UINT64_MAX: not known. */
typedef struct cmpool_refusal {
    size_t struct_size;
    cmpool_t pool;
    int device;
    cmpool_status status; /* OUT_OF_DEVICE_MEMORY or LIMIT */
    cmpool_verdict verdict;
    uint32_t tag, stack, stream, owner; /* of the request; numbers as in snapshots */
    uint64_t number;                    /* counts the pool's refusals, from 1 */
    uint64_t time_ns;                   /* monotonic clock */
    uint64_t request_bytes;             /* rounded to 512 */
    uint64_t live_bytes;                /* of the pool */
    uint64_t reserved_bytes;            /* of the pool */
    uint64_t idle_bytes;                /* whole idle pages of the pool, finished or not */
    uint64_t free_bytes;                /* all free bytes of the pool, those beside live ones on a page included */
    uint64_t pending_bytes;             /* of the free ones: other streams have to finish with them */
    uint64_t graph_bytes;               /* of the free ones: of capture sets, which serve nobody else */
    uint64_t sibling_idle_bytes;        /* whole idle pages of the device's other pools in this process, their floors included */
    uint64_t largest_free_bytes;        /* longest run of free bytes */
    uint64_t driver_free_bytes;         /* what the driver said it had left */
    uint64_t process_bytes;             /* held by all pools of the process on the device */
    uint64_t device_bytes;              /* of the device in all */
    uint64_t limit_bytes;               /* 0: no limit */
    uint64_t headroom_bytes;
    uint64_t short_bytes; /* what was missing, in whole pages */
    uint64_t rung_bytes[CMPOOL_RUNG_COUNT];
    cmpool_holder holders[CMPOOL_HOLDERS]; /* the largest by tag, then by stack, then by size */
    uint32_t holder_count;
} cmpool_refusal;

/* The pool's last refusal. Set struct_size before. Returns OK, INVALID_ARGUMENT (also: the pool has refused nothing yet), INVALID_POOL,
 * FORKED. */
CMPOOL_API cmpool_status cmpool_refusal_get(cmpool_t pool, cmpool_refusal *refusal);
/*
 * The report of a refusal in words: what was asked, what there was, what each rung gave, who holds the memory, what was the matter and what
 * would help; several lines. At most bytes - 1 characters and an end are written. Returns the length that the whole has; 0: refusal is NULL
 * or has another struct_size, or text is NULL.
 */
CMPOOL_API size_t cmpool_refusal_text(const cmpool_refusal *refusal, char *text, size_t bytes);
/*
 * Called by the thread that was refused, with no lock held, before its call returns; it may make calls of its own, but not destroy the
 * pool. At most one a pool; fn NULL removes it. Set on a private pool or capture set it is its parent's. Returns OK, INVALID_POOL, FORKED.
 */
typedef void (*cmpool_refusal_fn)(void *user, const cmpool_refusal *refusal);
CMPOOL_API cmpool_status cmpool_set_refusal_callback(cmpool_t pool, cmpool_refusal_fn fn, void *user);

/*
 * Write all that is known about the memory of every pool in the process, as JSON: layout, holders, what waits for what, history, call
 * stacks. snapshot.schema.json describes it, snapshot.sample.json is one. Each device is copied in one piece while its pools stand still
 * for as long as that takes; pools of different devices may have gone on in between. path is made or overwritten; "%p" in it is the
 * process, "%%" a percent sign. Returns OK, INVALID_ARGUMENT (path NULL, empty, too long or with another '%'; file not open for writing),
 * FILE (it could not be written; what is there is not complete), OUT_OF_HOST_MEMORY (for the copy; likewise), FORKED.
 */
CMPOOL_API cmpool_status cmpool_snapshot_write(const char *path);
/* The same into an open file descriptor. */
CMPOOL_API cmpool_status cmpool_snapshot_write_fd(int file);

/* Check every structure of a pool against every other. For tests; slow. Returns OK, INVALID_POOL, or DRIVER with the finding in
 * *finding (static until the next call on the thread; may be NULL). */
CMPOOL_API cmpool_status cmpool_validate(cmpool_t pool, const char **finding);

#ifdef __cplusplus
}
#endif

#endif /* CUDAMEMPOOL_H */
