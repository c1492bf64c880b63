/*
 * The option parser: one table made from options.def, one line on stderr for each fault, nothing applied that is not understood.
 * Owns the values that are text (metadata memory, kept for the life of the process; a lock of rank RECORD for adding one); no other state.
 * Called when a pool is made, and by tools for --conf.
 */
#include "base/options.h"

#include "base/bits.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/meta.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef enum option_kind { KIND_SIZE, KIND_RATIO, KIND_SECONDS, KIND_FLAG, KIND_CHOICE, KIND_EVERY, KIND_TEXT, KIND_LIST } option_kind;

typedef struct option_rule {
    const char *key;
    option_kind kind;
    size_t offset; /* of the field in cmi_options; a LIST has none */
    uint64_t value, low, high;
    const char *choices; /* CHOICE: the words, "a|b|c" */
} option_rule;

#define CHOICES_SIZE(key) NULL
#define CHOICES_RATIO(key) NULL
#define CHOICES_SECONDS(key) NULL
#define CHOICES_FLAG(key) NULL
#define CHOICES_EVERY(key) NULL
#define CHOICES_TEXT(key) NULL
#define CHOICES_CHOICE(key) CMPOOL_CHOICES_##key
static const option_rule rules[] = {
#define CMPOOL_OPTION(key, kind, value, low, high, help) \
    {#key, KIND_##kind, offsetof(cmi_options, key), value, low, high, CHOICES_##kind(key)},
#define CMPOOL_OPTION_LIST(key, value, help) {#key, KIND_LIST, 0, 0, 0, 0, NULL},
#include <cudamempool/options.def>
#undef CMPOOL_OPTION
};

static const char known_keys[] =
#define CMPOOL_OPTION(key, kind, value, low, high, help) " " #key
#define CMPOOL_OPTION_LIST(key, value, help) " " #key
#include <cudamempool/options.def>
#undef CMPOOL_OPTION
    ;

/* What PyTorch's allocator would understand. word NULL: the key with any value. */
static const struct foreign_setting {
    const char *key, *word, *why;
} pytorch_settings[] = {
#define CMI_PYTORCH_KEY(key, why) {#key, NULL, why},
#define CMI_PYTORCH_VALUE(key, word, why) {#key, #word, why},
#include "base/pytorch_keys.def"
#undef CMI_PYTORCH_KEY
#undef CMI_PYTORCH_VALUE
};

static const struct flag_word {
    const char *word;
    uint64_t value;
} flag_words[] = {{"true", 1}, {"false", 0}, {"on", 1}, {"off", 0}, {"1", 1}, {"0", 0}};

/* A part of the caller's text; not terminated. */
typedef struct slice {
    const char *text;
    size_t length;
} slice;

static bool slice_is(slice s, const char *word) { return strlen(word) == s.length && memcmp(s.text, word, s.length) == 0; }

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static slice slice_trim(slice s)
{
    while (s.length > 0 && is_blank(s.text[0]))
        s.text++, s.length--;
    while (s.length > 0 && is_blank(s.text[s.length - 1]))
        s.length--;
    return s;
}

/* A slice as it can stand in a one-line message: no control characters, cut when long. */
typedef struct shown {
    char text[64];
} shown;

static shown show(slice s)
{
    shown result = {""};
    size_t room = sizeof(result.text) - sizeof("...");
    size_t length = cmi_min_u64(s.length, room);
    for (size_t i = 0; i < length; i++)
        result.text[i] = s.text[i] >= 0x20 && s.text[i] < 0x7f ? s.text[i] : '?';
    if (s.length > room)
        memcpy(result.text + length, "...", sizeof("..."));
    return result;
}

/* Where faults go: counted, the first kept for the caller. */
typedef struct fault_sink {
    const char *source;
    int count;
    char *first;
    size_t first_bytes;
} fault_sink;

static void report_fault(fault_sink *sink, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void report_fault(fault_sink *sink, const char *format, ...)
{
    char line[768];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    cmi_log(CMI_LOG_ERROR, "%s: %s", sink->source, line);
    if (sink->count++ == 0 && sink->first_bytes > 0)
        snprintf(sink->first, sink->first_bytes, "%s: %s", sink->source, line);
}

static bool parse_flag(slice value, uint64_t *parsed)
{
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(flag_words); i++) {
        if (slice_is(value, flag_words[i].word)) {
            *parsed = flag_words[i].value;
            return true;
        }
    }
    return false;
}

static bool parse_choice(const char *choices, slice value, uint64_t *parsed)
{
    uint64_t position = 0;
    for (const char *word = choices; word != NULL; position++) {
        const char *end = strchr(word, '|');
        slice choice = {word, end != NULL ? (size_t)(end - word) : strlen(word)};
        if (choice.length == value.length && memcmp(choice.text, value.text, value.length) == 0) {
            *parsed = position;
            return true;
        }
        word = end != NULL ? end + 1 : NULL;
    }
    return false;
}

/* Names with '*' in them, divided by '+'. */
static bool is_list(slice value)
{
    for (size_t i = 0; i < value.length; i++) {
        char c = value.text[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && memchr("._-*+", c, 5) == NULL)
            return false;
    }
    return value.length <= CMI_LIST_BYTES;
}

/* "off", "all", "sampled:N". */
static bool parse_every(slice value, uint64_t *parsed)
{
    static const char sampled[] = "sampled:";
    size_t length = sizeof sampled - 1;
    *parsed = slice_is(value, "all");
    if (*parsed || slice_is(value, "off"))
        return true;
    return value.length > length && memcmp(value.text, sampled, length) == 0 &&
           cmi_parse_size(value.text + length, value.length - length, parsed) && *parsed > 0;
}

/* ---- values that are text ------------------------------------------------------------------------------------------------- */

enum { MOST_TEXTS = 256 };

static cmi_lock texts_lock = CMI_LOCK_INITIALIZER(CMI_RANK_RECORD);
static _Atomic(char *) texts[MOST_TEXTS]; /* number 0 is the empty one */

/* The number of a text, the same for the same text. false: no host memory, or too many. */
static bool text_number(slice value, uint64_t *number)
{
    *number = 0;
    if (value.length == 0)
        return true;
    cmi_lock_acquire(&texts_lock);
    uint64_t i = 1;
    char *known;
    while (i < MOST_TEXTS && (known = atomic_load(&texts[i])) != NULL && !slice_is(value, known))
        i++;
    if (i < MOST_TEXTS && atomic_load(&texts[i]) == NULL) {
        char *copy = cmi_meta_alloc(value.length + 1);
        if (copy != NULL)
            memcpy(copy, value.text, value.length);
        atomic_store(&texts[i], copy);
    }
    bool kept = i < MOST_TEXTS && atomic_load(&texts[i]) != NULL;
    cmi_lock_release(&texts_lock);
    *number = kept ? i : 0;
    return kept;
}

const char *cmi_options_text(uint64_t number)
{
    const char *text = number < MOST_TEXTS ? atomic_load(&texts[number]) : NULL;
    return text != NULL ? text : "";
}

static bool is_text(slice value)
{
    for (size_t i = 0; i < value.length; i++)
        if ((unsigned char)value.text[i] < 0x20 || value.text[i] == 0x7f)
            return false;
    return value.length < CMI_TEXT_BYTES;
}

static bool parse_value(const option_rule *rule, slice value, uint64_t *parsed)
{
    switch (rule->kind) {
    case KIND_SIZE:
        return cmi_parse_size(value.text, value.length, parsed);
    case KIND_RATIO:
        return cmi_parse_ratio(value.text, value.length, parsed);
    case KIND_SECONDS:
        return cmi_parse_seconds(value.text, value.length, parsed);
    case KIND_FLAG:
        return parse_flag(value, parsed);
    case KIND_CHOICE:
        return parse_choice(rule->choices, value, parsed);
    case KIND_EVERY:
        return parse_every(value, parsed);
    case KIND_TEXT:
        return is_text(value) && text_number(value, parsed);
    case KIND_LIST:
        *parsed = 0; /* the text is read by who uses it */
        return is_list(value);
    }
    return false;
}

static bool must_be_power2(const option_rule *rule) { return rule->offset == offsetof(cmi_options, page_size); }

static bool in_range(const option_rule *rule, uint64_t value)
{
    return value >= rule->low && value <= rule->high && (!must_be_power2(rule) || value == 0 || cmi_is_power2(value));
}

static void describe_allowed(const option_rule *rule, char *text, size_t bytes)
{
    switch (rule->kind) {
    case KIND_SIZE:
        if (rule->high == UINT64_MAX)
            snprintf(text, bytes, "a size such as 4096, 512MiB or 24GiB");
        else
            snprintf(text, bytes, "a size from %llu to %llu%s", (unsigned long long)rule->low, (unsigned long long)rule->high,
                     must_be_power2(rule) ? ", 0 or a power of two, such as 2MiB" : "");
        break;
    case KIND_RATIO: /* kept in parts per million, of which a hundred are 0.01 % */
        snprintf(text, bytes, "a share from %llu.%02llu%% to %llu.%02llu%%, such as 0.01 or 1%%", (unsigned long long)(rule->low / 10000),
                 (unsigned long long)(rule->low / 100 % 100), (unsigned long long)(rule->high / 10000),
                 (unsigned long long)(rule->high / 100 % 100));
        break;
    case KIND_SECONDS:
        snprintf(text, bytes, "seconds from %llu to %llu, such as 30 or 30s", (unsigned long long)rule->low,
                 (unsigned long long)rule->high);
        break;
    case KIND_FLAG:
        snprintf(text, bytes, "true, false, on, off, 1 or 0");
        break;
    case KIND_CHOICE:
        snprintf(text, bytes, "%s", rule->choices);
        break;
    case KIND_EVERY:
        snprintf(text, bytes, "off, all, or sampled:N for every Nth, N up to %llu", (unsigned long long)rule->high);
        break;
    case KIND_TEXT:
        snprintf(text, bytes, "a text without commas, at most %d bytes", CMI_TEXT_BYTES - 1);
        break;
    case KIND_LIST:
        snprintf(text, bytes, "names divided by '+', %d characters at most, '*' for any characters", CMI_LIST_BYTES);
        break;
    }
}

static const struct foreign_setting *find_foreign(slice key, slice value)
{
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(pytorch_settings); i++) {
        const struct foreign_setting *setting = &pytorch_settings[i];
        if (slice_is(key, setting->key) && (setting->word == NULL || slice_is(value, setting->word)))
            return setting;
    }
    return NULL;
}

static const option_rule *find_rule(slice key)
{
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(rules); i++)
        if (slice_is(key, rules[i].key))
            return &rules[i];
    return NULL;
}

static uint64_t *field_of(cmi_options *options, const option_rule *rule) { return (uint64_t *)((char *)options + rule->offset); }

static void apply_setting(cmi_options *options, slice key, slice value, fault_sink *sink)
{
    const struct foreign_setting *foreign = find_foreign(key, value);
    if (foreign != NULL) { /* always shown, but no fault: the setting was made for another allocator and nothing is missing here */
        cmi_log(CMI_LOG_ERROR, "%s: \"%s:%s\" is an option of PyTorch's allocator and not needed here: %s", sink->source, show(key).text,
                show(value).text, foreign->why);
        return;
    }
    const option_rule *rule = find_rule(key);
    if (rule == NULL) {
        report_fault(sink, "unknown key \"%s\" (value \"%s\"); known keys:%s", show(key).text, show(value).text, known_keys);
        return;
    }
    uint64_t parsed;
    if (!parse_value(rule, value, &parsed) || !in_range(rule, parsed)) {
        char allowed[160];
        describe_allowed(rule, allowed, sizeof(allowed));
        report_fault(sink, "bad value \"%s\" for key \"%s\"; allowed: %s", show(value).text, rule->key, allowed);
        return;
    }
    if (rule->kind != KIND_LIST)
        *field_of(options, rule) = parsed;
}

/* Cut the next setting off the front of rest: up to a comma that is not inside brackets (PyTorch writes lists in them). */
static slice next_setting(slice *rest)
{
    size_t end = 0;
    for (int depth = 0; end < rest->length && (depth > 0 || rest->text[end] != ','); end++)
        depth += rest->text[end] == '[' ? 1 : rest->text[end] == ']' && depth > 0 ? -1 : 0;
    slice setting = {rest->text, end};
    size_t used = end < rest->length ? end + 1 : end;
    rest->text += used;
    rest->length -= used;
    return slice_trim(setting);
}

void cmi_options_default(cmi_options *options)
{
    for (size_t i = 0; i < CMI_ARRAY_LENGTH(rules); i++)
        if (rules[i].kind != KIND_LIST)
            *field_of(options, &rules[i]) = rules[i].value;
}

int cmi_options_parse(cmi_options *options, const char *text, const char *source, char *fault, size_t fault_bytes)
{
    fault_sink sink = {.source = source, .first = fault, .first_bytes = fault_bytes};
    slice rest = {text, text != NULL ? strlen(text) : 0};
    while (rest.length > 0) {
        slice setting = next_setting(&rest);
        if (setting.length == 0) /* a comma at the end, or two in a row */
            continue;
        const char *colon = memchr(setting.text, ':', setting.length);
        if (colon == NULL) {
            report_fault(&sink, "\"%s\" has no value; settings are written key:value,key:value", show(setting).text);
            continue;
        }
        slice key = {setting.text, (size_t)(colon - setting.text)};
        slice value = {colon + 1, setting.length - key.length - 1};
        apply_setting(options, slice_trim(key), slice_trim(value), &sink);
    }
    return sink.count;
}
