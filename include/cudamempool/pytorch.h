/*
 * PyTorch's door: the functions that torch.cuda.memory.CUDAPluggableAllocator asks a library for, each with the signature it wants. The
 * Python package cudamempool (tools/python) sets them all; they may be set by hand as well:
 *
 *     allocator = torch.cuda.memory.CUDAPluggableAllocator("libcudamempool.so", "cmpool_torch_malloc_or_raise", "cmpool_torch_free")
 *     allocator.allocator().set_record_stream_fn(address of cmpool_torch_record_stream)
 *     torch.cuda.memory.change_current_allocator(allocator)
 *
 * Each device has one pool, made at its first request with the options of CUDAMEMPOOL_CONF and cmpool_torch_configure. Any thread. No
 * function needs a current context or changes the caller's.
 */
#ifndef CUDAMEMPOOL_PYTORCH_H
#define CUDAMEMPOOL_PYTORCH_H

#include <cudamempool/cudamempool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- blocks ------------------------------------------------------------------------------------- */

/*
 * A block for `stream` on a device (ordinal). NULL when there is none: that is what a torch.cuda.MemPool made with this allocator wants,
 * whose caller turns it into PyTorch's own out-of-memory. Also NULL for 0 bytes and for a bad device. cmpool_last_error() says why.
 */
CMPOOL_API void *cmpool_torch_malloc(size_t bytes, int device, cmpool_stream stream);
/*
 * The same for an allocator that takes the place of PyTorch's, where nobody looks at NULL: a refusal for lack of memory is thrown as
 * c10::OutOfMemoryError, torch.cuda.OutOfMemoryError in Python, with a text that begins "CUDA out of memory." and explains; any other
 * failure as c10::Error, RuntimeError in Python. Only where cmpool_torch_can_raise() is not 0; elsewhere NULL.
 */
CMPOOL_API void *cmpool_torch_malloc_or_raise(size_t bytes, int device, cmpool_stream stream);
/* Whether this process has a PyTorch whose exceptions can be thrown: 1, or 0. */
CMPOOL_API int cmpool_torch_can_raise(void);
/* Give a block back in the order of `stream`; where that handle is of no use any more, behind all work of the device. bytes as asked for. A
 * pointer that is no live block's is told on stderr and otherwise ignored. */
CMPOOL_API void cmpool_torch_free(void *ptr, size_t bytes, int device, cmpool_stream stream);
/* set_record_stream_fn: a live block is used on `stream` too. Memory of others is ignored. */
CMPOOL_API void cmpool_torch_record_stream(void *ptr, cmpool_stream stream);
/* set_base_alloc_fn: the start of the live block that holds ptr, and its length; NULL and 0 where there is none. */
CMPOOL_API void *cmpool_torch_base_alloc(void *ptr, size_t *bytes);

/* ---- the whole ---------------------------------------------------------------------------------- */

/* set_init_fn: does nothing, since a device that is not used shall get no context and no pool. */
CMPOOL_API void cmpool_torch_init(int device_count);
/* set_reset_fn, torch.cuda.empty_cache: idle pages of all devices go back to the driver, down to the floors. May wait on the host. */
CMPOOL_API void cmpool_torch_reset(void);
/* set_memory_fraction_fn: the pool's limit is this share of the device's memory, 0 to 1, or the option's `limit` if that is less. */
CMPOOL_API void cmpool_torch_memory_fraction(double fraction, int device);

/* Options of pools that are made from now on, over those of CUDAMEMPOOL_CONF; NULL is none. Returns OK, INVALID_ARGUMENT (2,048 bytes or
 * more), BUSY (a pool is there already). */
CMPOOL_API cmpool_status cmpool_torch_configure(const char *options);
/* The pool of a device, for figures; 0 where none was made yet. */
CMPOOL_API cmpool_t cmpool_torch_pool(int device);
/* Sums of bytes that were asked for and served, and that were freed, since ever, on a device. */
CMPOOL_API void cmpool_torch_totals(int device, uint64_t *served, uint64_t *freed);
/* Give all pools back. Returns OK, BUSY (blocks live: nothing is changed on that device), CAPTURE, or as cmpool_destroy. */
CMPOOL_API cmpool_status cmpool_torch_close(void);

/* ---- CUDA graphs and torch.cuda.MemPool --------------------------------------------------------- */

/*
 * set_begin_allocate_to_pool: requests on the device whose stream `filter` accepts come from the pool of this id until end. The three
 * arguments are those of the C++ function (int, std::pair<uint64, uint64>, std::function<bool(cudaStream_t)>) as compilers of the Itanium
 * C++ ABI pass them, with libstdc++'s std::function, which is copied. What a stream capture is announced with gets a capture set, anything
 * else a private pool: captures are told by a filter that does not accept the thread's own default stream, which is not captured.
 */
CMPOOL_API void cmpool_torch_begin_pool(int device, uint64_t id_first, uint64_t id_second, const void *filter);
/* set_end_allocate_to_pool_fn. */
CMPOOL_API void cmpool_torch_end_pool(int device, uint64_t id_first, uint64_t id_second);
/* set_release_pool: once for each begin. After the last one the memory rejoins the device's pool. */
CMPOOL_API void cmpool_torch_release_pool(int device, uint64_t id_first, uint64_t id_second);

#ifdef __cplusplus
}
#endif

#endif
