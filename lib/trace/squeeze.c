/*
 * Owns a log with everything taken out that loggers, terminals and mail put in: blanks, colours, quote marks, rank prefixes; and the
 * reading of sizes in it. No locks; one thread. Called by the reader of out-of-memory messages.
 */
#include "trace/squeeze.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Length of an escape sequence of a terminal at text ("ESC [ ... letter"), 0 if there is none. */
static size_t escape_length(const char *text, size_t bytes)
{
    if (bytes < 2 || text[0] != '\x1b' || text[1] != '[')
        return 0;
    size_t i = 2;
    while (i < bytes && (unsigned char)text[i] < 0x40)
        i++;
    return i < bytes ? i + 1 : bytes;
}

/* A bracketed word of a launcher before a line: "[rank0]:", "[3]:", "(Worker pid=12, ip=10.0.0.1)"; 0 if there is none. */
static size_t launcher_length(const char *line, size_t bytes)
{
    const size_t longest = 80;
    char close = bytes > 0 && line[0] == '[' ? ']' : bytes > 0 && line[0] == '(' ? ')' : '\0';
    if (close == '\0')
        return 0;
    bool names_process = false;
    for (size_t i = 1; i < bytes && i < longest && line[i] != '\n'; i++) {
        if (line[i] == close)
            return names_process ? i + 1 + (i + 1 < bytes && line[i + 1] == ':') : 0;
        bool at_word = line[i - 1] == '[' || line[i - 1] == '(' || line[i - 1] == ' ';
        names_process |=
            at_word && close == ']' && (isdigit((unsigned char)line[i]) || (bytes - i >= 4 && memcmp(line + i, "rank", 4) == 0));
        names_process |= at_word && bytes - i >= 4 && memcmp(line + i, "pid=", 4) == 0;
    }
    return 0;
}

/* The name that this library's lines begin with. */
static size_t own_length(const char *line, size_t bytes)
{
    static const char name[] = "cudamempool:";
    return bytes >= sizeof name - 1 && memcmp(line, name, sizeof name - 1) == 0 ? sizeof name - 1 : 0;
}

/* What stands before a line that says nothing: indentation, quote and comment marks, launchers' prefixes. */
static size_t prefix_length(const char *line, size_t bytes)
{
    size_t at = 0;
    for (;;) {
        size_t step = escape_length(line + at, bytes - at);
        if (step == 0)
            step = launcher_length(line + at, bytes - at);
        if (step == 0)
            step = own_length(line + at, bytes - at);
        if (step == 0 && at < bytes && strchr(" \t>|#*", line[at]) != NULL && line[at] != '\0')
            step = 1;
        if (step == 0)
            return at;
        at += step;
    }
}

static bool add_line(cmi_squeezed *squeezed, size_t *room)
{
    if (squeezed->line_count == *room) {
        size_t *larger = realloc(squeezed->line_starts, 2 * (*room + 64) * sizeof *larger);
        if (larger == NULL)
            return false;
        squeezed->line_starts = larger;
        *room = 2 * (*room + 64);
    }
    squeezed->line_starts[squeezed->line_count++] = squeezed->length;
    return true;
}

bool cmi_squeeze(const char *text, size_t bytes, cmi_squeezed *squeezed)
{
    size_t room = 0;
    *squeezed = (cmi_squeezed){.text = malloc(bytes + 1)};
    if (squeezed->text == NULL || !add_line(squeezed, &room)) {
        cmi_squeezed_free(squeezed);
        return false;
    }
    size_t at = prefix_length(text, bytes);
    while (at < bytes) {
        size_t escape = escape_length(text + at, bytes - at);
        unsigned char c = (unsigned char)text[at];
        if (escape > 0) {
            at += escape;
        } else if (c == '\n') {
            at++;
            at += prefix_length(text + at, bytes - at);
            if (!add_line(squeezed, &room)) {
                cmi_squeezed_free(squeezed);
                return false;
            }
        } else if (c == '\\' && at + 1 < bytes && strchr("nrt", text[at + 1]) != NULL && text[at + 1] != '\0') {
            at += 2; /* a log inside a string */
        } else if (c == 0xc2 && at + 1 < bytes && (unsigned char)text[at + 1] == 0xa0) {
            at += 2; /* a blank that does not break */
        } else {
            if (c > ' ' && c != 0x7f && c != '`' && c != '"')
                squeezed->text[squeezed->length++] = (char)tolower(c);
            at++;
        }
    }
    squeezed->text[squeezed->length] = '\0';
    return true;
}

void cmi_squeezed_free(cmi_squeezed *squeezed)
{
    free(squeezed->text);
    free(squeezed->line_starts);
    *squeezed = (cmi_squeezed){0};
}

size_t cmi_squeezed_line(const cmi_squeezed *squeezed, size_t at)
{
    size_t low = 0, high = squeezed->line_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(squeezed->line_starts[middle] <= at ? &low : &high) = middle;
    }
    return low + 1;
}

size_t cmi_squeezed_find(const cmi_squeezed *squeezed, const char *phrase, size_t from, size_t to)
{
    size_t length = strlen(phrase);
    const char *at = squeezed->text + from, *end = squeezed->text + to;
    while (at < end && (size_t)(end - at) >= length) {
        at = memchr(at, phrase[0], (size_t)(end - at) - length + 1);
        if (at == NULL)
            break;
        if (memcmp(at, phrase, length) == 0)
            return (size_t)(at - squeezed->text);
        at++;
    }
    return SIZE_MAX;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    double bytes;
} units[] = {
    /* The longest first, so that "bytes" is not "b" and the rest. What is written MB or GB by these allocators counts in powers of two. */
    {"bytes", 1},        {"byte", 1},       {"kib", 1024.0},      {"mib", 1048576.0},      {"gib", 1073741824.0}, {"tib", 1099511627776.0},
    {"kb", 1024.0},      {"mb", 1048576.0}, {"gb", 1073741824.0}, {"tb", 1099511627776.0}, {"k", 1024.0},         {"m", 1048576.0},
    {"g", 1073741824.0}, {"b", 1},
};
#define UNIT_COUNT (sizeof units / sizeof *units)

static bool is_number_character(char c) { return isdigit((unsigned char)c) || c == '.' || c == ','; }

/* Digits with '.' for decimals and ',' between groups, or ',' for decimals where one is followed by one or two digits. */
static bool read_number(const char *text, size_t length, double *value, int *decimals)
{
    char digits[40];
    size_t used = 0, commas = 0, last_comma = 0;
    bool point = false;
    for (size_t i = 0; i < length; i++)
        if (text[i] == ',') {
            commas++;
            last_comma = i;
        } else if (text[i] == '.') {
            point = true;
        }
    bool decimal_comma = commas == 1 && !point && length - last_comma - 1 >= 1 && length - last_comma - 1 <= 2;
    for (size_t i = 0; i < length; i++) {
        if (used + 1 >= sizeof digits)
            return false;
        if (text[i] != ',')
            digits[used++] = text[i];
        else if (decimal_comma)
            digits[used++] = '.';
    }
    digits[used] = '\0';
    char *end;
    *value = strtod(digits, &end);
    const char *fraction = strchr(digits, '.');
    *decimals = fraction != NULL ? (int)(digits + used - fraction) - 1 : 0;
    return used > 0 && *end == '\0' && isdigit((unsigned char)digits[0]);
}

static bool read_size(const char *number, size_t length, double unit, uint64_t *bytes, uint64_t *doubt)
{
    double value, step = unit / 2;
    int decimals;
    if (!read_number(number, length, &value, &decimals))
        return false;
    value *= unit;
    for (int i = 0; i < decimals; i++)
        step /= 10;
    *bytes = value < 9223372036854775808.0 ? (uint64_t)(value + 0.5) : UINT64_MAX;
    *doubt = unit > 1 ? (uint64_t)step : 0;
    return true;
}

bool cmi_squeezed_size_at(const cmi_squeezed *squeezed, size_t at, uint64_t *bytes, uint64_t *doubt)
{
    const char *text = squeezed->text + at;
    size_t length = 0;
    while (is_number_character(text[length]))
        length++;
    for (size_t i = 0; i < UNIT_COUNT && length > 0; i++)
        if (strncmp(text + length, units[i].name, strlen(units[i].name)) == 0)
            return read_size(text, length, units[i].bytes, bytes, doubt);
    return false;
}

bool cmi_squeezed_size_before(const cmi_squeezed *squeezed, size_t end, uint64_t *bytes, uint64_t *doubt)
{
    const char *text = squeezed->text;
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        size_t unit = strlen(units[i].name);
        if (end < unit || memcmp(text + end - unit, units[i].name, unit) != 0)
            continue;
        size_t number = end - unit;
        while (number > 0 && is_number_character(text[number - 1]))
            number--;
        while (number < end - unit && !isdigit((unsigned char)text[number]))
            number++; /* a full stop before the number is not its own */
        return read_size(text + number, end - unit - number, units[i].bytes, bytes, doubt);
    }
    return false;
}
