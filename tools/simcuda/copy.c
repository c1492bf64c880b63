/*
 * Copies and fills. In ghost memory they are touches; in content mode bytes move when the device gets there. What synchronises follows
 * cuda.h, "API synchronization behavior": pageable sources are staged at the call, pageable targets are waited for. Guarded by sim.lock.
 */
#include "sim.h"
#include "sim_inner.h"

#include <stdlib.h>
#include <string.h>

typedef enum place { DEVICE, PINNED, PAGEABLE } place;

static place place_of(uint64_t address, uint64_t bytes)
{
    const sim_mapping *mapping = sim_mapping_find(address);
    if (mapping)
        return mapping->kind == SIM_MEMORY_HOST ? PINNED : DEVICE;
    if (sim_range_find(address))
        return DEVICE; /* reserved but not mapped: the device would fault */
    return sim_host_is_pinned(address, bytes) ? PINNED : PAGEABLE;
}

static void reach(sim_op *op, uint64_t address, uint64_t bytes, bool write)
{
    op->reach[op->reach_count++] = (sim_reach){address, bytes, write};
}

/* Rows of bytes, at unified addresses. */
typedef struct rows {
    uint64_t to, from;
    size_t width, count, to_pitch, from_pitch;
} rows;

static bool stage(sim_op *op, const rows *of)
{
    unsigned char *staged = malloc(of->width * of->count);
    for (size_t i = 0; staged && i < of->count; i++)
        memcpy(staged + i * of->width, (const void *)(uintptr_t)(of->from + i * of->from_pitch), of->width);
    op->u.copy.staged = staged;
    return staged != NULL;
}

/*
 * synchronous: the plain forms, on the default stream. Rules of cuda.h, by direction:
 * pageable to device: the stream is waited for, the bytes are staged (plain form), or only staged (Async);
 * device to pageable: returns when the copy is done, both forms; pinned: plain waits, Async does not;
 * device to device: no host-side synchronisation.
 */
static CUresult copy_rows(sim_frame *frame, sim_lane *lane, const rows *of, bool synchronous)
{
    if (of->width == 0 || of->count == 0)
        return CUDA_SUCCESS;
    uint64_t to_bytes = (of->count - 1) * of->to_pitch + of->width, from_bytes = (of->count - 1) * of->from_pitch + of->width;
    place target = place_of(of->to, to_bytes), source = place_of(of->from, from_bytes);
    sim_op op = {.kind = SIM_OP_COPY, .u.copy = {of->to, of->from, of->width, of->count, of->to_pitch, of->from_pitch, NULL}};
    if (target != PAGEABLE)
        reach(&op, of->to, to_bytes, true);
    if (source != PAGEABLE)
        reach(&op, of->from, from_bytes, false);
    if (source == PAGEABLE) {
        if ((sim.content || target == PAGEABLE) && !stage(&op, of))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (synchronous && !lane->capture && lane->enqueued) {
            for (unsigned i = 0; i < op.reach_count; i++) {
                CUresult code = sim_check_reach(lane->context, &op.reach[i]);
                if (code != CUDA_SUCCESS) {
                    sim_op_free(&op);
                    return code;
                }
            }
            sim_lane_synchronise(frame, lane);
        }
    }
    bool wait = target == PAGEABLE || (synchronous && (target == PINNED || source == PINNED));
    if (wait && lane->capture) {
        sim_op_free(&op);
        return sim_capture_query_lane(lane); /* a wait for a capturing stream */
    }
    /* From device to device the driver brings its own allocations through host memory where the context has no access to both; mapped
     * pages have grants of their own. */
    sim_context *context = lane->context;
    uint64_t peers = context->peers;
    context->peers = target == DEVICE && source == DEVICE ? UINT64_MAX : peers;
    CUresult code = sim_submit(lane, &op);
    context->peers = peers;
    if (code == CUDA_SUCCESS && wait)
        sim_lane_synchronise(frame, lane);
    return code;
}

static CUresult copy(sim_frame *frame, sim_lane *lane, uint64_t to, uint64_t from, size_t bytes, bool synchronous)
{
    return copy_rows(frame, lane, &(rows){to, from, bytes, 1, bytes, bytes}, synchronous);
}

static CUresult copy_on_default(sim_frame *frame, bool per_thread, uint64_t to, uint64_t from, size_t bytes)
{
    CUresult code;
    sim_lane *lane = sim_stream_lane(NULL, per_thread, &code);
    if (!lane)
        return code;
    if (sim_capture_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return copy(frame, lane, to, from, bytes, true);
}

static CUresult copy_on_stream(sim_frame *frame, bool per_thread, uint64_t to, uint64_t from, size_t bytes, CUstream stream)
{
    CUresult code;
    sim_lane *lane = sim_stream_lane(stream, per_thread, &code);
    return lane ? copy(frame, lane, to, from, bytes, false) : code;
}

/* Two names each: what stream 0 is. */
#define PLAIN_COPY(name, to_type, from_type)                                                    \
    SIM_EXPORT CUresult CUDAAPI name(to_type to, from_type from, size_t bytes)                  \
    {                                                                                           \
        SIM_ENTER(#name);                                                                       \
        SIM_RETURN(copy_on_default(&sim_here, false, SIM_NUMBER(to), SIM_NUMBER(from), bytes)); \
    }                                                                                           \
    SIM_EXPORT CUresult CUDAAPI name##_ptds(to_type to, from_type from, size_t bytes)           \
    {                                                                                           \
        SIM_ENTER(#name "_ptds");                                                               \
        SIM_RETURN(copy_on_default(&sim_here, true, SIM_NUMBER(to), SIM_NUMBER(from), bytes));  \
    }
#define ASYNC_COPY(name, to_type, from_type)                                                           \
    SIM_EXPORT CUresult CUDAAPI name(to_type to, from_type from, size_t bytes, CUstream stream)        \
    {                                                                                                  \
        SIM_ENTER(#name);                                                                              \
        SIM_RETURN(copy_on_stream(&sim_here, false, SIM_NUMBER(to), SIM_NUMBER(from), bytes, stream)); \
    }                                                                                                  \
    SIM_EXPORT CUresult CUDAAPI name##_ptsz(to_type to, from_type from, size_t bytes, CUstream stream) \
    {                                                                                                  \
        SIM_ENTER(#name "_ptsz");                                                                      \
        SIM_RETURN(copy_on_stream(&sim_here, true, SIM_NUMBER(to), SIM_NUMBER(from), bytes, stream));  \
    }

PLAIN_COPY(cuMemcpy, CUdeviceptr, CUdeviceptr)
PLAIN_COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
PLAIN_COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr)
PLAIN_COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
ASYNC_COPY(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
ASYNC_COPY(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
ASYNC_COPY(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
ASYNC_COPY(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

/* ---- rectangles, of linear memory: arrays are not simulated -------------------------------------------------------------------------- */

/* 0: not of the kinds there are. */
static uint64_t start_of(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch)
{
    uint64_t base = type == CU_MEMORYTYPE_HOST                                      ? SIM_NUMBER(host)
                    : type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device
                                                                                    : 0;
    return base ? base + y * pitch + x : 0;
}

static CUresult copy_rectangle(sim_frame *frame, sim_lane *lane, const CUDA_MEMCPY2D *of, bool synchronous)
{
    if (!of)
        return CUDA_ERROR_INVALID_VALUE;
    if (of->srcMemoryType == CU_MEMORYTYPE_ARRAY || of->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    rows all = {.to = start_of(of->dstMemoryType, of->dstHost, of->dstDevice, of->dstXInBytes, of->dstY, of->dstPitch),
                .from = start_of(of->srcMemoryType, of->srcHost, of->srcDevice, of->srcXInBytes, of->srcY, of->srcPitch),
                .width = of->WidthInBytes,
                .count = of->Height,
                .to_pitch = of->dstPitch,
                .from_pitch = of->srcPitch};
    bool narrow = all.to_pitch < all.width + of->dstXInBytes || all.from_pitch < all.width + of->srcXInBytes;
    if (!all.to || !all.from || (all.count > 1 && narrow))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_rows(frame, lane, &all, synchronous);
}

#define PLAIN_RECTANGLE(name, per_thread)                                           \
    SIM_EXPORT CUresult CUDAAPI name(const CUDA_MEMCPY2D *rectangle)                \
    {                                                                               \
        SIM_ENTER(#name);                                                           \
        sim_lane *lane = SIM_NEED_LANE(NULL, per_thread);                           \
        SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); \
        SIM_RETURN(copy_rectangle(&sim_here, lane, rectangle, true));               \
    }
#define ASYNC_RECTANGLE(name, per_thread)                                             \
    SIM_EXPORT CUresult CUDAAPI name(const CUDA_MEMCPY2D *rectangle, CUstream stream) \
    {                                                                                 \
        SIM_ENTER(#name);                                                             \
        sim_lane *lane = SIM_NEED_LANE(stream, per_thread);                           \
        SIM_RETURN(copy_rectangle(&sim_here, lane, rectangle, false));                \
    }
PLAIN_RECTANGLE(cuMemcpy2D_v2, false)
PLAIN_RECTANGLE(cuMemcpy2D_v2_ptds, true)
PLAIN_RECTANGLE(cuMemcpy2DUnaligned_v2, false)
PLAIN_RECTANGLE(cuMemcpy2DUnaligned_v2_ptds, true)
ASYNC_RECTANGLE(cuMemcpy2DAsync_v2, false)
ASYNC_RECTANGLE(cuMemcpy2DAsync_v2_ptsz, true)

/* ---- between contexts, which say no more than the addresses do ---------------------------------------------------------------------- */

static CUresult copy_peer(sim_frame *frame, sim_lane *lane, uint64_t to, CUcontext to_context, uint64_t from, CUcontext from_context,
                          size_t bytes, bool synchronous)
{
    CUresult code;
    if (!sim_context_of(to_context, &code) || !sim_context_of(from_context, &code))
        return code;
    return copy(frame, lane, to, from, bytes, synchronous);
}

#define PLAIN_PEER(name, per_thread)                                                                                               \
    SIM_EXPORT CUresult CUDAAPI name(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) \
    {                                                                                                                              \
        SIM_ENTER(#name);                                                                                                          \
        sim_lane *lane = SIM_NEED_LANE(NULL, per_thread);                                                                          \
        SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);                                                \
        SIM_RETURN(copy_peer(&sim_here, lane, to, to_context, from, from_context, bytes, true));                                   \
    }
#define ASYNC_PEER(name, per_thread)                                                                                               \
    SIM_EXPORT CUresult CUDAAPI name(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, \
                                     CUstream stream)                                                                              \
    {                                                                                                                              \
        SIM_ENTER(#name);                                                                                                          \
        sim_lane *lane = SIM_NEED_LANE(stream, per_thread);                                                                        \
        SIM_RETURN(copy_peer(&sim_here, lane, to, to_context, from, from_context, bytes, false));                                  \
    }
PLAIN_PEER(cuMemcpyPeer, false)
PLAIN_PEER(cuMemcpyPeer_ptds, true)
ASYNC_PEER(cuMemcpyPeerAsync, false)
ASYNC_PEER(cuMemcpyPeerAsync_ptsz, true)

/* ---- fills --------------------------------------------------------------------------------------------------------------------------- */

static CUresult fill(sim_frame *frame, sim_lane *lane, uint64_t to, unsigned value, unsigned element, size_t count, bool synchronous)
{
    size_t bytes;
    if (to % element || __builtin_mul_overflow(count, element, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (count == 0)
        return CUDA_SUCCESS;
    place target = place_of(to, bytes);
    if (target == PAGEABLE)
        return CUDA_ERROR_INVALID_VALUE;
    sim_op op = {.kind = SIM_OP_FILL, .u.fill = {to, count, 1, bytes, value, element}};
    reach(&op, to, bytes, true);
    CUresult code = sim_submit(lane, &op);
    if (code == CUDA_SUCCESS && synchronous && target == PINNED)
        sim_lane_synchronise(frame, lane); /* cuda.h: synchronous only where the target is pinned host memory */
    return code;
}

#define FILL(name, type, element)                                                                           \
    SIM_EXPORT CUresult CUDAAPI name##_v2(CUdeviceptr to, type value, size_t count)                         \
    {                                                                                                       \
        SIM_ENTER(#name "_v2");                                                                             \
        sim_lane *lane = SIM_NEED_LANE(NULL, false);                                                        \
        SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);                         \
        SIM_RETURN(fill(&sim_here, lane, to, value, element, count, true));                                 \
    }                                                                                                       \
    SIM_EXPORT CUresult CUDAAPI name##_v2_ptds(CUdeviceptr to, type value, size_t count)                    \
    {                                                                                                       \
        SIM_ENTER(#name "_v2_ptds");                                                                        \
        sim_lane *lane = SIM_NEED_LANE(NULL, true);                                                         \
        SIM_REFUSE_IF(sim_capture_unsafe(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);                         \
        SIM_RETURN(fill(&sim_here, lane, to, value, element, count, true));                                 \
    }                                                                                                       \
    SIM_EXPORT CUresult CUDAAPI name##Async(CUdeviceptr to, type value, size_t count, CUstream stream)      \
    {                                                                                                       \
        SIM_ENTER(#name "Async");                                                                           \
        sim_lane *lane = SIM_NEED_LANE(stream, false);                                                      \
        SIM_RETURN(fill(&sim_here, lane, to, value, element, count, false));                                \
    }                                                                                                       \
    SIM_EXPORT CUresult CUDAAPI name##Async_ptsz(CUdeviceptr to, type value, size_t count, CUstream stream) \
    {                                                                                                       \
        SIM_ENTER(#name "Async_ptsz");                                                                      \
        sim_lane *lane = SIM_NEED_LANE(stream, true);                                                       \
        SIM_RETURN(fill(&sim_here, lane, to, value, element, count, false));                                \
    }
FILL(cuMemsetD8, unsigned char, 1)
FILL(cuMemsetD16, unsigned short, 2)
FILL(cuMemsetD32, unsigned, 4)
