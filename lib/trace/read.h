/* Between the reader's door (read.c) and the formats: lines in, a growing trace out. Each format is one function over this. */
#ifndef CMI_TRACE_READ_H
#define CMI_TRACE_READ_H

#include "trace/source.h"
#include "trace/trace.h"

typedef struct cmi_reader {
    const char *name; /* of the file, for fault lines */
    cmi_source *source;
    cmi_trace *trace;
    uint32_t line;  /* number of the line last taken */
    bool binary;    /* faults name the byte instead */
    uint64_t taken; /* bytes before the window */
    char *fault;
    size_t fault_bytes;
    char *text; /* window over the text: [next, end) is not yet taken */
    size_t next, end;
    bool ended;
} cmi_reader;

/* Sets the fault line from the reader's position; returns -1 for the caller to pass on. */
int cmi_reader_fault(cmi_reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The next line without its newline: 1, 0 at the end, -1 on a fault. The text stays valid until the next call. */
int cmi_reader_line(cmi_reader *reader, const char **begin, const char **end);
/* So many bytes from the window's beginning on (at most CMI_READER_BYTES): 1, 0 when the text ends before, -1 on a fault. */
enum { CMI_READER_BYTES = 1 << 16 };
int cmi_reader_fill(cmi_reader *reader, size_t bytes);
static inline int cmi_reader_need(cmi_reader *reader, size_t bytes)
{
    return reader->end - reader->next >= bytes ? 1 : cmi_reader_fill(reader, bytes);
}
/* Room for one more item in an array that grows by doubling; -1 with a fault when there is no memory. */
int cmi_reader_grow(cmi_reader *reader, void *array, size_t count, size_t item_bytes);

int cmi_cmtrace_parse(cmi_reader *reader);

struct cmi_picture;
struct cmi_builder;
int cmi_pickle_parse(cmi_reader *reader, struct cmi_builder *builder);
int cmi_json_parse(cmi_reader *reader, struct cmi_builder *builder);
int cmi_rmm_parse(cmi_reader *reader, struct cmi_builder *builder);
/* convert.c, with the faults of a reader. */
int cmi_trace_of_picture(cmi_reader *reader, const struct cmi_picture *picture, uint32_t device, cmi_trace *trace);
int cmi_picture_of_trace(cmi_reader *reader, const cmi_trace *trace, struct cmi_picture *picture);

#endif
