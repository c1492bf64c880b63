/*
 * An NVTX tool that writes a line for each thing it is told to the file that NVTX_RECORD names: found as tools are, by
 * NVTX_INJECTION64_PATH. For test_nvtx.py. With NVTX_REFUSE=start or extend it wants nothing of that kind.
 */
#include "record/nvtx_abi.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int InitializeInjectionNvtx2(cmi_nvtx_get_table get_table);
EXPORT int InitializeInjectionNvtxExtension(cmi_nvtx_extension *extension);

static FILE *out;

static bool refuses(const char *what)
{
    const char *word = getenv("NVTX_REFUSE");
    return word && strcmp(word, what) == 0;
}

/* ---- domains ------------------------------------------------------------------------------------------ */

static cmi_nvtx_domain create(const char *name)
{
    fprintf(out, "domain %s\n", name);
    return (cmi_nvtx_domain)&out;
}

static void write_event(const char *kind, cmi_nvtx_domain domain, const cmi_nvtx_attributes *a)
{
    bool sound = domain == (cmi_nvtx_domain)&out && a->version == CMI_NVTX_ATTRIBUTES_VERSION && a->size == sizeof *a &&
                 (a->message_type == CMI_NVTX_MESSAGE_ASCII || a->message_type == CMI_NVTX_MESSAGE_REGISTERED) &&
                 a->payload_type == CMI_NVTX_PAYLOAD_UINT64;
    fprintf(out, "%s %s %llu\n", sound ? kind : "bad", a->message.ascii, (unsigned long long)a->payload);
}

static void mark(cmi_nvtx_domain domain, const cmi_nvtx_attributes *a) { write_event("mark", domain, a); }

static int push(cmi_nvtx_domain domain, const cmi_nvtx_attributes *a)
{
    write_event("push", domain, a);
    return 0;
}

static int pop(cmi_nvtx_domain domain)
{
    fprintf(out, domain == (cmi_nvtx_domain)&out ? "pop\n" : "bad pop\n");
    return 0;
}

static int range_push(const cmi_nvtx_attributes *a)
{
    fprintf(out, "range %s\n", a->message.ascii);
    return 0;
}

static int range_push_ascii(const char *message)
{
    fprintf(out, "range %s\n", message);
    return 0;
}

static int range_push_wide(const wchar_t *message)
{
    fprintf(out, "range %ls\n", message);
    return 0;
}

static int range_pop(void) { return -1; }

static const void *string(cmi_nvtx_domain domain, const char *text)
{
    (void)domain;
    return strdup(text);
}

/* ---- memory and counters ------------------------------------------------------------------------------ */

static cmi_nvtx_heap heap_register(cmi_nvtx_domain domain, const cmi_nvtx_heap_description *d)
{
    static uintptr_t number = 100;
    const cmi_nvtx_bytes *bytes = d->bytes;
    bool sound = domain == (cmi_nvtx_domain)&out && d->version == CMI_NVTX_MEMORY_VERSION && d->size == sizeof *d &&
                 d->usage == CMI_NVTX_SUB_ALLOCATOR && d->type == CMI_NVTX_VIRTUAL_ADDRESS && d->bytes_size == sizeof *bytes;
    fprintf(out, "%s %lu %lu %zu\n", sound ? "heap" : "bad", ++number, (unsigned long)(uintptr_t)bytes->start, bytes->size);
    return (cmi_nvtx_heap)number;
}

static void heap_unregister(cmi_nvtx_domain domain, cmi_nvtx_heap heap)
{
    fprintf(out, "%s %lu\n", domain ? "unheap" : "bad", (unsigned long)(uintptr_t)heap);
}

static void regions_register(cmi_nvtx_domain domain, const cmi_nvtx_regions *r)
{
    const cmi_nvtx_bytes *bytes = r->bytes;
    bool sound = domain && r->version == CMI_NVTX_MEMORY_VERSION && r->size == sizeof *r && r->count == 1 && r->bytes_size == sizeof *bytes;
    fprintf(out, "%s %lu %lu %zu\n", sound ? "region" : "bad", (unsigned long)(uintptr_t)r->heap, (unsigned long)(uintptr_t)bytes->start,
            bytes->size);
}

static void regions_unregister(cmi_nvtx_domain domain, const cmi_nvtx_gone *g)
{
    bool sound = domain && g->version == CMI_NVTX_MEMORY_VERSION && g->size == sizeof *g && g->count == 1 && g->by == CMI_NVTX_BY_POINTER;
    fprintf(out, "%s %lu\n", sound ? "unregion" : "bad", (unsigned long)(uintptr_t)g->references[0]);
}

static uint64_t counter_register(cmi_nvtx_domain domain, const cmi_nvtx_counter *c)
{
    static uint64_t number = 1000;
    fprintf(out, "%s %llu %s\n", domain && c->size == sizeof *c && c->type == CMI_NVTX_TYPE_INT64 ? "counter" : "bad",
            (unsigned long long)++number, c->name);
    return number;
}

static void sample(cmi_nvtx_domain domain, uint64_t counter, int64_t value)
{
    fprintf(out, "%s %llu %lld\n", domain ? "sample" : "bad", (unsigned long long)counter, (long long)value);
}

/* ---- start -------------------------------------------------------------------------------------------- */

int InitializeInjectionNvtx2(cmi_nvtx_get_table get_table)
{
    const cmi_nvtx_callbacks *callbacks = get_table(CMI_NVTX_TABLE_CALLBACKS);
    const cmi_nvtx_version *version = get_table(CMI_NVTX_TABLE_VERSION);
    cmi_nvtx_function **places;
    unsigned count;
    out = fopen(getenv("NVTX_RECORD"), "a");
    if (!out || refuses("start") || get_table(2) || !callbacks || !version || callbacks->size < sizeof *callbacks ||
        version->version != CMI_NVTX_VERSION) {
        return 0;
    }
    setvbuf(out, NULL, _IOLBF, 0);
    version->set_tool_version(CMI_NVTX_VERSION);
    for (int set = CMI_NVTX_CORE; set <= CMI_NVTX_SYNC; set++) { /* a tool fills them all */
        if (!callbacks->get_places(set, &places, &count)) {
            return 0;
        }
        for (unsigned i = 1; i < count && set != CMI_NVTX_CORE2; i++) {
            *places[i] = (cmi_nvtx_function)abort;
        }
        if (set == CMI_NVTX_CORE) {
            *places[CMI_NVTX_RANGE_PUSH] = (cmi_nvtx_function)range_push;
            *places[CMI_NVTX_RANGE_PUSH_ASCII] = (cmi_nvtx_function)range_push_ascii;
            *places[CMI_NVTX_RANGE_PUSH_WIDE] = (cmi_nvtx_function)range_push_wide;
            *places[CMI_NVTX_RANGE_POP] = (cmi_nvtx_function)range_pop;
        }
    }
    if (callbacks->get_places(CMI_NVTX_SYNC + 1, &places, &count) || !callbacks->get_places(CMI_NVTX_CORE2, &places, &count) ||
        count != CMI_NVTX_CORE2_PLACES || places[count]) {
        return 0;
    }
    *places[CMI_NVTX_DOMAIN_STRING] = (cmi_nvtx_function)string;
    *places[CMI_NVTX_DOMAIN_CREATE] = (cmi_nvtx_function)create;
    *places[CMI_NVTX_DOMAIN_MARK] = (cmi_nvtx_function)mark;
    *places[CMI_NVTX_DOMAIN_PUSH] = (cmi_nvtx_function)push;
    *places[CMI_NVTX_DOMAIN_POP] = (cmi_nvtx_function)pop;
    return 1;
}

int InitializeInjectionNvtxExtension(cmi_nvtx_extension *extension)
{
    intptr_t *places = extension->segments[0].places;
    if (refuses("extend") || extension->segment_count != 1 || extension->segments[0].count != CMI_NVTX_EXTENSION_PLACES) {
        return 0;
    }
    if (extension->number == CMI_NVTX_MEMORY && extension->version == CMI_NVTX_MEMORY_VERSION) {
        places[CMI_NVTX_HEAP_REGISTER] = (intptr_t)heap_register;
        places[CMI_NVTX_HEAP_UNREGISTER] = (intptr_t)heap_unregister;
        places[CMI_NVTX_REGIONS_REGISTER] = (intptr_t)regions_register;
        places[CMI_NVTX_REGIONS_UNREGISTER] = (intptr_t)regions_unregister;
    } else if (extension->number == CMI_NVTX_COUNTERS) {
        places[CMI_NVTX_COUNTER_REGISTER] = (intptr_t)counter_register;
        places[CMI_NVTX_COUNTER_SAMPLE_INT64] = (intptr_t)sample;
    }
    return 1;
}
