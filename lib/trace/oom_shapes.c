/*
 * Owns the shapes of out-of-memory messages: what each kind begins with, and which words stand beside which figure in it. They are those of
 * PyTorch (1.0 to 2.x), RMM, TensorFlow and JAX, CuPy, PaddlePaddle, and the library's own. Constants; read by the rest of the reader.
 */
#include "trace/oom_shapes.h"

static const figure_words pytorch_words[] = {
    {REQUEST, AT_END, "triedtoallocate"},
    {TOTAL, BEFORE, "totalcapacity;"},
    {TOTAL, AT_END, "totalcapacityof"},
    {TOTAL, AT_END, "totalcapactyof"},
    {LIVE, BEFORE, "alreadyallocated"},
    {LIVE, BEFORE, "isallocatedbypytorch"},
    {DRIVER_FREE, BEFORE, "free;"},
    {DRIVER_FREE, BEFORE, "isfree"},
    {IDLE, BEFORE, "cached)"},
    {IDLE, BEFORE, "isreservedbypytorchbutunallocated"},
    {RESERVED, BEFORE, "reservedintotalbypytorch"},
    {LIMIT, BEFORE, "allowed;"},
    {PRIVATE_LIVE, BEFORE, "allocatedinprivatepools"},
    {THIS_PROCESS, AT_END, "thisprocesshas"},
};
static const figure_words stream_ordered_words[] = {
    {REQUEST, AT_END, "requested:"},
    {LIVE, AT_END, "currentlyallocated:"},
    {TOTAL, AT_END, "devicelimit:"},
    {DRIVER_FREE, AT_END, "free(accordingtocuda):"},
    {LIMIT, AT_END, "user-suppliedmemoryfraction):"},
};
static const figure_words rmm_words[] = {
    {REQUEST, AT_END, "failedtoallocate"},
    {REQUEST, AT_END, "unabletoallocate"},
    {LIVE, AT_END, "totalrmmallocatedis"},
    {RESERVED, AT_END, "current/max/trysize="},
};
static const figure_words tensorflow_words[] = {
    {REQUEST, AT_END, "ranoutofmemorytryingtoallocate"},
    {REQUEST, AT_END, "outofmemorywhiletryingtoallocate"},
    {LIVE, AT_END, "inuse:"},
    {LIVE, AT_END, "sumtotalofin-usechunks:"},
    {RESERVED, AT_END, "total_region_allocated_bytes_:"},
    {LIMIT, AT_END, "limit:"},
    {LIMIT, AT_END, "memory_limit_:"},
    {DRIVER_FREE, AT_END, "availablebytes:"},
};
static const figure_words cupy_words[] = {
    {REQUEST, AT_END, "outofmemoryallocating"},
    {RESERVED, AT_END, "allocatedsofar:"},
    {LIMIT, AT_END, "limitsetto:"},
};
static const figure_words paddle_words[] = {
    {REQUEST, AT_END, "cannotallocate"},
    {RESERVED, BEFORE, "memoryhasbeenallocated"},
    {DRIVER_FREE, AT_END, "availablememoryisonly"},
};
static const figure_words bare_words[] = {
    {REQUEST, BEFORE, "ondevice"},
    {REQUEST, AT_END, "attemptingtoallocate"},
};

/* Of the report, and of the exception that PyTorch raises. */
static const figure_words own_words[] = {
    {REQUEST, AT_END, "triedtoallocate"},
    {REQUEST, BEFORE, "ondevice"},
    {TOTAL, AT_END, "totalcapacityof"},
    {TOTAL, AT_END, "device:"},
    {LIVE, BEFORE, "isallocatedbypytorch"},
    {LIVE, BEFORE, "live,"},
    {DRIVER_FREE, BEFORE, "isfree"},
    {DRIVER_FREE, BEFORE, "free,"},
    {IDLE, AT_END, "wherevertheylie,are"},
    {IDLE, BEFORE, "idleinwholepages"},
    {UNALLOCATED, BEFORE, "isreservedbypytorchbutunallocated"},
    {RESERVED, BEFORE, "held,"},
    {LIMIT, AT_END, "libcudamempool(limit"},
    {LIMIT, AT_END, ",limit"},
    {LARGEST, BEFORE, "inonepiece"},
    {LARGEST, AT_END, "longestrun"},
    {PENDING, BEFORE, "waitforstreams"},
    {PRIVATE_IDLE, BEFORE, "arekeptforgraphs"},
    {SIBLING_IDLE, AT_END, "idleinotherpools:"},
    {OUTSIDE, BEFORE, "heldbyothers"},
    {SHORT, BEFORE, "ismissing"},
    {SHORT, BEFORE, "short"},
};

const oom_beginning cmi_oom_beginnings[] = {
    {CMI_OOM_PYTORCH, "triedtoallocate"},
    {CMI_OOM_STREAM_ORDERED, "wouldexceedallowedmemory"},
    {CMI_OOM_RMM, "maximumpoolsizeexceeded"},
    {CMI_OOM_RMM, "unabletoallocate"},
    {CMI_OOM_TENSORFLOW, "ranoutofmemorytryingtoallocate"},
    {CMI_OOM_TENSORFLOW, "outofmemorywhiletryingtoallocate"},
    {CMI_OOM_CUPY, "outofmemoryallocating"},
    {CMI_OOM_PADDLE, "cannotallocate"},
    {CMI_OOM_BARE, "cudaoutofmemory"},
    {CMI_OOM_BARE, "hipoutofmemory"},
    {CMI_OOM_BARE, "cudaerror:outofmemory"},
    {CMI_OOM_BARE, "cuda_error_out_of_memory"},
    {CMI_OOM_BARE, "cudaerrormemoryallocation"},
    {CMI_OOM_BARE, "cudamallocfailed:outofmemory"},
    {CMI_OOM_BARE, "cublas_status_alloc_failed"},
    {CMI_OOM_BARE, "std::bad_alloc"},
    {CMI_OOM_BARE, "outofmemoryerror"},
    {CMI_OOM_CUDAMEMPOOL, "(outofdevicememory),"},
    {CMI_OOM_CUDAMEMPOOL, "(limit),"},
    {.words = NULL},
};

/* Arenas print a line for each of their chunks; some name the device, or the size, first. */
#define SHAPE(name, words, reach, back)                           \
    {                                                             \
        name, words, sizeof(words) / sizeof *(words), reach, back \
    }
const oom_shape cmi_oom_shapes[CMI_OOM_FORMATS] = {
    [CMI_OOM_PYTORCH] = SHAPE("pytorch", pytorch_words, 1500, 0),
    [CMI_OOM_STREAM_ORDERED] = SHAPE("pytorch-stream-ordered", stream_ordered_words, 600, 60),
    [CMI_OOM_RMM] = SHAPE("rmm", rmm_words, 400, 0),
    [CMI_OOM_TENSORFLOW] = SHAPE("tensorflow", tensorflow_words, SIZE_MAX, 0),
    [CMI_OOM_CUPY] = SHAPE("cupy", cupy_words, 300, 0),
    [CMI_OOM_PADDLE] = SHAPE("paddle", paddle_words, 400, 0),
    [CMI_OOM_BARE] = SHAPE("bare", bare_words, 200, 60),
    [CMI_OOM_CUDAMEMPOOL] = SHAPE("cudamempool", own_words, 1500, 60),
};
