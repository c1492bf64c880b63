/* Owns the arithmetic of scenario sizes: sums and products of numbers, sizes and $i, by recursive descent. No state. */
#include "scenario.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cursor {
    const char *at;
    int64_t i;
    const char *fault;
} cursor;

static int64_t sum(cursor *c);

static int64_t fail(cursor *c, const char *fault)
{
    if (c->fault == NULL)
        c->fault = fault;
    return 0;
}

static int64_t number(cursor *c)
{
    static const char units[] = "KMGT";
    char *end;
    if (!isdigit((unsigned char)*c->at))
        return fail(c, "not a size");
    for (const char *p = c->at; isalnum((unsigned char)*p) || *p == '.'; p++)
        if (*p == 'x' || *p == 'X' || *p == 'e' || *p == 'E')
            return fail(c, "not a size");
    long double value = strtold(c->at, &end);
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        value *= (long double)((uint64_t)1 << (10 * (unit - units + 1)));
        end++;
    }
    c->at = end;
    return value < 0x1p62L ? (int64_t)value : fail(c, "a size beyond 2^62");
}

static int64_t factor(cursor *c)
{
    if (strncmp(c->at, "$i", 2) == 0) {
        c->at += 2;
        return c->i;
    }
    if (*c->at != '(')
        return number(c);
    c->at++;
    int64_t value = sum(c);
    if (*c->at != ')')
        return fail(c, "a parenthesis is not closed");
    c->at++;
    return value;
}

static int64_t product(cursor *c)
{
    int64_t value = factor(c);
    while (*c->at == '*' && c->fault == NULL) {
        c->at++;
        if (__builtin_mul_overflow(value, factor(c), &value))
            return fail(c, "a size beyond 2^63");
    }
    return value;
}

static int64_t sum(cursor *c)
{
    int64_t value = product(c);
    while ((*c->at == '+' || *c->at == '-') && c->fault == NULL) {
        bool minus = *c->at++ == '-';
        int64_t other = product(c);
        if (minus ? __builtin_sub_overflow(value, other, &value) : __builtin_add_overflow(value, other, &value))
            return fail(c, "a size beyond 2^63");
    }
    return value;
}

const char *scenario_evaluate(const char *expression, uint64_t i, int64_t *value)
{
    cursor c = {.at = expression, .i = (int64_t)i};
    if (strlen(expression) > 200) /* bounds the depth of parentheses */
        return "a size of more than 200 characters";
    *value = sum(&c);
    if (c.fault == NULL && *c.at != '\0')
        c.fault = "not a size";
    return c.fault;
}

bool scenario_substitute(const char *text, uint64_t i, char *out, size_t room)
{
    size_t used = 0;
    while (*text != '\0') {
        int length = 1;
        if (strncmp(text, "$i", 2) == 0) {
            length = snprintf(out + used, room - used, "%llu", (unsigned long long)i);
            text += 2;
        } else
            out[used] = *text++;
        used += (size_t)length;
        if (used >= room)
            return false;
    }
    out[used] = '\0';
    return true;
}
