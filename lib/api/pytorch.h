/* What the files behind cudamempool/pytorch.h share. */
#ifndef CMI_API_PYTORCH_H
#define CMI_API_PYTORCH_H

#include <cudamempool/pytorch.h>
#include <stdbool.h>

/* pytorch_pools.c: the private pool or capture set that a request on this stream goes to, or 0. */
cmpool_t cmi_torch_route(int device, cmpool_stream stream);
/* All of them back; OK, or why one could not be given up. */
cmpool_status cmi_torch_close_routes(void);

/* pytorch.c: the device's pool, made if need be. */
cmpool_status cmi_torch_pool(int device, cmpool_t *pool);

/* pytorch_raise.c: throw c10::OutOfMemoryError, or c10::Error; returns only where there is no PyTorch. No lock may be held. */
void cmi_torch_raise(const char *text, bool out_of_memory);

#endif
