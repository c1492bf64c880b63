/*
 * Owns the parser of scenario scripts: one statement a line, `rep N {` ... `}` nested. Everything that can be told without running is
 * told here, so that a script with a fault runs not even in part. No state. Called by cmd_scenario.c and tests.
 */
#include "scenario.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_WORDS = 6, DEEPEST_REP = 8, LONGEST_LINE = 1024, LARGEST_SCRIPT = 4 << 20 };

typedef struct parser {
    const char *name;
    scenario_script *script;
    unsigned line;
    char *fault;
    size_t fault_bytes;
    size_t open[DEEPEST_REP]; /* statements of the reps not yet closed */
    size_t depth;
    char *words[MOST_WORDS + 1];
    size_t count; /* words on this line; MOST_WORDS + 1 is too many */
} parser;

static int fault(parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fault(parser *p, const char *format, ...)
{
    va_list list;
    int used = snprintf(p->fault, p->fault_bytes, "%s:%u: ", p->name, p->line);
    if (used >= 0 && (size_t)used < p->fault_bytes) {
        va_start(list, format);
        vsnprintf(p->fault + used, p->fault_bytes - (size_t)used, format, list);
        va_end(list);
    }
    return -1;
}

static void split(parser *p, char *line)
{
    char *comment = strchr(line, '#'), *rest = NULL;
    if (comment != NULL)
        *comment = '\0';
    p->count = 0;
    for (char *word = strtok_r(line, " \t\r", &rest); word != NULL && p->count <= MOST_WORDS; word = strtok_r(NULL, " \t\r", &rest))
        p->words[p->count++] = word;
}

/* ---- pieces of a statement -------------------------------------------------------------------------------------------------- */

static int words_are(parser *p, size_t least, size_t most)
{
    if (p->count < least)
        return fault(p, "'%s' needs more words", p->words[0]);
    if (p->count > most)
        return fault(p, "'%s' after the end of the statement", p->words[most]);
    return 0;
}

static int keep(parser *p, char **place, const char *word)
{
    *place = strdup(word);
    return *place != NULL ? 0 : fault(p, "no host memory for the script");
}

static int keep_size(parser *p, scenario_statement *s, const char *word)
{
    int64_t value;
    const char *wrong = scenario_evaluate(word, 0, &value);
    if (wrong != NULL)
        return fault(p, "'%s': %s", word, wrong);
    return keep(p, &s->size, word);
}

static int keep_stream(parser *p, scenario_statement *s, const char *word)
{
    const char *number = word + 1;
    if (word[0] != 's' || *number == '\0' || (strcmp(number, "$i") != 0 && strspn(number, "0123456789") != strlen(number)) ||
        strlen(number) > 4)
        return fault(p, "'%s' is not a stream; streams are s0, s1 ...", word);
    return keep(p, &s->stream, word);
}

/* ---- statements ------------------------------------------------------------------------------------------------------------- */

static int parse_alloc(parser *p, scenario_statement *s)
{
    if (words_are(p, 3, 4) != 0 || keep(p, &s->name, p->words[1]) != 0 || keep_size(p, s, p->words[2]) != 0)
        return -1;
    return keep_stream(p, s, p->count == 4 ? p->words[3] : "s0");
}

static int parse_free(parser *p, scenario_statement *s) { return words_are(p, 2, 2) != 0 ? -1 : keep(p, &s->name, p->words[1]); }

static int parse_use(parser *p, scenario_statement *s)
{
    return words_are(p, 3, 3) != 0 || keep(p, &s->name, p->words[1]) != 0 ? -1 : keep_stream(p, s, p->words[2]);
}

static int parse_gate(parser *p, scenario_statement *s) { return words_are(p, 2, 2) != 0 ? -1 : keep_stream(p, s, p->words[1]); }

static int parse_ext(parser *p, scenario_statement *s)
{
    if (words_are(p, 2, 2) != 0)
        return -1;
    if (p->words[1][0] != '+' && p->words[1][0] != '-')
        return fault(p, "'%s' begins with neither + nor -", p->words[1]);
    s->verb = p->words[1][0] == '+' ? VERB_EXT_TAKE : VERB_EXT_RETURN;
    return keep_size(p, s, p->words[1] + 1);
}

static int parse_drvbad(parser *p, scenario_statement *s)
{
    if (words_are(p, 2, 2) != 0)
        return -1;
    if (strcmp(p->words[1], "0") != 0 && strcmp(p->words[1], "1") != 0)
        return fault(p, "'%s' is neither 1 nor 0", p->words[1]);
    s->flag = p->words[1][0] == '1';
    return 0;
}

static int parse_trim(parser *p, scenario_statement *s)
{
    (void)s;
    return words_are(p, 1, 1);
}

static int parse_pool(parser *p, scenario_statement *s)
{
    if (words_are(p, 3, 3) != 0)
        return -1;
    if (strcmp(p->words[2], "begin") != 0 && strcmp(p->words[2], "end") != 0)
        return fault(p, "'%s' is neither begin nor end", p->words[2]);
    s->verb = p->words[2][0] == 'b' ? VERB_POOL_BEGIN : VERB_POOL_END;
    return keep(p, &s->name, p->words[1]);
}

static int parse_expect(parser *p, scenario_statement *s)
{
    static const char *const figures[FIGURE_COUNT] = {
#define SCENARIO_FIGURE(word) #word,
        SCENARIO_FIGURES(SCENARIO_FIGURE)
#undef SCENARIO_FIGURE
    };
    if (words_are(p, 2, 2) != 0)
        return -1;
    const char *word = p->words[1];
    size_t length = strcspn(word, "<>=");
    for (s->figure = 0; s->figure < FIGURE_COUNT; s->figure++)
        if (strlen(figures[s->figure]) == length && memcmp(figures[s->figure], word, length) == 0)
            break;
    if (s->figure == FIGURE_COUNT)
        return fault(p, "'%s' begins with no figure that can be expected", word);
    if (strncmp(word + length, "<=", 2) != 0 && strncmp(word + length, ">=", 2) != 0 && strncmp(word + length, "==", 2) != 0)
        return fault(p, "'%s' has none of <=, >= and ==", word);
    memcpy(s->relation, word + length, 2);
    return keep_size(p, s, word + length + 2);
}

static int parse_rep(parser *p, scenario_statement *s)
{
    char *end;
    if (words_are(p, 3, 3) != 0)
        return -1;
    s->times = strtoull(p->words[1], &end, 10);
    if (p->words[1][0] < '0' || p->words[1][0] > '9' || *end != '\0' || s->times > 10000000)
        return fault(p, "'%s' is not a number of repetitions", p->words[1]);
    if (strcmp(p->words[2], "{") != 0)
        return fault(p, "'%s' where '{' belongs", p->words[2]);
    if (p->depth == DEEPEST_REP)
        return fault(p, "more than %d repetitions inside one another", DEEPEST_REP);
    p->open[p->depth++] = p->script->count;
    return 0;
}

static int parse_at(parser *p)
{
    int64_t bytes = 0;
    bool cap = strcmp(p->words[0], "@cap") == 0;
    if (strcmp(p->words[0], "@fifo") == 0)
        return words_are(p, 1, 1);
    if (!cap && strcmp(p->words[0], "@maxsplit") != 0)
        return fault(p, "unknown word '%s'", p->words[0]);
    if (words_are(p, 2, 2) != 0)
        return -1;
    const char *wrong = scenario_evaluate(p->words[1], 0, &bytes);
    if (wrong != NULL || bytes <= 0)
        return fault(p, "'%s': %s", p->words[1], wrong != NULL ? wrong : "not a size above 0");
    if (cap)
        p->script->capacity_bytes = (uint64_t)bytes;
    return 0;
}

static int close_rep(parser *p)
{
    if (words_are(p, 1, 1) != 0)
        return -1;
    if (p->depth == 0)
        return fault(p, "'}' without a 'rep'");
    p->script->statements[p->open[--p->depth]].body_end = p->script->count;
    return 0;
}

static int parse_line(parser *p)
{
    static const struct {
        const char *word;
        scenario_verb verb;
        int (*parse)(parser *p, scenario_statement *s);
    } verbs[] = {
        {"a", VERB_ALLOC, parse_alloc},        {"x", VERB_REFUSE, parse_alloc},       {"f", VERB_FREE, parse_free},
        {"use", VERB_USE, parse_use},          {"busy", VERB_BUSY, parse_gate},       {"done", VERB_DONE, parse_gate},
        {"ext", VERB_EXT_TAKE, parse_ext},     {"drvbad", VERB_DRVBAD, parse_drvbad}, {"trim", VERB_TRIM, parse_trim},
        {"pool", VERB_POOL_BEGIN, parse_pool}, {"expect", VERB_EXPECT, parse_expect}, {"rep", VERB_REP, parse_rep},
    };
    scenario_script *script = p->script;
    if (p->count == 0)
        return 0;
    if (p->words[0][0] == '@')
        return parse_at(p);
    if (strcmp(p->words[0], "}") == 0)
        return close_rep(p);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(p->words[0], verbs[i].word) != 0)
            continue;
        scenario_statement *larger = realloc(script->statements, (script->count + 1) * sizeof *larger);
        if (larger == NULL)
            return fault(p, "no host memory for the script");
        script->statements = larger;
        larger[script->count] = (scenario_statement){.verb = verbs[i].verb, .line = p->line};
        int code = verbs[i].parse(p, &larger[script->count]);
        script->count++;
        return code;
    }
    return fault(p, "unknown word '%.40s'", p->words[0]);
}

static int parse_text(parser *p, const char *text, size_t bytes)
{
    char line[LONGEST_LINE];
    size_t at = 0;
    p->line = bytes == 0;
    if (bytes == 0)
        return fault(p, "the file is empty");
    while (at < bytes) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        size_t length = newline != NULL ? (size_t)(newline - text) - at : bytes - at;
        p->line++;
        if (length >= sizeof line)
            return fault(p, "a line longer than %d bytes", LONGEST_LINE - 1);
        if (memchr(text + at, '\0', length) != NULL)
            return fault(p, "binary data, not a script");
        memcpy(line, text + at, length);
        line[length] = '\0';
        split(p, line);
        if (parse_line(p) != 0)
            return -1;
        at += length + 1;
    }
    if (p->depth > 0) {
        p->line = p->script->statements[p->open[p->depth - 1]].line;
        return fault(p, "'rep' without its '}'");
    }
    return p->script->count > 0 ? 0 : fault(p, "the file holds no statement");
}

int scenario_parse(const char *name, const char *text, size_t bytes, scenario_script *script, char *fault_text, size_t fault_bytes)
{
    parser p = {.name = name, .script = script, .fault = fault_text, .fault_bytes = fault_bytes};
    *script = (scenario_script){0};
    int code = parse_text(&p, text, bytes);
    if (code != 0)
        scenario_free(script);
    return code;
}

static int cannot_read(const char *path, const char *reason, char *fault_text, size_t fault_bytes)
{
    snprintf(fault_text, fault_bytes, "%s:0: %s", path, reason);
    return -1;
}

int scenario_read(const char *path, scenario_script *script, char *fault_text, size_t fault_bytes)
{
    struct stat about;
    *script = (scenario_script){0};
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return cannot_read(path, strerror(errno), fault_text, fault_bytes);
    char *text = malloc(LARGEST_SCRIPT + 1);
    int code;
    if (text == NULL)
        code = cannot_read(path, "no host memory for the script", fault_text, fault_bytes);
    else if (fstat(fileno(file), &about) == 0 && S_ISDIR(about.st_mode))
        code = cannot_read(path, "is a directory", fault_text, fault_bytes);
    else {
        size_t bytes = fread(text, 1, LARGEST_SCRIPT + 1, file);
        if (ferror(file))
            code = cannot_read(path, strerror(errno), fault_text, fault_bytes);
        else if (bytes > LARGEST_SCRIPT)
            code = cannot_read(path, "larger than 4 MiB", fault_text, fault_bytes);
        else
            code = scenario_parse(path, text, bytes, script, fault_text, fault_bytes);
    }
    free(text);
    fclose(file);
    return code;
}

void scenario_free(scenario_script *script)
{
    for (size_t i = 0; i < script->count; i++) {
        free(script->statements[i].name);
        free(script->statements[i].stream);
        free(script->statements[i].size);
    }
    free(script->statements);
    *script = (scenario_script){0};
}
