/*
 * The smaller parts of a snapshot: options, names, call stacks, stamps and the event ring. Owns nothing; reads copies and tables that do
 * not change. Called by snapshot.c without any lock.
 */
#include "inspect/sections.h"

#include <dlfcn.h>
#include <stdio.h>

/* ---- options: one writer a kind ----------------------------------------------------------------------- */

#define WRITE_SIZE(key) cmi_json_number(json, #key, options->key);
#define WRITE_RATIO(key) cmi_json_number(json, #key, options->key);
#define WRITE_SECONDS(key) cmi_json_number(json, #key, options->key);
#define WRITE_EVERY(key) cmi_json_number(json, #key, options->key);
#define WRITE_FLAG(key) cmi_json_flag(json, #key, options->key != 0);
#define WRITE_CHOICE(key) write_choice(json, #key, CMPOOL_CHOICES_##key, options->key);
#define WRITE_TEXT(key) cmi_json_text(json, #key, cmi_options_text(options->key));

static void write_choice(cmi_json *json, const char *key, const char *words, uint64_t position)
{
    char word[32];
    size_t length = 0;
    while (position && *words) {
        position -= *words++ == '|';
    }
    while (*words && *words != '|' && length < sizeof word - 1) {
        word[length++] = *words++;
    }
    word[length] = '\0';
    cmi_json_text(json, key, word);
}

void cmi_sections_options(cmi_json *json, const cmi_options *options)
{
    cmi_json_begin(json, "options", '{');
#define CMPOOL_OPTION(key, kind, value, low, high, help) WRITE_##kind(key)
#include <cudamempool/options.def>
#undef CMPOOL_OPTION
    cmi_json_end(json, '}');
}

/* ---- names and stacks --------------------------------------------------------------------------------- */

void cmi_sections_tags(cmi_json *json)
{
    cmi_json_table(json, "tags", "tag name parent");
    uint32_t count = cmi_tag_count();
    for (uint32_t i = 0; i < count; i++) {
        uint32_t parent;
        const char *name = cmi_tag_name(CMI_TAG_FIRST + i, &parent);
        cmi_json_row(json);
        cmi_json_number(json, NULL, CMI_TAG_FIRST + i);
        cmi_json_text(json, NULL, name);
        cmi_json_number(json, NULL, parent);
        cmi_json_end(json, ']');
    }
    cmi_json_table_end(json);
}

static void write_frame(cmi_json *json, const char *address)
{
    char text[512];
    Dl_info found;
    if (!dladdr(address, &found) || !found.dli_fname) {
        snprintf(text, sizeof text, "0x%llx", (unsigned long long)(uintptr_t)address);
    } else if (found.dli_sname) {
        snprintf(text, sizeof text, "%.200s+0x%llx (%.250s+0x%llx)", found.dli_sname,
                 (unsigned long long)(address - (const char *)found.dli_saddr), found.dli_fname,
                 (unsigned long long)(address - (const char *)found.dli_fbase));
    } else {
        snprintf(text, sizeof text, "%.400s+0x%llx", found.dli_fname, (unsigned long long)(address - (const char *)found.dli_fbase));
    }
    cmi_json_text(json, NULL, text);
}

void cmi_sections_stacks(cmi_json *json)
{
    cmi_json_table(json, "stacks", "stack frames");
    uint32_t count = cmi_stack_count();
    for (uint32_t i = 1; i <= count; i++) {
        void *const *frames;
        size_t length = cmi_stack_get(i, &frames);
        cmi_json_row(json);
        cmi_json_number(json, NULL, i);
        cmi_json_begin(json, NULL, '[');
        for (size_t j = 0; j < length; j++) {
            write_frame(json, frames[j]);
        }
        cmi_json_end(json, ']');
        cmi_json_end(json, ']');
    }
    cmi_json_table_end(json);
}

/* ---- stamps ------------------------------------------------------------------------------------------- */

static void stamp_row(cmi_json *json, uint64_t number, const cmi_stamp *stamp)
{
    cmi_json_row(json);
    cmi_json_number(json, NULL, number);
    cmi_json_flag(json, NULL, stamp->whole);
    cmi_json_begin(json, NULL, '[');
    for (unsigned i = 0; i < stamp->count && !stamp->whole; i++) {
        cmi_json_number(json, NULL, stamp->entries[i].stream);
    }
    cmi_json_end(json, ']');
    cmi_json_end(json, ']');
}

void cmi_sections_stamps(cmi_json *json, const cmi_copy *copy)
{
    cmi_json_table(json, "stamps", "stamp whole_device streams");
    for (uint32_t i = 1; i < copy->device.stream_count; i++) {
        stamp_row(json, i, &(cmi_stamp){.count = 1, .entries = {{0, i}}});
    }
    for (uint32_t i = 0; i < copy->device.stamp_chunk_count << CMI_STAMP_CHUNK_SHIFT; i++) {
        const cmi_stamp *stamp = cmi_stamp_get(&copy->device, i);
        if (stamp->holders) {
            stamp_row(json, cmi_sections_stamp(copy, i), stamp);
        }
    }
    cmi_json_table_end(json);
}

/* ---- history ------------------------------------------------------------------------------------------ */

void cmi_sections_history(cmi_json *json, const cmi_pool_copy *pool)
{
    cmi_json_begin(json, "history", '{');
    cmi_json_number(json, "lost", pool->events_lost);
    cmi_json_table(json, "events", "time_ns event address bytes stream tag stack owner");
    for (uint64_t i = 0; i < pool->event_count; i++) {
        const cmi_event *event = &pool->events[i];
        cmi_json_row(json);
        cmi_json_number(json, NULL, event->time_ns);
        cmi_json_text(json, NULL, cmi_event_name(event->kind));
        cmi_json_number(json, NULL, event->address);
        cmi_json_number(json, NULL, event->bytes);
        cmi_json_number(json, NULL, event->stream);
        cmi_json_number(json, NULL, event->tag);
        cmi_json_number(json, NULL, event->stack);
        cmi_json_number(json, NULL, event->owner);
        cmi_json_end(json, ']');
    }
    cmi_json_table_end(json);
    cmi_json_end(json, '}');
}
