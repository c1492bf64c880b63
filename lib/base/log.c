/*
 * Messages on stderr. Owns the level. No lock: a message is formatted on the stack and handed over by one write(2), so lines of
 * several threads do not mix and a message may be written under any lock, or by the lock checker itself.
 * Called by every room; the words of a message are the caller's.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* A longer message is cut, never split over two writes. */
#define LINE_BYTES 1024

static _Atomic int shown_level = CMI_LOG_ERROR;

void cmi_log_set_level(int verbose) { atomic_store_explicit(&shown_level, verbose, memory_order_relaxed); }

void cmi_log(cmi_log_level level, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&shown_level, memory_order_relaxed) && level != CMI_LOG_ERROR)
        return;

    int saved_errno = errno;
    char line[LINE_BYTES] = "cudamempool: ";
    size_t length = sizeof("cudamempool: ") - 1;
    va_list arguments;
    va_start(arguments, format);
    /* vsnprintf into our own buffer touches no stream and no heap for the conversions the library uses (no floating point). */
    int wanted = vsnprintf(line + length, sizeof(line) - length - 1, format, arguments);
    va_end(arguments);
    if (wanted > 0)
        length += (size_t)wanted;
    if (length > sizeof(line) - 2)
        length = sizeof(line) - 2;
    line[length++] = '\n';

    ssize_t written;
    do
        written = write(STDERR_FILENO, line, length);
    while (written < 0 && errno == EINTR);
    errno = saved_errno;
}
