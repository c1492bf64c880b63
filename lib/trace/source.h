/* Text from a file or from memory, inflated when its content is gzip; in pieces, so that no whole copy is ever held. */
#ifndef CMI_TRACE_SOURCE_H
#define CMI_TRACE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct cmi_source cmi_source;

/* NULL with the reason in *reason (static or strerror text) when the file cannot be read. */
cmi_source *cmi_source_open(const char *path, const char **reason);
cmi_source *cmi_source_open_memory(const void *data, size_t bytes, const char **reason);
bool cmi_source_is_gzip(const cmi_source *source);
/* Up to room bytes of text; 0 at the end; -1 with the reason in *reason. */
ssize_t cmi_source_read(cmi_source *source, void *text, size_t room, const char **reason);
void cmi_source_close(cmi_source *source);

#endif
