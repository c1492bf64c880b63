/*
 * A library that allocates for itself: linked against the driver or (CALLER_RUNTIME) the shared runtime, under the name of one that the
 * preload library knows, or another.
 */
#include <stddef.h>

#ifdef CALLER_RUNTIME
int cudaMalloc(void **pointer, size_t bytes);
#define ALLOCATE cudaMalloc
#else
int cuMemAlloc_v2(void **pointer, size_t bytes);
#define ALLOCATE cuMemAlloc_v2
#endif

int caller_take(void **pointer, size_t bytes) __attribute__((visibility("default")));
int caller_take(void **pointer, size_t bytes)
{
    int code = ALLOCATE(pointer, bytes);
    return code ? code : *pointer == NULL; /* something is left to do, so that this frame is there */
}
