/* A number for each thread that is never used again, unlike pthread_self. */
#ifndef CMI_THREAD_H
#define CMI_THREAD_H
#include <stdint.h>
/* From 1 up; the same in every call of one thread. */
uint64_t cmi_thread_number(void);
#endif
