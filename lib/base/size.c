/*
 * Numbers as people write them in options and on command lines: sizes with a unit, ratios with or without a percent sign, seconds.
 * No state, no lock. Called by the option parser and by tools.
 */
#include "base/size.h"

#include "base/options.h"

#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/*
 * The digits at the start of text, with at most one point between them, times unit, rounded down. Returns how many characters they
 * are; 0 when there are none or the value does not fit. *fraction says whether there was a point.
 */
static size_t parse_decimal(const char *text, size_t length, uint64_t unit, uint64_t *value, bool *fraction)
{
    uint64_t whole = 0;
    size_t at = 0;
    for (; at < length && is_digit(text[at]); at++)
        if (__builtin_mul_overflow(whole, 10u, &whole) || __builtin_add_overflow(whole, (uint64_t)(text[at] - '0'), &whole))
            return 0;
    if (at == 0 || __builtin_mul_overflow(whole, unit, &whole))
        return 0;

    *fraction = at < length && text[at] == '.';
    uint64_t part = 0;
    if (*fraction) {
        size_t first = ++at;
        while (at < length && is_digit(text[at]))
            at++;
        if (at == first)
            return 0;
        /* From the last digit to the first, so that nothing is lost however many there are. */
        for (size_t i = at; i > first; i--)
            part = ((uint64_t)(text[i - 1] - '0') * unit + part) / 10;
    }
    return __builtin_add_overflow(whole, part, value) ? 0 : at;
}

/* Bytes in the unit that text is, or 0. "K" and "KiB" are both 1024. */
static uint64_t unit_bytes(const char *text, size_t length)
{
    static const char letters[] = "KMGT";
    if (length == 0)
        return 1;
    const char *letter = memchr(letters, text[0], sizeof(letters) - 1);
    if (letter == NULL || (length != 1 && !(length == 3 && memcmp(text + 1, "iB", 2) == 0)))
        return 0;
    return (uint64_t)1 << (10 * (letter - letters + 1));
}

bool cmi_parse_size(const char *text, size_t length, uint64_t *bytes)
{
    size_t digits = 0;
    while (digits < length && (is_digit(text[digits]) || text[digits] == '.'))
        digits++;
    uint64_t unit = unit_bytes(text + digits, length - digits), value;
    bool fraction;
    if (unit == 0 || digits == 0 || parse_decimal(text, digits, unit, &value, &fraction) != digits)
        return false;
    if (unit == 1 && fraction) /* there is no part of a byte */
        return false;
    *bytes = value;
    return true;
}

bool cmi_parse_ratio(const char *text, size_t length, uint64_t *parts_per_million)
{
    bool percent = length > 0 && text[length - 1] == '%', fraction;
    size_t digits = length - percent;
    uint64_t value;
    if (digits == 0 || parse_decimal(text, digits, percent ? 10000 : 1000000, &value, &fraction) != digits)
        return false;
    *parts_per_million = value;
    return true;
}

bool cmi_parse_seconds(const char *text, size_t length, uint64_t *seconds)
{
    size_t digits = length > 0 && text[length - 1] == 's' ? length - 1 : length;
    uint64_t value;
    bool fraction;
    if (digits == 0 || parse_decimal(text, digits, 1, &value, &fraction) != digits || fraction)
        return false;
    *seconds = value;
    return true;
}
