/*
 * Another preloaded library, of the two common kinds in one: it wraps a function of the C library and asks for the one behind itself, and
 * it exports a dlsym of its own, without a version, that passes everything on. Built with and without optimisation.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

__attribute__((visibility("default"))) int wrapper_getpid_twice(void);

__attribute__((visibility("default"))) pid_t getpid(void)
{
    static pid_t (*next)(void);
    void *found = dlsym(RTLD_NEXT, "getpid");
    memcpy(&next, &found, sizeof found);
    return next();
}

/* Two identical look-ups give the same answer, not nothing. */
int wrapper_getpid_twice(void)
{
    pid_t first = getpid();
    return first == getpid() ? first : 0;
}

#ifdef SHIM_DLSYM
__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name)
{
    static void *(*next)(void *, const char *);
    if (!next) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        memcpy(&next, &found, sizeof found);
    }
    return strcmp(name, "getpid") == 0 && handle == RTLD_NEXT ? dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5") : next(handle, name);
}
#endif
