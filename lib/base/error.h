/* Status codes and the calling thread's last-error detail. */
#ifndef CMI_ERROR_H
#define CMI_ERROR_H

#include <cudamempool/cudamempool.h>

/* The calling thread's detail, to be filled in. Never NULL. */
cmpool_error *cmi_error_detail(void);
/* Clear the detail and set status and call; returns status, so `return cmi_error_set(CMPOOL_ERR_BUSY, "cmpool_destroy");` */
cmpool_status cmi_error_set(cmpool_status status, const char *call);
/* The same detail for reading; makes nothing. Never NULL; status OK when nothing has failed on this thread yet. */
const cmpool_error *cmi_error_last(void);
/* The library's code goes: threads that end later leave their records behind. */
void cmi_error_unload(void);

#endif
