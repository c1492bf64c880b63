/*
 * jemalloc, where the build has it (CMI_HAVE_JEMALLOC; tools/jemalloc.sh gets it). Its names begin with cmi_je_, so it stands beside any
 * other in the process. Every call is made between enter and leave: it was built without handlers of fork, and the lock of metadata memory
 * is one that is held across a fork. Nothing that takes a lock or asks for metadata memory may be called in between, hooks included.
 */
#ifndef CMI_JEMALLOC_H
#define CMI_JEMALLOC_H

#ifdef CMI_HAVE_JEMALLOC

#define JEMALLOC_NO_DEMANGLE
#include <jemalloc/jemalloc.h>

void cmi_jemalloc_enter(void); /* meta.c */
void cmi_jemalloc_leave(void);

#endif

#endif
